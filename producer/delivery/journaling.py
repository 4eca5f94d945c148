"""A round, and what the journal is told: the frames of its batches, and of how others ended.

`delivery.rounds` makes rounds, and `delivery.round_writer` writes them, one after the other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from sequitur.kafka.record_batch import Stamp
from sequitur.producer.batching.batch import Dating
from sequitur.producer.journal.frames import (
    Ack,
    Acks,
    BatchFrame,
    Drop,
    Frame,
    Number,
    Numbered,
    Renewal,
    Restamp,
    SourcePosition,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.send_queues import SendQueue
    from sequitur.producer.delivery.sequencer import Slot

    SlotStamp: TypeAlias = tuple[SendQueue, Slot[Batch], Stamp]

NO_OFFSET: Final = -1


@dataclass(slots=True)
class Round:
    """What becomes durable together."""

    cut: int  # the newest cut that is in this round or one before
    is_cut: bool = False  # whether a cut was made for it
    # the batches cut for it that have numbers, with their slots
    fresh: list[tuple[SendQueue, Slot[Batch]]] = field(default_factory=list)
    waiting: list[Batch] = field(default_factory=list)
    # what was added to batches that grow
    pieces: list[tuple[Batch, Waiting]] = field(default_factory=list)
    is_part: bool = False  # whether it counts only once a later round with `ends_parts` is there
    ends_parts: bool = False  # whether the parts before it count with it
    # batches that the journal holds without numbers, and whose numbers it gets
    numbered: list[SlotStamp] = field(default_factory=list)
    # batches that it holds with numbers, and whose new timestamps it gets
    redated: list[SlotStamp] = field(default_factory=list)
    # source positions that cover its events
    positions: list[SourcePosition] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)  # what is appended before the batches
    # those with numbers that the journal does not hold: of `fresh`, by `RoundWriter._fill`
    batches: list[SlotStamp] = field(default_factory=list)
    # batches that it holds, and will hold under other numbers
    restamped: list[SlotStamp] = field(default_factory=list)
    before: list[Stamp] = field(default_factory=list)  # the numbers under which it holds those
    marks: list[Mark] = field(default_factory=list)  # how other batches ended
    renewed: list[SendQueue] = field(default_factory=list)  # the partitions whose renewal is in it
    # batches whose halves are among `batches`
    halved: list[tuple[SendQueue, Batch]] = field(default_factory=list)
    is_written: bool = True  # whether the journal has all of it; else its marks wait for room

    @property
    def size(self) -> int:
        """About how many bytes there are to encode."""
        batches = sum(slot.batch.size for _, slot, _ in self.batches)
        waiting = sum(batch.size for batch in self.waiting)
        return batches + waiting + sum(len(piece.data) for _, piece in self.pieces)

    @property
    def must_last(self) -> bool:
        """Whether it has to be synced: something waits for it to be durable."""
        return (
            self.is_cut
            or bool(self.fresh or self.waiting or self.numbered or self.redated or self.renewed)
            or any(mark.reason for mark in self.marks)
        )


@dataclass(slots=True, eq=False)
class Mark:
    """How a batch ended: in the log at an offset, or given up for a reason (a mark)."""

    batch: Batch
    offset: int = NO_OFFSET
    reason: str | None = None


_MARKS_WAIT_S: Final = 0.05


class JournalUpdates:
    """Collect marks and renewals for the next round.

    A mark says how a batch ended; it may wait a little, for others. A renewal says under which
    identity and numbers a partition goes on; its batches are held until it is durable.
    """

    def __init__(self, identities: Identities, on_due: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._identities = identities
        self._on_due = on_due
        self._marks: list[Mark] = []
        self._after: dict[Batch, tuple[Mark, Callable[[bool], None]]] = {}
        self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._marks_due = False
        self._renewed: dict[SendQueue, None] = {}
        # The batches of parts whose last is not in the journal yet, and whether the parts have all
        # of a batch.
        self._parts: dict[Batch, bool] = {}

    @property
    def is_due(self) -> bool:
        """Whether to make a round for the marks and renewals."""
        return bool(self._renewed) or self._marks_due

    def mark(self, mark: Mark, then: Callable[[bool], None] | None) -> None:
        """Tell the journal how a batch ended; then tell `then` whether the journal surely knows."""
        self._marks.append(mark)
        if then is not None and self._has_ended:
            then(False)
        elif then is not None:
            self._after[mark.batch] = mark, then
            self._flush_marks()
        elif self._timer is None:
            self._timer = self._loop.call_later(_MARKS_WAIT_S, self._flush_marks)

    def renewed(self, queue: SendQueue) -> None:
        """Tell the journal of a partition's identity, and hold its batches until it is durable."""
        for slot in queue.sequencer:
            slot.held = True
        # The order of the latest renewals is the order of their identities.
        self._renewed.pop(queue, None)
        self._renewed[queue] = None
        self._on_due()

    def begin_parts(self, parts: dict[Batch, bool]) -> None:
        """Take note of the batches of a round in parts, and whether the parts have all of each."""
        self._parts = parts

    def end_parts(self) -> list[Batch]:
        """Take note that the last part is in the journal; return the batches that it has whole."""
        parts, self._parts = self._parts, {}
        self._marks_due |= any(mark.batch in parts for mark in self._marks)
        # A batch that grows gets no number yet: else the journal would keep what is added to it as
        # another batch.
        return [batch for batch, is_whole in parts.items() if is_whole]

    def fill(
        self, round_: Round, numbered: list[SlotStamp], redated: list[SlotStamp]
    ) -> list[tuple[SendQueue, Slot[Batch]]]:
        """Put all marks and renewals into a round, and what batches got since they were written."""
        # A batch of a part can be given up only after the last part, which would bring it back.
        round_.marks = [mark for mark in self._marks if mark.batch not in self._parts]
        self._marks = [mark for mark in self._marks if mark.batch in self._parts]
        round_.renewed, self._renewed = list(self._renewed), {}
        self._marks_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in round_.renewed:
            round_.halved += [(queue, batch) for batch in queue.take_halved()]
        round_.frames = frames_of_marks(
            [*round_.marks, *(Mark(batch, reason="halved") for _, batch in round_.halved)]
        )
        # Under the numbers that the journal knows: before a renewal gives them others.
        round_.redated = redated
        known = [(q, s, s.batch.journaled) for q, s, _ in redated if s.batch.journaled is not None]
        round_.frames += frames_of_numbers(known)
        halves: list[tuple[SendQueue, Slot[Batch]]] = []
        for queue in round_.renewed:
            round_.frames.append(renewal(queue, round_, self._identities.cluster_id))
            halves += [(queue, slot) for slot in queue.sequencer.slots if not slot.batch.is_kept]
        round_.numbered = numbered
        round_.frames += frames_of_numbers(numbered)
        return halves

    def take_back(self, round_: Round) -> None:
        """Take back the marks and renewals of a round: the journal had no space."""
        self._marks[:0] = round_.marks
        self._renewed = dict.fromkeys([*round_.renewed, *self._renewed])
        for (_queue, slot, _stamp), before in zip(round_.restamped, round_.before, strict=True):
            slot.batch.journaled = before
        round_.restamped, round_.before = [], []
        for queue, batch in round_.halved:
            queue.return_halved(batch)
        round_.halved = []

    def on_durable(self, round_: Round) -> None:
        """Call the `then` of each mark of a round: it is durable, as far as it is written."""
        for mark in round_.marks:
            after = self._after.pop(mark.batch, None)
            if after is not None:
                after[1](round_.is_written)
        for queue, whole in round_.halved:
            for slot in queue.sequencer:
                if slot.batch.whole is whole:
                    slot.batch.whole = None

    def stop(self) -> list[Frame]:
        """Cancel the timer, and return the frames of the marks that may not be written.

        The marks of a cancelled round are among them: the journal ignores what it knows.
        """
        if self._timer is not None:
            self._timer.cancel()
        return frames_of_marks(self._unsure())

    def end(self, *, is_durable: bool) -> None:
        """Call the `then` of all marks: no more marks become durable."""
        self._has_ended = True
        self._marks = self._unsure()  # `stop` may still write them
        after, self._after = self._after, {}
        for _mark, then in after.values():
            then(is_durable)

    def _unsure(self) -> list[Mark]:
        """Return the marks that may not be written."""
        waited_for = [mark for mark, _ in self._after.values()]
        return list(dict.fromkeys([*waited_for, *self._marks]))

    def _flush_marks(self) -> None:
        self._marks_due = bool(self._marks)
        self._on_due()


