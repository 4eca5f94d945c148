"""Waiting for conditions that nothing tells of."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S = 0.05


def wait_until(holds: Callable[[], object], *, timeout_s: float = 60.0) -> None:
    """Wait for a condition, and fail when it does not come about."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        begun_s = time.monotonic()
        if holds():
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {timeout_s:g} s")
        # A look may read topics whole: most of the machine is left to what is waited for.
        time.sleep(max(_POLL_S, 2 * (time.monotonic() - begun_s)))


async def until(holds: Callable[[], object], *, poll_s: float = 0.01) -> None:
    """Wait for a condition, as long as the test may take."""
    while not holds():  # noqa: ASYNC110 - nothing tells when it does
        await asyncio.sleep(poll_s)
