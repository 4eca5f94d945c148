"""Send queues: what was cut for each partition and is not settled, and how sending it goes."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING

from sequitur.kafka.record_batch import NO_STAMP, Stamp

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sequitur.base.retry import Backoff
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.batching.route import PartitionQueue
    from sequitur.producer.delivery.sequencer import Sequencer, Slot


class SendQueue:
    """Hold the batches of one partition from their cut until they are settled.

    Batches that have no sequence numbers yet wait here, oldest first; the sequencer holds those
    that have. Only the methods of this class write its fields.
    """

    __slots__ = (
        "_active_at_s",
        "_failures",
        "_halved",
        "_inherited",
        "_is_recovering",
        "_retry_at_s",
        "_trouble",
        "_waiting",
        "accumulated",
        "inherited_from",
        "partition",
        "sequencer",
        "topic",
    )

    def __init__(
        self,
        accumulated: PartitionQueue,
        sequencer: Sequencer[Batch],
        *,
        now_s: float = 0.0,
        inherited_from: Stamp = NO_STAMP,
    ) -> None:
        self.topic = accumulated.topic
        self.partition = accumulated.partition
        self.accumulated = accumulated
        self.sequencer = sequencer
        self.inherited_from = inherited_from
        self._waiting: deque[Batch] = deque()
        self._inherited: list[Batch] = []
        self._halved: list[Batch] = []
        self._failures = 0
        self._retry_at_s = 0.0
        self._trouble = ""
        self._active_at_s = now_s
        self._is_recovering = False

    # Batches without numbers.

    @property
    def has_unnumbered(self) -> bool:
        """Whether any batch has no numbers yet, cut or not."""
        return bool(self._waiting) or self.accumulated.has_batch

    @property
    def is_empty(self) -> bool:
        return self.sequencer.is_empty and not self.has_unnumbered

    @property
    def first_waiting(self) -> Batch | None:
        """The oldest batch that was cut and has no numbers yet."""
        return self._waiting[0] if self._waiting else None

    @property
    def inherited(self) -> Sequence[Batch]:
        """Batches without numbers that a former life left, until `resolve_inherited`.

        They may be in the log: another process may hold a copy of the journal. No batch of the
        partition gets numbers before that is known.
        """
        return self._inherited

    def wait(self, batch: Batch) -> None:
        self._waiting.append(batch)

    def inherit(self, batch: Batch) -> None:
        """Let a batch wait that a former life left without numbers."""
        self._waiting.append(batch)
        self._inherited.append(batch)

    def resolve_inherited(self, found: Collection[Batch]) -> list[Batch]:
        """Take out and return the inherited batches that the log has; the others may be sent."""
        self._inherited.clear()
        persisted = [batch for batch in self._waiting if batch in found]
        for batch in persisted:
            self._waiting.remove(batch)
        return persisted

    def number(self, batch: Batch) -> Slot[Batch]:
        """Give a batch its numbers; it is held until the journal has them."""
        return self.sequencer.admit(batch, batch.count, held=True)

    def number_first(self) -> Slot[Batch]:
        """Give the oldest waiting batch its numbers, as `number` does."""
        return self.number(self._waiting.popleft())

    def pop_unnumbered(self, accepted_until_s: float = inf) -> Batch | None:
        """Take out the oldest batch without numbers, if it was accepted until then."""
        if self._waiting and self._waiting[0].accepted_at_s <= accepted_until_s:
            return self._waiting.popleft()
        return self.accumulated.pop(accepted_until_s)

    # Batches with numbers.

    def replace(self, slot: Slot[Batch], halves: tuple[Batch, Batch]) -> None:
        if slot.batch.journaled is not None:
            self._halved.append(slot.batch)
            for half in halves:
                half.whole = slot.batch
        self.sequencer.replace(slot, [(half, half.count) for half in halves])

    def take_halved(self) -> list[Batch]:
        """Take out the batches that were halved while the journal still holds them whole."""
        halved, self._halved = self._halved, []
        return halved

    def return_halved(self, batch: Batch) -> None:
        """Take back a batch from `take_halved`: the journal did not take its halves."""
        self._halved.append(batch)

    # How sending goes.

    @property
    def failures(self) -> int:
        return self._failures

    @property
    def retry_at_s(self) -> float:
        """When the next attempt may be made, on the event loop's clock."""
        return self._retry_at_s

    @property
    def trouble(self) -> str:
        """What went wrong last, for the reasons of outcomes; empty after a success."""
        return self._trouble

    @property
    def active_at_s(self) -> float:
        """When the broker last answered for the partition, on the event loop's clock."""
        return self._active_at_s

    @property
    def is_recovering(self) -> bool:
        """Whether `Recovery` works on its identity and numbers; nothing is sent meanwhile."""
        return self._is_recovering

    def note_trouble(self, trouble: str) -> None:
        self._trouble = trouble

    def note_answer(self, now_s: float) -> None:
        """Take note that the broker has answered for the partition."""
        self._active_at_s = now_s

    def note_success(self, now_s: float) -> None:
        self._failures = 0
        self._trouble = ""
        self._active_at_s = now_s

    def back_off(self, backoff: Backoff, random: float, now_s: float) -> float:
        """Count a failed attempt, and return how many seconds to wait before the next."""
        self._failures += 1
        wait_s = backoff.delay_ms(self._failures, random) / 1000
        self._retry_at_s = now_s + wait_s
        return wait_s

    def begin_recovery(self) -> None:
        self._is_recovering = True

    def end_recovery(self) -> None:
        self._is_recovering = False


class SendQueues:
    """The send queues of all partitions, and which of them may have something to send.

    What changes that wakes the queue: a durable round, an answer, the end of a wait. The sender
    takes the queue, and wakes it again if it found a batch.
    """

    __slots__ = ("_by_accumulated", "_woken", "are_woken")

    def __init__(self) -> None:
        self.are_woken = asyncio.Event()
        self._by_accumulated: dict[PartitionQueue, SendQueue] = {}
        self._woken: dict[SendQueue, None] = {}

    def __iter__(self) -> Iterator[SendQueue]:
        return iter(self._by_accumulated.values())

    def of(self, accumulated: PartitionQueue) -> SendQueue:
        """Return the queue that the batches of a partition go to."""
        return self._by_accumulated[accumulated]

    def add(self, queue: SendQueue) -> None:
        self._by_accumulated[queue.accumulated] = queue

    def remove(self, queue: SendQueue) -> None:
        """Remove the queue of a partition that is gone."""
        del self._by_accumulated[queue.accumulated]

    def wake(self, queue: SendQueue) -> None:
        """Have the sender look whether a queue has something to send."""
        self._woken[queue] = None
        self.are_woken.set()

    def wake_all(self) -> None:
        self._woken.update(dict.fromkeys(self))
        self.are_woken.set()

    def take_woken(self) -> Iterable[SendQueue]:
        """Take out the queues to be looked at."""
        woken, self._woken = self._woken, {}
        return woken