def stamp_of(slot: Slot[Batch]) -> Stamp:
    """Return the numbers that a batch has now."""
    return Stamp(slot.identity.producer_id, slot.identity.epoch, slot.base_sequence)


def renewal(queue: SendQueue, round_: Round, cluster_id: str) -> Renewal:
    """Return the frame with the numbers under which a partition goes on; note it in the round."""
    restamps = []
    for slot in queue.sequencer:
        batch, stamp = slot.batch, stamp_of(slot)
        if batch.journaled is None:  # the round has it under its new numbers
            continue
        if batch.journaled != stamp:
            old = batch.journaled
            restamps.append(
                Restamp(
                    queue.topic,
                    queue.partition,
                    old.producer_id,
                    old.epoch,
                    old.base_sequence,
                    stamp.base_sequence,
                    slot.count,
                )
            )
        round_.restamped.append((queue, slot, stamp))
        round_.before.append(batch.journaled)
        batch.journaled = stamp
    return Renewal(
        queue.sequencer.identity,
        tuple(restamps),
        ((queue.topic, queue.partition),),
        cluster_id,
    )


def batch_frame(batch: Batch, stamp: Stamp, data: bytes) -> BatchFrame:
    """Return the frame of a batch with numbers."""
    return BatchFrame(
        batch.topic,
        batch.partition,
        stamp.producer_id,
        stamp.epoch,
        stamp.base_sequence,
        batch.count,
        batch.first_event,
        batch.last_event,
        None,
        batch.last_ms,
        batch.dating is Dating.SENDERS,
        data,
    )


