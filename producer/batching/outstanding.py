"""The batches that are accepted and not settled, and those who wait for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.buffer_budget import BufferBudget


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
        """Hold a batch that a former life accepted; it gets its bytes whatever is left of them."""
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
        """Take note that the events of a batch have their outcomes."""
        batch.completed = True
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
        """Hold the halves of a batch in its place."""
        del self.batches[batch]
        for half in halves:
            self.batches[half] = None
        for waited_for, _ in self._flushes:
            if batch in waited_for:
                waited_for.discard(batch)
                waited_for.update(halves)
