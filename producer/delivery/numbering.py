"""Which batches get their sequence numbers now, and which wait for them.

A batch that cannot be sent soon is journaled without numbers (see `Waiting` and `Numbered` among
the frames), and gets them once it can be. Nothing overtakes a batch of its partition that waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sequitur.producer.delivery.round import stamp_of

if TYPE_CHECKING:
    from sequitur.base.process import StampClock
    from sequitur.producer.batching.accumulator import Cuts
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.round import Round, SlotStamp
    from sequitur.producer.delivery.send_queue import SendQueue
    from sequitur.producer.delivery.slots import Slot

_AHEAD: Final = 3
"""How many windows of batches of a partition have numbers: those in flight, and the next."""
_AHEAD_LARGE: Final = 16
"""The same if the next batch is large: it would not grow while it waits, and cost a sync."""
_LARGE_BYTES: Final = 64 << 10


class Numbering:
    """Give batches their sequence numbers."""

    def __init__(self, cuts: Cuts, window: int, clock: StampClock, *, journals: bool) -> None:
        self._cuts = cuts
        self._clock = clock
        self._window = window
        self._journals = journals
        self._waiting: dict[SendQueue, None] = {}
        self._growing: dict[SendQueue, None] = {}
        self._numbered: dict[Batch, tuple[SendQueue, Slot[Batch]]] = {}
        self._redated: dict[Batch, tuple[SendQueue, Slot[Batch]]] = {}

    @property
    def has_numbered(self) -> bool:
        """Whether batches got numbers or timestamps that the journal does not know of."""
        return bool(self._numbered or self._redated)

    def redate(self, queue: SendQueue, slot: Slot[Batch], now_ms: int) -> None:
        """Give a batch with numbers another timestamp; it is held until the journal has it."""
        slot.batch.redate(now_ms)
        if self._journals:
            slot.held = True
            self._redated[slot.batch] = queue, slot

    def add_waiting(self, queue: SendQueue) -> None:
        """Number the batches of a queue that wait, once they can be sent."""
        self._waiting[queue] = None

    def add_growing(self, queue: SendQueue) -> None:
        """Cut the open batch of a queue, once it can be sent or an event was added to it."""
        self._growing[queue] = None

    def has_window(self, queue: SendQueue) -> bool:
        """Return whether fewer batches of a queue have numbers than may be in flight."""
        return queue.sequencer.pending < self._window

    def is_sent_soon(self, queue: SendQueue, batch: Batch) -> bool:
        """Return whether a batch that is cut now could be sent soon.

        The size of an open batch is 0 until it is sealed, so it counts as small here: a large batch
        that is still open waits as soon as a small one does, and may grow meanwhile.
        """
        if not self._journals:
            return True
        return queue.first_waiting is None and self._takes_more(queue, batch)

    def place(self, round_: Round, queue: SendQueue, batch: Batch, *, wait: bool) -> None:
        """Put a batch that was cut into a round: with numbers if it can be sent soon."""
        if not wait and self.is_sent_soon(queue, batch):
            round_.fresh.append((queue, queue.number(batch)))
        else:
            queue.wait(batch)
            self._waiting[queue] = None
            round_.waiting.append(batch)

    def number_waiting(self) -> None:
        """Give numbers to the waiting batches that can be sent now."""
        for queue in list(self._waiting):
            while (batch := queue.first_waiting) is not None and batch.kept:
                if not self._takes_more(queue, batch):
                    break
                if not batch.dated:
                    batch.last_ms = self._clock.now_ms()
                self._numbered[batch] = queue, queue.number_first()
            if queue.first_waiting is None:
                del self._waiting[queue]
        for queue in list(self._growing):
            accumulated = queue.accumulated
            if accumulated.open is None or not accumulated.is_paused:
                del self._growing[queue]
            elif self.is_sent_soon(queue, accumulated.open):
                del self._growing[queue]
                self._cuts.refill(accumulated)

    def take_numbered(self) -> list[SlotStamp]:
        """Take out the batches that got numbers, for the round that tells the journal."""
        numbered, self._numbered = self._numbered, {}
        return _stamps(numbered)

    def take_redated(self) -> list[SlotStamp]:
        """Take out the batches that got other timestamps, for the round that tells the journal."""
        redated, self._redated = self._redated, {}
        return _stamps(redated)

    def return_numbered(self, numbered: list[SlotStamp]) -> None:
        """Take back what `take_numbered` gave: the journal had no space."""
        self._numbered = {slot.batch: (queue, slot) for queue, slot, _ in numbered} | self._numbered

    def return_redated(self, redated: list[SlotStamp]) -> None:
        """Take back what `take_redated` gave: the journal had no space."""
        self._redated = {slot.batch: (queue, slot) for queue, slot, _ in redated} | self._redated

    def _takes_more(self, queue: SendQueue, batch: Batch) -> bool:
        """Return whether a batch is to have numbers, behind those of its partition that have."""
        sequencer = queue.sequencer
        ahead = _AHEAD if batch.size < _LARGE_BYTES else _AHEAD_LARGE
        return (
            not queue.is_recovering
            and not queue.inherited
            and sequencer.takes_numbers
            and sequencer.pending < ahead * self._window
            # After a failure a partition gets no more in flight, until nothing of it is.
            and (not queue.failures or sequencer.is_empty)
        )


def _stamps(batches: dict[Batch, tuple[SendQueue, Slot[Batch]]]) -> list[SlotStamp]:
    return [
        (queue, slot, stamp_of(slot)) for batch, (queue, slot) in batches.items() if not batch.ended
    ]
