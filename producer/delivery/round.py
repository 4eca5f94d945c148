"""One round: what becomes durable together, and the frames that say so to the journal.

`delivery.rounds` makes rounds, one after the other; `delivery.round_writer` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from sequitur.kafka.record_batch import Stamp
from sequitur.producer.journal.frames import (
    Ack,
    Acks,
    BatchFrame,
    Drop,
    Frame,
    Number,
    Numbered,
    Position,
    Renewal,
    Restamp,
    Waiting,
)

if TYPE_CHECKING:
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.send_queue import SendQueue
    from sequitur.producer.delivery.slots import Slot

    SlotStamp: TypeAlias = tuple[SendQueue, Slot[Batch], Stamp]

NO_OFFSET: Final = -1


@dataclass(slots=True)
class Mark:
    """How a batch ended: in the log at an offset, or given up for a reason."""

    batch: Batch
    offset: int = NO_OFFSET
    reason: str | None = None


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
    is_part: bool = False  # whether it counts only once a later round, that `ends_parts`, is there
    ends_parts: bool = False  # whether the parts before it count with it
    # batches that the journal holds without numbers, and gets the numbers of
    numbered: list[SlotStamp] = field(default_factory=list)
    # batches that it holds with numbers, and gets other timestamps of
    redated: list[SlotStamp] = field(default_factory=list)
    # source positions that cover its events
    positions: list[Position] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)  # what is appended before the batches
    # the batches with numbers that the journal does not hold yet
    batches: list[SlotStamp] = field(default_factory=list)
    # batches that it holds, and will hold under other numbers
    restamped: list[SlotStamp] = field(default_factory=list)
    before: list[Stamp] = field(default_factory=list)  # the numbers under which it holds those
    marks: list[Mark] = field(default_factory=list)  # how other batches ended
    renewed: list[SendQueue] = field(default_factory=list)  # the partitions whose renewal is in it
    # batches whose halves are among `batches`
    halved: list[tuple[SendQueue, Batch]] = field(default_factory=list)

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
        batch.dated,
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
        elif batch.waits:
            name = (batch.topic, batch.partition, batch.first_event)
            dropped.setdefault(mark.reason or "", []).append(name)
    drops = [Drop(tuple(names), reason) for reason, names in dropped.items()]
    return [Acks(tuple(acks)), *drops] if acks else [*drops]
