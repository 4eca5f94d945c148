"""Which cuts are durable, and the callers that wait for one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class DurableCuts:
    """Let callers wait until a cut is durable."""

    def __init__(self, on_wait: Callable[[], None]) -> None:
        self._on_wait = on_wait
        self._newest = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._failure: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        """Why no more cuts become durable; None while they do."""
        return self._failure

    def is_awaited_after(self, cut: int) -> bool:
        """Return whether somebody waits for a cut after this one."""
        return any(awaited > cut for awaited in self._waiting)

    async def wait(self, cut: int) -> None:
        """Wait until a cut is durable."""
        if cut > self._newest:
            if self._failure is not None:
                raise self._failure
            future = self._waiting.get(cut)
            if future is None:
                future = self._waiting[cut] = asyncio.get_running_loop().create_future()
                self._on_wait()
            await asyncio.shield(future)

    def reach(self, cut: int) -> None:
        """Take note that all cuts up to this one are durable."""
        self._newest = max(self._newest, cut)
        for awaited in [awaited for awaited in self._waiting if awaited <= self._newest]:
            future = self._waiting.pop(awaited)
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Fail all who wait, now and later: nothing becomes durable any more."""
        if self._failure is None:
            self._failure = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # the one who waited may be gone
        self._waiting.clear()