def frames_of_numbers(numbered: list[SlotStamp]) -> list[Frame]:
    """Return the frame with the numbers of batches that waited for them, if there are any."""
    numbers = tuple(
        Number(
            queue.topic,
            queue.partition,
            slot.batch.first_event,
            slot.batch.last_event,
            slot.count,
            stamp.producer_id,
            stamp.epoch,
            stamp.base_sequence,
            slot.batch.last_ms,
        )
        for queue, slot, stamp in numbered
    )
    return [Numbered(numbers)] if numbers else []


def frames_of_marks(marks: list[Mark]) -> list[Frame]:
    """Return the frames that say how batches ended."""
    acks: list[Ack] = []
    dropped: dict[str, list[tuple[str, int, int]]] = {}
    for mark in marks:
        batch, stamp = mark.batch, mark.batch.journaled
        if stamp is not None:
            acks.append(
                Ack(
                    batch.topic,
                    batch.partition,
                    stamp.producer_id,
                    stamp.epoch,
                    stamp.base_sequence,
                    mark.offset,
                    mark.reason,
                )
            )
        elif batch.is_kept:
            name = (batch.topic, batch.partition, batch.first_event)
            dropped.setdefault(mark.reason or "", []).append(name)
    drops = [Drop(tuple(names), reason) for reason, names in dropped.items()]
    return [Acks(tuple(acks)), *drops] if acks else [*drops]
