"""One round: what becomes durable together, and the frames that say what changed.

`delivery.rounds` makes them, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from sequitur.producer.journal.frames import (
    Ack,
    Acks,
    Drop,
    Frame,
    Number,
    Numbered,
    Position,
    Renewal,
    Restamp,
    Waiting,
)
from sequitur.producer.kafka.record_batch import Stamp

if TYPE_CHECKING:
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.send_queue import SendQueue
    from sequitur.producer.delivery.slots import Slot

    SlotStamp: TypeAlias = tuple[SendQueue, Slot[Batch], Stamp]

NO_OFFSET: Final = -1


@dataclass(slots=True)
class Mark:
    """How a batch ended."""

    batch: Batch
    offset: int = NO_OFFSET
    reason: str | None = None


@dataclass(slots=True)
class Round:
    """What becomes durable together.

    Attributes:
        cut: The newest cut that is in this round or one before.
        is_cut: Whether it was made for it.
        fresh: The batches cut for it, with their slots.
        waiting: The batches cut for it that have no numbers yet.
        pieces: What was added to batches that grow.
        is_part: Whether it counts only once a later one, that `ends_parts`, is there.
        ends_parts: Whether those before it count with it.
        called: Batches that the journal held without numbers, and now with them.
        positions: Source positions that cover them.
        frames: What is appended before the batches.
        batches: What the journal does not hold yet.
        restamped: What it holds, and will hold under another number.
        before: The numbers under which it held the latter.
        marks: How other batches ended.
        renewed: The partitions whose renewal is in it.
        replaced: Batches whose halves are among `batches`.
    """

    cut: int
    is_cut: bool = False
    fresh: list[tuple[SendQueue, Slot[Batch]]] = field(default_factory=list)
    waiting: list[Batch] = field(default_factory=list)
    pieces: list[tuple[Batch, Waiting]] = field(default_factory=list)
    is_part: bool = False
    ends_parts: bool = False
    called: list[SlotStamp] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    batches: list[SlotStamp] = field(default_factory=list)
    restamped: list[SlotStamp] = field(default_factory=list)
    before: list[Stamp] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    renewed: list[SendQueue] = field(default_factory=list)
    replaced: list[tuple[SendQueue, Batch]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """About how many bytes there are to encode."""
        batches = sum(slot.batch.size for _, slot, _ in self.batches)
        waiting = sum(batch.size for batch in self.waiting)
        return batches + waiting + sum(len(piece.data) for _, piece in self.pieces)

    @property
    def must_last(self) -> bool:
        """Whether anything waits for it to be on disk."""
        return (
            self.is_cut
            or bool(self.fresh or self.waiting or self.called or self.renewed)
            or any(mark.reason for mark in self.marks)
        )


def renewal(queue: SendQueue, round_: Round, cluster_id: str) -> Renewal:
    """The frame that says under which numbers a queue goes on; noted in the round."""
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


def stamp_of(slot: Slot[Batch]) -> Stamp:
    """The numbers a batch goes by now."""
    return Stamp(slot.identity.producer_id, slot.identity.epoch, slot.base_sequence)


def numbered(called: list[SlotStamp]) -> list[Frame]:
    """The frame that says under which numbers batches go out that waited."""
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
        for queue, slot, stamp in called
    )
    return [Numbered(numbers)] if numbers else []


def frames_of_marks(marks: list[Mark]) -> list[Frame]:
    """The frames that say what became of batches."""
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
        elif batch.waits:
            name = (batch.topic, batch.partition, batch.first_event)
            dropped.setdefault(mark.reason or "", []).append(name)
    drops = [Drop(tuple(names), reason) for reason, names in dropped.items()]
    return [Acks(tuple(acks)), *drops] if acks else [*drops]
