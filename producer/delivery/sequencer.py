"""The sequence numbers of one partition: a pure state machine, no I/O and no clock.

A broker accepts a batch of a producer only if its base sequence follows the last one it has. It
answers a batch that it has already with the offset of the first time. It remembers the last five
batches. Idempotence rests on this machine never breaking these rules:

- At most five batches are in flight. A new one is sent only while none before it is waiting to be
  sent again: nothing overtakes a batch that failed.
- Until the broker has confirmed a first batch under an identity, one batch at a time is in flight.
  A broker that has no state of a producer accepts *any* sequence from it, so a second batch could
  get in before a first that failed.
- A batch is sent again with the sequence it had. That ends only when its number can never be
  accepted any more: it, or one before it, was refused for good, or the broker lost its state. Then
  the batches that are not in the log are renumbered from 0, under a new epoch or producer id that
  fences the old numbers. This is a renewal. It waits until no request is in flight.
- A batch whose earlier answer was lost may be in the log (`Slot.possibly_appended`). If the broker
  then does not recognise it, renumbering could duplicate it. So the broker is asked first for the
  last sequence that it holds of this producer, by DescribeProducers: see `Sequencer.query_due` and
  `on_described`.
- The broker is also asked before such a batch is sent again after a long silence
  (`Sequencer.on_silence`): one that has forgotten the producer would append it once more.

Each slot has the identity that it is numbered under. What a journal held at the start goes on under
the identities of former lives, first and in its order. What is accepted in this life has the
identity of this life, and begins at 0. The window holds slots of one identity at a time: a newer
epoch that gets in fences off the older.

A batch may get its number long before it is sent: the journal keeps it under its number while the
window is full or no broker is there. Such batches are in the *backlog*, behind the window. What a
journal held at the start is there, too, and nobody knows which of it was sent. So the broker is
asked first (`Sequencer.unknown`).

The words:

- A *slot* is a batch that has its sequence.
- The *head* is the first slot that is not settled.
- The slots from the *gap* on are *stranded*: the broker will never accept their numbers.

::

    new --admit--> backlog --window--> IN_FLIGHT --PERSISTED, DUPLICATE--> settled
                  |   ^
     RETRIABLE,   v   | next_to_send
     FORBIDDEN,   READY --(stranded)--> renew() --> READY, renumbered

`NumberedSlots` keeps the slots in order. `Sequencer` has what answers and recoveries do to them.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sequitur.kafka.error_codes import Answer
from sequitur.kafka.record_format import MAX_SEQUENCE, following, reaches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sequitur.kafka.identity import Identity

BatchT = TypeVar("BatchT")


class State(enum.Enum):
    """Whether a slot is to be sent or was sent."""

    READY = enum.auto()
    """To be sent, for the first time or again."""
    IN_FLIGHT = enum.auto()
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
    state: State = State.READY
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
        """Whether a batch that gets its number now is likely to be sent under it."""
        return not self.unknown and self._gap is None and not self.identity.is_provisional

    @property
    def is_empty(self) -> bool:
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


WINDOW: Final = 5


class _Step(enum.Enum):
    """What an answer makes of a slot; see the table below."""

    SETTLE = enum.auto()
    AGAIN = enum.auto()
    AGAIN_POSSIBLY_APPENDED = enum.auto()
    RENEW = enum.auto()
    SPLIT = enum.auto()
    REFUSE = enum.auto()


_HEAD, _BEHIND = True, False

# (answer, was the slot the head) -> step. An out-of-order answer to a slot behind the head says
# nothing of that slot: the head's answer decides.
_TABLE: Final[dict[tuple[Answer, bool], _Step]] = {
    (Answer.PERSISTED, _HEAD): _Step.SETTLE,
    (Answer.PERSISTED, _BEHIND): _Step.SETTLE,
    (Answer.DUPLICATE, _HEAD): _Step.SETTLE,
    (Answer.DUPLICATE, _BEHIND): _Step.SETTLE,
    (Answer.RETRIABLE, _HEAD): _Step.AGAIN,
    (Answer.RETRIABLE, _BEHIND): _Step.AGAIN,
    (Answer.MISDATED, _HEAD): _Step.AGAIN,
    (Answer.MISDATED, _BEHIND): _Step.AGAIN,
    (Answer.FORBIDDEN, _HEAD): _Step.AGAIN,
    (Answer.FORBIDDEN, _BEHIND): _Step.AGAIN,
    (Answer.UNFIT, _HEAD): _Step.AGAIN,
    (Answer.UNFIT, _BEHIND): _Step.AGAIN,
    (Answer.UNKNOWN, _HEAD): _Step.AGAIN_POSSIBLY_APPENDED,
    (Answer.UNKNOWN, _BEHIND): _Step.AGAIN_POSSIBLY_APPENDED,
    (Answer.OUT_OF_ORDER, _HEAD): _Step.RENEW,
    (Answer.OUT_OF_ORDER, _BEHIND): _Step.AGAIN,
    (Answer.FORGOTTEN, _HEAD): _Step.RENEW,
    (Answer.FORGOTTEN, _BEHIND): _Step.AGAIN,
    (Answer.FENCED, _HEAD): _Step.RENEW,
    (Answer.FENCED, _BEHIND): _Step.AGAIN,
    (Answer.TOO_LARGE, _HEAD): _Step.SPLIT,
    (Answer.TOO_LARGE, _BEHIND): _Step.SPLIT,
    (Answer.REFUSED, _HEAD): _Step.REFUSE,
    (Answer.REFUSED, _BEHIND): _Step.REFUSE,
}


class Sequencer(NumberedSlots[BatchT]):
    """Decide which slot is sent next, and what each answer makes of its slot."""

    __slots__ = ("_vouched", "_window", "needs_new_id")

    def __init__(
        self,
        identity: Identity,
        *,
        next_sequence: int = 0,
        window: int = WINDOW,
        confirmed: bool = False,
    ) -> None:
        if not 1 <= window <= WINDOW:
            raise ValueError(f"window = {window}: expected 1 to {WINDOW}")
        super().__init__(identity, next_sequence=next_sequence, confirmed=confirmed)
        self.needs_new_id = False
        self._window = window
        # The slot that is next by the broker's own account. If the broker refuses it all the same,
        # its number is given up.
        self._vouched: Slot[BatchT] | None = None

    @property
    def limit(self) -> int:
        return self._window if self._confirmed else 1

    @property
    def query_due(self) -> bool:
        """Whether the broker has to be asked first for the last sequence it holds."""
        return self.unknown or (self._may_renew and self._uncertain)

    @property
    def renewal_due(self) -> bool:
        """Whether to call `renew` now."""
        return not self.unknown and self._may_renew and not self._uncertain

    @property
    def _takes_more(self) -> bool:
        return (
            self._gap is None
            and not self._leading.is_provisional
            and len(self.slots) < self.limit
            and all(slot.state is State.IN_FLIGHT for slot in self.slots)
        )

    @property
    def _may_renew(self) -> bool:
        # Slots before the gap are still good under the old numbers, and go first.
        return self._gap == 0 and all(slot.state is State.READY for slot in self.slots)

    @property
    def _uncertain(self) -> bool:
        return (bool(self.slots) and self.slots[0].possibly_appended) or any(
            slot.possibly_appended and slot.identity != self._leading for slot in self.backlog
        )

    def next_to_send(self) -> Slot[BatchT] | None:
        """Return the slot to be sent next, in order; None if none may be sent now."""
        if self.unknown:
            return None
        end = len(self.slots) if self._gap is None else self._gap
        for slot in self.slots[: min(end, self.limit)]:
            if slot.state is State.READY:
                return None if slot.held else slot
        if self.backlog and self._takes_more:
            first = self.backlog[0]
            return first if first.identity == self._leading and not first.held else None
        return None

    def sent(self, slot: Slot[BatchT]) -> None:
        """Take note that a slot is about to be written to the broker."""
        assert slot is self.next_to_send()
        if self.backlog and slot is self.backlog[0]:
            self.slots.append(self.backlog.popleft())
        slot.state = State.IN_FLIGHT
        slot.attempts += 1
        if slot.possibly_appended:
            slot.doubt = Doubt.POSSIBLE
        slot.sent_as_head = slot is self.slots[0]

    def on_answer(self, slot: Slot[BatchT], answer: Answer) -> Verdict:
        """Take the answer to a slot's last attempt."""
        assert slot.state is State.IN_FLIGHT
        index = self.slots.index(slot)
        slot.state = State.READY
        step = _TABLE[answer, slot.sent_as_head]
        if step is _Step.SETTLE:
            self._confirmed = True
            self._remove(index)
            return Verdict.PERSISTED
        if step is _Step.SPLIT and slot.possibly_appended:
            # Halves of a batch that may be in the log could duplicate it: ask the broker first.
            step = _Step.RENEW
        if step is _Step.REFUSE:
            self._open_gap(index)
            self._remove(index)
            return self._verdict_on_dropped(slot, index)
        if step in (_Step.SPLIT, _Step.RENEW):
            self._open_gap(index)
            if not slot.possibly_appended:
                self._note_absence(index)
            self.needs_new_id |= answer is Answer.FENCED
            return Verdict.SPLIT if step is _Step.SPLIT else Verdict.RENEW
        if step is _Step.AGAIN_POSSIBLY_APPENDED and slot.doubt is not Doubt.ABSENT:
            slot.doubt = Doubt.POSSIBLE
        return Verdict.RETRY if not self._is_stranded(index) else Verdict.RENEW

    def drop(self, slot: Slot[BatchT]) -> Verdict:
        """Give up a slot that is not in flight: REFUSED if it cannot be in the log, else LOST."""
        assert slot.state is State.READY
        if slot in self.slots:
            index = self.slots.index(slot)
            self._open_gap(index)
            self._remove(index)
            return self._verdict_on_dropped(slot, index)
        self.backlog.remove(slot)
        self._open_gap(len(self.slots))
        self._update_leading()
        return Verdict.LOST if slot.possibly_appended else Verdict.REFUSED

    def replace(self, slot: Slot[BatchT], parts: list[tuple[BatchT, int]]) -> None:
        """Put the parts of a split batch in its place; the renewal numbers them."""
        index = self.slots.index(slot)
        assert self._is_stranded(index)
        assert not slot.possibly_appended
        assert sum(count for _, count in parts) == slot.count
        self.slots[index : index + 1] = [
            Slot(batch, count, slot.base_sequence, slot.identity, attempts=slot.attempts)
            for batch, count in parts
        ]

    def on_described(self, last_sequence: int | None) -> list[Slot[BatchT]]:
        """Take the broker's answer to what it holds of this producer."""
        assert self.query_due
        if last_sequence is None:
            return []
        self._note_asked()
        persisted = []
        for slot in self:
            if not (slot.identity == self._leading and slot.possibly_appended):
                break
            if not reaches(last_sequence, slot.last_sequence):
                break
            persisted.append(slot)
        if self.unknown:
            self.unknown = False
            self._remove_first(len(persisted))
            return persisted
        self._remove_first(len(persisted))
        if self.slots and self._vouched is not self.slots[0]:
            self._continue_from(following(last_sequence, 1))
        else:
            for slot in self.slots:
                slot.refute()
        return persisted

    def on_searched(self, found: Collection[Slot[BatchT]], *, numbers_hold: bool = True) -> None:
        """Take the result of a search of the log: it holds these slots, and none of the others.

        A broker that knows nothing of this producer accepts any number, so the others are sent as
        they are. If an older request still reaches it, one of the two is a duplicate to it.
        """
        assert self.query_due
        vouched = self._vouched
        self._note_asked()
        self._confirmed = False
        before = 0
        for slot in self:
            if slot not in found:
                break
            before += 1
        self._remove_first(before)
        if before < len(found):
            # A slot is in the log behind one that is not: the numbers cannot be kept.
            self._open_gap(0)
            self.slots = [slot for slot in self.slots if slot not in found]
            self.backlog = deque(slot for slot in self.backlog if slot not in found)
        self._note_searched(self._leading if numbers_hold else None)
        if not numbers_hold:
            self.unknown = False
            if any(slot.identity != self.identity for slot in self):
                self._open_gap(0)
        elif self.unknown:
            self.unknown = False
        elif self._gap == 0 and self.slots and vouched is not self.slots[0]:
            self._continue_from(self.slots[0].base_sequence)
        else:
            for slot in self:
                slot.refute()
        self._update_leading()

    def trust(self) -> None:
        """Send again without knowing what is in the log, and rely on the broker's state."""
        self._note_asked()
        self.unknown = False

    def renew(self, identity: Identity) -> None:
        """Go on under another identity: renumber from 0 what is not in the log."""
        assert self.renewal_due
        assert identity != self.identity
        self.identity = identity
        self.next_sequence = 0
        self._gap = None
        self.needs_new_id = False
        for slot in self:
            self._renumber(slot, identity)
        self._update_leading()

    def on_silence(self) -> None:
        """Take note that the broker was silent for so long that it may have forgotten the producer.

        It would append again what it already has, so it is asked first for what may be in the log.
        """
        if not self.slots:
            self._confirmed = False
        if all(slot.state is State.READY for slot in self.slots):
            # Also what was not sent in this life: what a former life sent may have arrived since.
            self.unknown |= any(
                slot.possibly_appended and slot.identity == self._leading for slot in self
            )

    def require_query(self) -> bool:
        """Have the broker asked before sending again, or the log searched."""
        self.unknown |= all(slot.state is State.READY for slot in self.slots)
        return self.unknown

    def _note_searched(self, holds: Identity | None) -> None:
        """Doubt of the others only what a request under the identity that holds may still bring."""
        for slot in self:
            if slot.identity == holds:
                slot.note_asked(Doubt.SEARCHED)
            else:
                slot.refute()

    def _note_asked(self) -> None:
        for slot in self:
            slot.note_asked(Doubt.ASKED)

    def _continue_from(self, sequence: int) -> None:
        """Close the gap: the broker will accept this number.

        The old numbers are kept as far as possible, since a request whose connection broke may
        still reach the broker: under the old numbers it is a duplicate.
        """
        self._gap = None
        self._vouched = self.slots[0]
        for index, slot in enumerate(self.slots):
            if slot.base_sequence != sequence:
                self._open_gap(index)
                if index == 0:  # it is never accepted, and so nothing that was sent of it can be
                    for stranded in self.slots:
                        stranded.refute()
                return
            sequence = following(slot.last_sequence, 1)
        behind = self.backlog[0] if self.backlog else None
        if behind and behind.identity == self._leading and behind.base_sequence != sequence:
            self._open_gap(len(self.slots))

    def _verdict_on_dropped(self, slot: Slot[BatchT], index: int) -> Verdict:
        if slot.possibly_appended:
            return Verdict.LOST
        self._note_absence(index)
        return Verdict.REFUSED

    def _note_absence(self, index: int) -> None:
        # What was before these is surely not in the log, so none of them can be: the broker
        # confirmed this identity before they were sent, and accepts none out of order.
        for slot in self.slots[index:]:
            slot.doubt = Doubt.ABSENT
