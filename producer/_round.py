"""One round: what becomes durable together, and the frames that say what changed.

`_rounds` makes them, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from producer._batch import Stamp
from producer._journal_codec import Ack, Acks, Frame, Identity, Position, Renewal, Restamp

if TYPE_CHECKING:
    from producer._lane import Batch, Lane
    from producer._slot import Slot

    Numbered: TypeAlias = tuple[Lane, Slot[Batch], Stamp]

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
    fresh: list[tuple[Lane, Slot[Batch]]] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    batches: list[Numbered] = field(default_factory=list)
    restamped: list[Numbered] = field(default_factory=list)
    before: list[Stamp] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    renewed: list[Lane] = field(default_factory=list)
    replaced: list[tuple[Lane, Batch]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """About how many bytes there are to encode."""
        return sum(slot.batch.size for _, slot, _ in self.batches)

    @property
    def must_last(self) -> bool:
        """Whether anything waits for it to be on disk."""
        return self.is_cut or bool(self.renewed) or any(mark.reason for mark in self.marks)


def renewal(lane: Lane, round_: Round) -> Renewal:
    """The frame that says under which numbers a lane goes on; noted in the round."""
    restamps = []
    for slot in lane.sequencer:
        batch, stamp = slot.batch, stamp_of(lane, slot)
        if batch.journaled is None:
            continue
        if batch.journaled != stamp:
            old = batch.journaled
            restamps.append(
                Restamp(
                    lane.topic,
                    lane.partition,
                    old.producer_id,
                    old.epoch,
                    old.base_sequence,
                    stamp.base_sequence,
                    slot.count,
                )
            )
        round_.restamped.append((lane, slot, stamp))
        round_.before.append(batch.journaled)
        batch.journaled = stamp
    identity = lane.sequencer.identity
    return Renewal(
        Identity(identity.producer_id, identity.epoch),
        tuple(restamps),
        ((lane.topic, lane.partition),),
    )


def stamp_of(lane: Lane, slot: Slot[Batch]) -> Stamp:
    """The numbers a batch goes by now."""
    identity = lane.sequencer.identity
    return Stamp(identity.producer_id, identity.epoch, slot.base_sequence)


def frames_of_marks(marks: list[Mark]) -> list[Frame]:
    acks = []
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
    return [Acks(tuple(acks))] if acks else []
