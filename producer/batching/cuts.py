"""Cuts: taking out the batches of all partitions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sequitur.producer.batching.batch import Batch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from sequitur.kafka.record_batch import Builder
    from sequitur.producer.batching.outstanding import Outstanding
    from sequitur.producer.batching.partition_queue import PartitionQueue

    QueuedBatches: TypeAlias = list[tuple[PartitionQueue, Batch]]


class Cuts:
    """Open and seal batches, say when a cut is due, and make it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        linger_s: float,
        outstanding: Outstanding,
        on_due: Callable[[], None],
        last_event: int = -1,
    ) -> None:
        self.number = 0
        self.last_event = last_event
        self.filled: dict[PartitionQueue, None] = {}
        self.is_full = False
        self.is_ripe = False
        self._loop = loop
        self._linger_s = linger_s
        self._outstanding = outstanding
        self._on_due = on_due
        self._linger: asyncio.TimerHandle | None = None

    def open(self, queue: PartitionQueue, builder: Builder, first_event: int) -> None:
        """Open another batch of a partition."""
        batch = Batch(queue.topic, queue.partition, self._loop.time(), first_event)
        queue.start(batch, builder)
        self._outstanding.add(batch)
        self._fill(queue)

    def resume(self, queue: PartitionQueue) -> None:
        """Add to the open batch again that the last cut left open, if there is one."""
        if queue.is_paused:
            queue.resume()
            self._fill(queue)

    def seal(self, queue: PartitionQueue) -> None:
        """Take no more records into the open batch: it is full."""
        queue.seal()
        self.is_full = True
        self._on_due()

    def ripen(self) -> None:
        """Make a cut due now."""
        self.is_ripe = True
        self._on_due()

    def refill(self, queue: PartitionQueue) -> None:
        """Take a batch that was left open in the next cut, which is due now."""
        self.filled[queue] = None
        self.is_ripe = True

    def close(self, queue: PartitionQueue) -> None:
        """Have the cut that is made now take the open batch, though it might grow."""
        queue.seal()
        self.filled[queue] = None

    def forget(self, queue: PartitionQueue) -> None:
        """Forget a partition that is gone; its batches were taken out."""
        self.filled.pop(queue, None)

    def cut(
        self, last_event: int, grows: Callable[[PartitionQueue, Batch], bool]
    ) -> tuple[QueuedBatches, QueuedBatches]:
        """Take out all batches, those of each partition in their order."""
        batches: QueuedBatches = []
        growing: QueuedBatches = []
        for queue in self.filled:
            if queue.open is not None and grows(queue, queue.open):
                batches += [(queue, batch) for batch in queue.cut_sealed()]
                growing.append((queue, queue.open))
                queue.pause()
            else:
                batches += [(queue, batch) for batch in queue.cut()]
        for _, batch in (*batches, *growing):
            batch.last_event = last_event
        self.last_event = last_event
        self.filled.clear()
        self.is_full = self.is_ripe = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self.number += 1
        return batches, growing

    def _fill(self, queue: PartitionQueue) -> None:
        self.filled[queue] = None
        if self._linger is None:
            self._linger = self._loop.call_later(self._linger_s, self.ripen)
