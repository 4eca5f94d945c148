"""Slots: batches with their numbers, in their order, and the gap where numbers are lost.

Part of the sequencer's state machine, and as pure: no I/O and no clock. `delivery.sequencer` tells
how the two work together, and the words.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

from sequitur.kafka.record_format import MAX_SEQUENCE, following

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Doubt(enum.Enum):
    """Whether an attempt under a slot's number may be in the log without an answer that said so.

    Sending it again makes `ASKED` and `SEARCHED` doubts `POSSIBLE` again; another number, `NONE`.
    """

    NONE = enum.auto()
    POSSIBLE = enum.auto()
    ASKED = enum.auto()
    """Likewise, though the broker was asked for it since it was last sent."""
    SEARCHED = enum.auto()
    """Likewise, though the log was searched for it since."""
    ABSENT = enum.auto()
    """It is surely not, nor will it be, since a batch before it is not."""


@dataclass(slots=True, eq=False)
class Slot(Generic[BatchT]):
    """A batch that has its sequence numbers."""

    batch: BatchT  # what the sequencer carries; it never looks into it
    count: int  # how many sequence numbers it takes
    base_sequence: int
    identity: Identity  # the producer id and epoch they belong to
    state: State = State.READY  # READY or WAITING
    attempts: int = 0  # how often it was sent, under any number
    doubt: Doubt = Doubt.NONE
    # whether no unsettled slot was before it when it was last sent. If one was, an out-of-order
    # answer says nothing of this slot itself
    sent_as_head: bool = False
    # whether it must not be sent yet: the journal does not hold it under this number
    held: bool = False
    # the id of its topic when it was first sent, of the attempts that may be in the log; None if
    # not known
    topic_id: bytes | None = None

    @property
    def last_sequence(self) -> int:
        """The last number it takes."""
        return following(self.base_sequence, self.count - 1)

    @property
    def possibly_appended(self) -> bool:
        """Whether an attempt under this number may be in the log."""
        return self.doubt is not Doubt.NONE and self.doubt is not Doubt.ABSENT

    def note_asked(self, how: Doubt) -> None:
        """Take note that the broker was asked for it (`ASKED`), or the log `SEARCHED`."""
        if self.possibly_appended and self.doubt is not Doubt.SEARCHED:
            self.doubt = how

    def refute(self) -> None:
        """Take note that no attempt of before is in the log."""
        if self.possibly_appended:
            self.doubt = Doubt.NONE


class NumberedSlots(Generic[BatchT]):
    """Number batches, and keep their slots in order: the window, and the backlog behind it."""

    __slots__ = (
        "_confirmed",
        "_gap",
        "_leading",
        "backlog",
        "identity",
        "next_sequence",
        "slots",
        "unknown",
    )

    def __init__(self, identity: Identity, *, next_sequence: int, confirmed: bool) -> None:
        self.identity = identity
        self.next_sequence = next_sequence
        self.slots: list[Slot[BatchT]] = []
        self.backlog: deque[Slot[BatchT]] = deque()
        self.unknown = False
        self._confirmed = confirmed
        self._leading = identity
        # Index of the first stranded slot; None while there is no gap in front of any.
        self._gap: int | None = None

    @property
    def leading(self) -> Identity:
        """The identity of the first of all slots: the broker is asked what it holds of it."""
        return self._leading

    @property
    def takes_numbers(self) -> bool:
        """Whether a number given now is likely to be the one that the batch is sent under."""
        return not self.unknown and self._gap is None and not self.identity.is_provisional

    @property
    def is_empty(self) -> bool:
        """Whether all batches with numbers are settled."""
        return not self.slots and not self.backlog

    @property
    def pending(self) -> int:
        """How many batches have numbers and are not settled."""
        return len(self.slots) + len(self.backlog)

    def __iter__(self) -> Iterator[Slot[BatchT]]:
        """Give all slots, in the order of their numbers."""
        return chain(self.slots, self.backlog)

    def admit(self, batch: BatchT, count: int, *, held: bool = False) -> Slot[BatchT]:
        """Give a new batch its numbers, behind all that have theirs."""
        assert 1 <= count <= MAX_SEQUENCE
        slot = Slot(batch, count, self.next_sequence, self.identity, held=held)
        self.next_sequence = following(self.next_sequence, count)
        self.backlog.append(slot)
        self._update_leading()
        return slot

    def recover(
        self, batch: BatchT, count: int, base_sequence: int, identity: Identity
    ) -> Slot[BatchT]:
        """Take over a batch that got its numbers in a former life, and may have been sent then."""
        slot = Slot(batch, count, base_sequence, identity, doubt=Doubt.POSSIBLE)
        self.backlog.append(slot)
        self._update_leading()
        self.unknown = True
        return slot

    def begin(self, identity: Identity) -> None:
        """Go on under the identity that the broker gave, in place of a provisional one."""
        assert self.identity.is_provisional
        self.next_sequence = 0
        for slot in self:
            if slot.identity == self.identity:
                self._renumber(slot, identity)
        self.identity = identity
        self._update_leading()

    def clear(self) -> None:
        """Forget all batches: nothing more will be sent."""
        self.slots.clear()
        self.backlog.clear()
        self._gap = None
        self._update_leading()
        self.unknown = False

    def _is_stranded(self, index: int) -> bool:
        return self._gap is not None and index >= self._gap

    def _open_gap(self, index: int) -> None:
        self._gap = index if self._gap is None else min(self._gap, index)

    def _remove(self, index: int) -> None:
        del self.slots[index]
        if self._gap is not None and index < self._gap:
            self._gap -= 1
        self._update_leading()

    def _remove_first(self, count: int) -> None:
        """Remove so many slots, the first of all."""
        in_window = min(count, len(self.slots))
        del self.slots[:in_window]
        for _ in range(count - in_window):
            self.backlog.popleft()
        self._update_leading()

    def _renumber(self, slot: Slot[BatchT], identity: Identity) -> None:
        slot.identity = identity
        slot.base_sequence = self.next_sequence
        self.next_sequence = following(self.next_sequence, slot.count)
        slot.doubt = Doubt.NONE

    def _update_leading(self) -> None:
        """Take note of the identity of the first of all slots: a new one is not confirmed yet."""
        first = next(iter(self), None)
        leading = self.identity if first is None else first.identity
        if leading != self._leading:
            self._leading = leading
            self._confirmed = False
            self.unknown = first is not None and first.possibly_appended
