"""What a sequencer works with: sequence numbers, the identity they count under, and slots."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from sequitur.producer.kafka.identity import Identity

MAX_SEQUENCE: Final = 2**31 - 1
BatchT = TypeVar("BatchT")


def following(sequence: int, count: int) -> int:
    """The sequence `count` after `sequence`; 0 follows 2^31 - 1."""
    return (sequence + count) & MAX_SEQUENCE


def reaches(last: int, sequence: int) -> bool:
    """Whether `sequence` is `last` or before it, on the circle from 0 to 2^31 - 1."""
    return (last - sequence) & MAX_SEQUENCE < MAX_SEQUENCE // 2


class State(enum.Enum):
    """Where a slot is."""

    READY = enum.auto()
    """To be sent, for the first time or again."""
    WAITING = enum.auto()
    """Sent; its answer is waited for."""


class Verdict(enum.Enum):
    """What an answer makes of its slot."""

    PERSISTED = enum.auto()
    """Settled: in the log. The slot is gone."""
    RETRY = enum.auto()
    """It will be sent again under the same number."""
    RENEW = enum.auto()
    """Its number is lost; it will be sent again after a renewal."""
    SPLIT = enum.auto()
    """Refused as it is: halve it (`replace`), or refuse it (`drop`) when it is a single record."""
    REFUSED = enum.auto()
    """Settled: refused for good, and not in the log. The slot is gone."""
    LOST = enum.auto()
    """Settled: refused now, but an earlier attempt may have got in. The slot is gone."""


@dataclass(slots=True, eq=False)
class Slot(Generic[BatchT]):
    """A batch that has its sequence.

    Attributes:
        batch: What the sequencer carries; it never looks into it.
        count: How many sequence numbers it takes.
        base_sequence: The first of them.
        identity: What they count under.
        state: READY or WAITING.
        attempts: How often it was sent, under any number.
        maybe: Whether an attempt under this number may have been appended unknown to us.
        barred: Whether it surely is not in the log, since a batch before it surely is not.
        sent_as_head: Whether nothing unsettled was before it when it was last sent; if there was,
            a broken order says nothing of this slot itself.
        sought: Whether the log was read for it since it was last sent.
        held: Whether it must not be sent yet: it is not in the journal under this number.
    """

    batch: BatchT
    count: int
    base_sequence: int
    identity: Identity
    state: State = State.READY
    attempts: int = 0
    maybe: bool = False
    barred: bool = False
    sent_as_head: bool = False
    held: bool = False
    sought: bool = False

    @property
    def last_sequence(self) -> int:
        """The last number it takes."""
        return following(self.base_sequence, self.count - 1)
