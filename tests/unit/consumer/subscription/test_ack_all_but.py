"""A step acks all that was read but what is held; and a copy of a cursor is a cursor of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from tests.support.cursors import state_of
from tests.support.examples import examples

IDENTITY = CursorIdentity("billing", "orders", 3)
_SPAN = 60
_OFFSETS = st.integers(0, _SPAN)


def _held(*offsets: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(offsets, dtype=np.int64)


def test_what_is_held_is_not_acked() -> None:
    """Of ten that were read, 3 and 7 are held: the position stops before 3."""
    cursor = Cursor(IDENTITY)
    assert cursor.ack_all_but(_held(7, 3), end=10) == 8
    assert (cursor.mark_delete, list(cursor.acked_ranges())) == (2, [(4, 7), (8, 10)])
    assert cursor.backlog(10) == 2


def test_what_goes_out_later_is_acked_later() -> None:
    """The next step holds 7 still, and what it read since."""
    cursor = Cursor(IDENTITY)
    cursor.ack_all_but(_held(3, 7), end=10)
    assert cursor.ack_all_but(_held(7, 11), end=12) == 2
    assert (cursor.mark_delete, list(cursor.acked_ranges())) == (6, [(8, 11)])
    assert (cursor.counts.consumed, cursor.counts.absent) == (10, 0)


def test_what_is_held_on_stays_unacked() -> None:
    """The first offset that is not acked is held still, and so is all of a next step."""
    cursor = Cursor(IDENTITY)
    cursor.ack_all_but(_held(3), end=10)
    assert cursor.ack_all_but(_held(3, 10), end=11) == 0
    assert (cursor.mark_delete, list(cursor.acked_ranges())) == (2, [(4, 10)])


def test_what_was_deleted_unread_is_counted_as_lost_step_by_step() -> None:
    """Of what Kafka does not hold it is a part, and no count is above that of what is acked."""
    cursor = Cursor(IDENTITY)
    cursor.ack_all_but(_held(), end=10, absent=5, lost=2)
    cursor.ack_all_but(_held(), end=14, absent=3, lost=1)
    cursor.ack_all_but(_held(15), end=16, absent=9, lost=9)
    counts = cursor.counts
    assert (counts.consumed, counts.absent, counts.lost) == (5 + 1, 3 + 2, 2 + 1 + 1)


def test_nothing_is_taken_back() -> None:
    """A message that expired while it was held stays acked, and is no repeated ack."""
    cursor = Cursor(IDENTITY)
    cursor.ack_cumulative(4, end=10)
    assert cursor.ack_all_but(_held(3, 7), end=10) == 4
    assert cursor.mark_delete == 6
    assert cursor.counts.repeated == 0


def test_absent_offsets_are_counted_apart() -> None:
    """Of the eight, two are markers; never more than were acked now."""
    cursor = Cursor(IDENTITY)
    cursor.ack_all_but(_held(3, 7), end=10, absent=2)
    assert (cursor.counts.consumed, cursor.counts.absent) == (6, 2)
    cursor.ack_all_but(_held(7), end=10, absent=5)
    assert (cursor.counts.consumed, cursor.counts.absent) == (6, 3)


def test_an_end_that_is_no_offset_is_a_mistake() -> None:
    cursor = Cursor(IDENTITY)
    with pytest.raises(ValueError, match="end -1 is not an offset"):
        cursor.ack_all_but(_held(), end=-1)
    assert state_of(cursor) == state_of(Cursor(IDENTITY))


@settings(max_examples=examples(1.0))
@given(
    start=st.integers(0, 9),
    steps=st.lists(st.tuples(st.sets(_OFFSETS), _OFFSETS, st.integers(0, 5)), max_size=5),
)
def test_all_but_against_a_set(start: int, steps: list[tuple[set[int], int, int]]) -> None:
    """Whatever was acked before, and whatever lies before the start or beyond the end."""
    cursor, acked = Cursor(IDENTITY, start=start), set(range(start))
    absent = 0
    for held, end, gone in steps:
        new = set(range(end)) - held - acked
        assert cursor.ack_all_but(_held(*held), end=end, absent=gone) == len(new)
        acked |= new
        absent += min(gone, len(new))
        first = next(offset for offset in range(_SPAN + 2) if offset not in acked)
        assert cursor.committed_offset == first
        offsets = np.arange(_SPAN + 2)
        assert set(offsets[cursor.acked_among(offsets)].tolist()) == acked
    assert cursor.counts.absent == absent
    assert cursor.counts.consumed == len(acked) - start - absent
    assert cursor.counts.repeated == 0


@settings(max_examples=examples(1.0))
@given(held=st.sets(_OFFSETS), later=st.lists(_OFFSETS, min_size=1), which=st.booleans())
def test_a_copy_changes_alone(held: set[int], later: list[int], *, which: bool) -> None:
    """Acks of one are none of the other, whichever goes on."""
    cursor = Cursor(IDENTITY, start=2)
    cursor.ack_all_but(_held(*held), end=_SPAN)
    copy, before = cursor.copy(), state_of(cursor)
    assert state_of(copy) == before
    changed, kept = (copy, cursor) if which else (cursor, copy)
    for offset in later:
        changed.ack(offset, end=_SPAN + 1)
    changed.ack_absent(_SPAN + 1, _SPAN + 5, end=_SPAN + 5)
    changed.seek(_SPAN + 3, end=_SPAN + 5)
    assert state_of(kept) == before
    assert state_of(changed) != before
