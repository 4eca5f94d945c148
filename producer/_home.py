"""The event loop in which a producer was started: all its calls belong there.

In another loop, or another thread, a call would wait for ever for what happens in this one.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import Final

from sequitur.errors import WrongThreadError

_WAYS_ON: Final = (
    "from another thread, call it by loop.call_soon_threadsafe(producer.send_nowait, ...) or "
    "asyncio.run_coroutine_threadsafe(producer.send(...), loop). In another loop, start "
    "another producer"
)


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Check that a loop is the one that runs here.

    Raises:
        WrongThreadError: It is not, or it is closed.
    """
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not loop:
        is_over = ", which is closed" if loop.is_closed() else ""
        raise WrongThreadError(
            f"the producer belongs to the event loop in which it was started{is_over}: {_WAYS_ON}"
        )


class Home:
    """Where a producer was started."""

    __slots__ = ("_loop", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()

    def check(self) -> None:
        """Check that this is its loop; or its thread, while the loop stands still."""
        loop = self._loop
        try:
            if asyncio.get_running_loop() is loop:
                return
        except RuntimeError:
            stands_still = not (loop.is_running() or loop.is_closed())
            if stands_still and get_ident() == self._thread:
                return
        check_loop(loop)
