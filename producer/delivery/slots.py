"""What a sequencer works with: sequence numbers, slots, and the verdicts on them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sequitur.kafka.record_format import following

if TYPE_CHECKING:
    from sequitur.kafka.identity import Identity

BatchT = TypeVar("BatchT")


class State(enum.Enum):
    """Whether a slot is to be sent or was sent."""

    READY = enum.auto()
    """To be sent, for the first time or again."""
    WAITING = enum.auto()
    """Sent, and not answered yet."""


class Verdict(enum.Enum):
    """What follows for a slot from its answer."""

    PERSISTED = enum.auto()
    """Settled: in the log. The slot is gone."""
    RETRY = enum.auto()
    """To be sent again under the same number."""
    RENEW = enum.auto()
    """Its number will never be accepted; to be sent again after a renewal."""
    SPLIT = enum.auto()
    """Too large: `replace` it by its halves, or `drop` it if it is a single record."""
    REFUSED = enum.auto()
    """Settled: refused for good, and not in the log. The slot is gone."""
    LOST = enum.auto()
    """Settled: refused now, but an earlier attempt may be in the log. The slot is gone."""


@dataclass(slots=True, eq=False)
class Slot(Generic[BatchT]):
    """A batch that has its sequence numbers."""

    batch: BatchT  # what the sequencer carries; it never looks into it
    count: int  # how many sequence numbers it takes
    base_sequence: int
    identity: Identity  # the producer id and epoch they belong to
    state: State = State.READY  # READY or WAITING
    attempts: int = 0  # how often it was sent, under any number
    # whether an attempt under this number may be in the log without an answer that said so
    possibly_appended: bool = False
    # whether it is surely not in the log, since a batch before it is not
    known_absent: bool = False
    # whether no unsettled slot was before it when it was last sent. If one was, an out-of-order
    # answer says nothing of this slot itself
    sent_as_head: bool = False
    # whether it must not be sent yet: the journal does not hold it under this number
    held: bool = False
    searched: bool = False  # whether the log was searched for it since it was last sent
    # whether the broker was asked for it, or the log searched, since it was last sent
    asked: bool = False
    # the id of its topic when it was first sent, of the attempts that may be in the log; None if
    # not known
    topic_id: bytes | None = None

    @property
    def last_sequence(self) -> int:
        """The last number it takes."""
        return following(self.base_sequence, self.count - 1)
