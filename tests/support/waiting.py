"""How long tests wait, and waiting for conditions that nothing tells of."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 60.0 * float(os.environ.get("SEQUITUR_TEST_PATIENCE", "1"))
"""How long a test waits for what is to happen. A whole program gets a multiple of it."""
_POLL_S = 0.05
_STDERR: Final = 2


def wait_until(holds: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; when it does not come about, fail, and tell where all threads are."""
    deadline_s = time.monotonic() + patience_s
    while True:
        begun_s = time.monotonic()
        if holds():
            return
        if time.monotonic() > deadline_s:
            faulthandler.dump_traceback(_STDERR)
            raise TimeoutError(f"not within {patience_s:g} s")
        # A look may read topics whole: most of the machine is left to what is waited for.
        time.sleep(max(_POLL_S, 2 * (time.monotonic() - begun_s)))


async def until(holds: Callable[[], object], *, poll_s: float = 0.01) -> None:
    """Wait for a condition, as long as the test may take."""
    while not holds():  # noqa: ASYNC110 - nothing tells when it does
        await asyncio.sleep(poll_s)
