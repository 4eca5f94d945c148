"""The memory that accepted events may take, the batches that take it, and who waits for either."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sequitur.producer.batching.batch import Batch


class BufferBudget:
    """Count the bytes of all events that are accepted and not settled, and hold senders back.

    While `used` is at the limit, senders queue and are admitted in the order they came. That also
    keeps the order of events that several tasks send.
    """

    __slots__ = ("_full_since_s", "_loop", "_waiting", "limit", "spared", "used")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.used = 0
        self.limit = limit
        self.spared = 0
        self._loop = loop
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._full_since_s: float | None = None

    @property
    def stuck_s(self) -> float:
        """Seconds since bytes were last given back, while the budget is used up; else 0."""
        since_s = self._full_since_s
        return 0.0 if since_s is None else self._loop.time() - since_s

    @property
    def left(self) -> int:
        """How many bytes are left; negative if there were too many for the limit."""
        return self.limit - self.used + self.spared

    @property
    def is_free(self) -> bool:
        """Whether an event may be accepted now: there are bytes left, and no sender waits."""
        return self.used < self.limit + self.spared and not self._waiting

    @property
    def is_short(self) -> bool:
        return self.used * 2 > self.limit

    async def wait(self, deadline_s: float) -> bool:
        """Queue for bytes; return False if there were none before the deadline.

        An admitted caller takes its bytes in the same step of the event loop. If it takes none,
        since its event is invalid or it raised, the next sender is admitted after that step.
        """
        mine: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append(mine)
        timer = self._loop.call_at(deadline_s, _resolve, mine, False)
        self.admit_next()
        admitted = False
        try:
            admitted = await mine
        finally:
            timer.cancel()
            self._waiting.remove(mine)
            if admitted:
                self._loop.call_soon(self.admit_next)
            else:
                self.admit_next()
        return admitted

    def admit_next(self) -> None:
        """Admit the sender that waits longest, if bytes are left."""
        if self._waiting and self.left > 0:
            _resolve(self._waiting[0], True)

    def take(self, size: int) -> None:
        """Take bytes, even if fewer are left, and admit the next sender if some are."""
        self.used += size
        if self.used >= self.limit + self.spared:
            if self._full_since_s is None:
                self._full_since_s = self._loop.time()
        elif self._waiting:
            self.admit_next()

    def give_back(self, size: int) -> None:
        self.used -= size
        if self._full_since_s is not None:
            self._full_since_s = self._loop.time() if self.left <= 0 else None
        self.admit_next()

    def resize(self, limit: int) -> None:
        self.limit = limit
        self.admit_next()

    def spare(self, size: int) -> None:
        """Do not count so many of the used bytes, and admit the next sender."""
        self.spared = size
        if self.left > 0:
            self._full_since_s = None
        self.admit_next()

    def close(self) -> None:
        """Admit none of the senders that wait: the producer closes."""
        for future in self._waiting:
            _resolve(future, False)


def _resolve(future: asyncio.Future[bool], admitted: bool) -> None:
    if not future.done():
        future.set_result(admitted)


class Outstanding:
    """Hold every batch from its first event until it is released.

    A batch is completed when its events have their outcomes, and released when it is needed no
    more. The two differ: after `delivery_timeout` a batch is completed while it is in flight.
    """

    def __init__(self, budget: BufferBudget) -> None:
        self.batches: dict[Batch, None] = {}
        self._budget = budget
        self._flushes: list[tuple[set[Batch], asyncio.Future[None]]] = []

    @property
    def is_flushing(self) -> bool:
        """Whether somebody waits for all events to have their outcomes."""
        return bool(self._flushes)

    def add(self, batch: Batch) -> None:
        """Hold a batch whose events take their bytes from the budget as they are accepted."""
        self.batches[batch] = None

    def take_over(self, batch: Batch) -> None:
        """Hold a batch that a former life accepted; it takes its bytes even if none are left."""
        self.batches[batch] = None
        self._budget.take(batch.size)

    def flushed(self) -> asyncio.Future[None]:
        """Return a future that is done when all events accepted until now have their outcomes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waited_for = {batch for batch in self.batches if not batch.completed}
        if waited_for:
            self._flushes.append((waited_for, future))
        else:
            future.set_result(None)
        return future

    def complete(self, batch: Batch) -> None:
        batch.complete()
        for waited_for, future in self._flushes:
            waited_for.discard(batch)
            if not waited_for and not future.done():
                future.set_result(None)
        if self._flushes:
            self._flushes = [flush for flush in self._flushes if not flush[1].done()]

    def release(self, batch: Batch) -> None:
        """Hold a batch no more, and give its bytes back."""
        del self.batches[batch]
        self._budget.give_back(batch.size)

    def replace(self, batch: Batch, halves: tuple[Batch, Batch]) -> None:
        del self.batches[batch]
        for half in halves:
            self.batches[half] = None
        for waited_for, _ in self._flushes:
            if batch in waited_for:
                waited_for.discard(batch)
                waited_for.update(halves)
