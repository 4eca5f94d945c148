"""Room for events: bytes that may be on their way, and the queue of those who wait for some."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Room:
    """Counts the bytes of all records that are accepted and not settled, and holds senders back.

    While `used` is at the limit they queue, first come first served, which also keeps the order of
    the events of many tasks.

    Args:
        loop: Runs the deadlines.
        limit: Bytes beyond which senders wait. Who is let in may overshoot it, once.

    Attributes:
        used: Bytes taken now.
        limit: As given.
    """

    __slots__ = ("_full_since_s", "_loop", "_waiting", "limit", "used")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.used = 0
        self.limit = limit
        self._loop = loop
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._full_since_s: float | None = None

    @property
    def stuck_s(self) -> float:
        """Seconds since anything was given back, while there is no room; 0 while there is some."""
        since_s = self._full_since_s
        return 0.0 if since_s is None else self._loop.time() - since_s

    @property
    def is_free(self) -> bool:
        """Whether an event may be accepted now, before those that queue."""
        return self.used < self.limit and not self._waiting

    async def wait(self, deadline_s: float) -> bool:
        """Queue for room; False if there was none before the deadline.

        Whoever is let in must take some, or call `let_in`, in the same step of the event loop.
        """
        mine: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append(mine)
        timer = self._loop.call_at(deadline_s, _answer, mine, False)
        self.let_in()
        admitted = False
        try:
            admitted = await mine
        finally:
            timer.cancel()
            self._waiting.remove(mine)
            if not admitted:
                self.let_in()
        return admitted

    def let_in(self) -> None:
        """Let the next one in, if there is room."""
        if self._waiting and self.used < self.limit:
            _answer(self._waiting[0], True)

    def take(self, size: int) -> None:
        """Take bytes, be there room or not, and let the next one in if there is some left."""
        self.used += size
        if self.used >= self.limit and self._full_since_s is None:
            self._full_since_s = self._loop.time()
        self.let_in()

    def give_back(self, size: int) -> None:
        """Give bytes back, and let the next one in."""
        self.used -= size
        if self._full_since_s is not None:
            self._full_since_s = self._loop.time() if self.used >= self.limit else None
        self.let_in()

    def turn_away(self) -> None:
        """Send all away that queue: the producer closes."""
        for future in self._waiting:
            _answer(future, False)


def _answer(future: asyncio.Future[bool], admitted: bool) -> None:
    if not future.done():
        future.set_result(admitted)
