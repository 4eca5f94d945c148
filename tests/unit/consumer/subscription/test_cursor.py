"""A cursor: what an ack changes, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from sequitur.consumer.subscription.cursor import LARGEST_OFFSET, AckCounts, Cursor, CursorIdentity
from sequitur.errors import AckBeyondEndError, CursorError, MarkDeleteBackError

if TYPE_CHECKING:
    from collections.abc import Callable

IDENTITY = CursorIdentity("billing", "orders", 3)
END = 100


def _cursor(*ranges: tuple[int, int], start: int = 0) -> Cursor:
    cursor = Cursor(IDENTITY, start=start)
    for first, stop in ranges:
        cursor.ack_range(first, stop, end=END)
    return cursor


def test_a_new_cursor_has_acked_nothing_from_its_start_on() -> None:
    cursor = _cursor(start=40)
    assert (cursor.mark_delete, cursor.committed_offset, cursor.read_position) == (39, 40, 40)
    assert cursor.backlog(END) == 60
    assert cursor.counts == AckCounts()


def test_acks_in_order_move_the_mark_delete_position() -> None:
    cursor = _cursor()
    assert [cursor.ack(offset, end=END) for offset in range(3)] == [1, 1, 1]
    assert (cursor.mark_delete, cursor.acked_range_count) == (2, 0)


def test_the_position_moves_over_the_range_that_it_reaches() -> None:
    cursor = _cursor((1, 3), (4, 6))
    assert cursor.mark_delete == -1
    cursor.ack(0, end=END)
    assert (cursor.mark_delete, list(cursor.acked_ranges())) == (2, [(4, 6)])


def test_ranges_that_touch_become_one() -> None:
    """What lies between two ranges joins them."""
    cursor = _cursor((2, 4), (6, 8), (4, 6))
    assert list(cursor.acked_ranges()) == [(2, 8)]


def test_acks_of_what_is_acked_are_counted_and_ignored() -> None:
    """Before the mark-delete position, within a range, and in part."""
    cursor = _cursor((0, 3), (5, 8))
    assert cursor.ack(1, end=END) == 0
    assert cursor.ack(6, end=END) == 0
    assert cursor.ack_range(2, 6, end=END) == 2
    assert cursor.counts == AckCounts(consumed=8, repeated=4)
    assert (cursor.mark_delete, cursor.acked_range_count) == (7, 0)


def test_a_cumulative_ack_takes_the_ranges_before_it() -> None:
    """It counts only what was not acked, and moves over the range that it touches."""
    cursor = _cursor((2, 4), (6, 8), (9, 12), (20, 30))
    assert cursor.ack_cumulative(8, end=END) == 5
    assert (cursor.mark_delete, list(cursor.acked_ranges())) == (11, [(20, 30)])


@pytest.mark.promise("sub-deleted-then-passed-over")
@pytest.mark.parametrize(
    ("stop", "start", "keeps_read", "lost", "consumed"),
    [
        (20, 0, False, 0, 18),  # all of it is there
        (20, 10, False, 8, 10),  # deleted and not acked
        (20, 10, True, 5, 13),  # what was read before offset 5 is kept by its job
        (20, 30, False, 18, 0),  # a log that begins behind what is passed over
        (3, 30, False, 3, 0),  # the rest is deleted, too, and not passed over yet
    ],
)
def test_what_was_deleted_counts_as_lost_when_it_is_passed_over(
    stop: int, start: int, *, keeps_read: bool, lost: int, consumed: int
) -> None:
    cursor = _cursor((3, 5))
    cursor.seek(5, end=END)
    added = cursor.pass_over(stop, start=start, end=END, keeps_read=keeps_read)
    assert added == lost + consumed
    assert (cursor.counts.lost, cursor.counts.consumed - 2) == (lost, consumed)
    assert cursor.committed_offset == max(stop, 5)
    assert cursor.pass_over(stop, start=start, end=END, keeps_read=keeps_read) == 0
    assert cursor.counts.repeated == 0


def test_a_cumulative_ack_into_a_range_moves_to_its_end() -> None:
    cursor = _cursor((5, 10))
    assert cursor.ack_cumulative(6, end=END) == 5
    assert (cursor.mark_delete, cursor.acked_range_count) == (9, 0)


def test_the_same_cumulative_ack_again_is_ignored() -> None:
    cursor = _cursor()
    assert [cursor.ack_cumulative(5, end=END) for _ in range(3)] == [6, 0, 0]
    assert cursor.counts == AckCounts(consumed=6, repeated=2)


def test_a_mark_delete_that_goes_back_is_refused_by_name() -> None:
    """The message has both positions; nothing is changed."""
    cursor = _cursor((0, 10))
    with pytest.raises(MarkDeleteBackError, match=r"billing on orders-3.* 8 .* 9"):
        cursor.ack_cumulative(8, end=END)
    assert (cursor.mark_delete, cursor.counts) == (9, AckCounts(consumed=10))


@pytest.mark.parametrize(
    "ack",
    [
        lambda cursor: cursor.ack(END, end=END),
        lambda cursor: cursor.ack_range(5, END + 1, end=END),
        lambda cursor: cursor.ack_cumulative(END, end=END),
        lambda cursor: cursor.ack_absent(5, END + 1, end=END),
        lambda cursor: cursor.ack_offsets(np.array([5, END]), end=END),
        lambda cursor: cursor.ack_ranges(np.array([5]), np.array([END + 1]), end=END),
        lambda cursor: cursor.seek(END + 1, end=END),
    ],
)
def test_an_ack_beyond_the_end_is_refused_by_name(ack: Callable[[Cursor], object]) -> None:
    """The last offset is one less than the end; nothing is changed."""
    cursor = _cursor((7, 9))
    with pytest.raises(AckBeyondEndError, match=f"{END + 1}.*ends before {END}"):
        ack(cursor)
    assert list(cursor.acked_ranges()) == [(7, 9)]
    assert (cursor.mark_delete, cursor.read_position) == (-1, 0)
    assert cursor.counts == AckCounts(consumed=2)


_EMPTY = "a range of offsets to ack is empty: give a stop above its first"


@pytest.mark.parametrize(
    ("ack", "text"),
    [
        (lambda cursor: cursor.ack(-1, end=END), "first -1 is not an offset"),
        (
            lambda cursor: cursor.ack_range(5, 5, end=END),
            "the offsets to ack, from 5 to before 5, are .* above 5",
        ),
        (
            lambda cursor: cursor.ack_range(6, 5, end=END),
            "the offsets to ack, from 6 to before 5, are .* above 6",
        ),
        (lambda cursor: cursor.ack_cumulative(-1, end=END), "offset -1 is not an offset"),
        (lambda cursor: cursor.ack(3, end=-1), "end -1 is not an offset"),
        (
            lambda cursor: cursor.ack(3, end=LARGEST_OFFSET + 1),
            f"end {LARGEST_OFFSET + 1} is not an offset",
        ),
        (
            lambda cursor: cursor.ack_absent(3, 3, end=END),
            "the offsets to ack, from 3 to before 3, are .* above 3",
        ),
        (
            lambda cursor: cursor.ack_offsets(np.array([-1, 3]), end=END),
            "first -1 is not an offset",
        ),
        (lambda cursor: cursor.ack_offsets(np.array([np.iinfo(np.int64).max, 3]), end=END), _EMPTY),
        (
            lambda cursor: cursor.ack_offsets(np.array([], dtype=np.int64), end=-1),
            "end -1 is not an offset",
        ),
        (lambda cursor: cursor.ack_ranges(np.array([3, 9]), np.array([5, 9]), end=END), _EMPTY),
        (lambda cursor: cursor.seek(-1, end=END), "offset -1 is not an offset"),
        (lambda cursor: cursor.nth_unacked(0, end=END), "there is no message number 0"),
    ],
)
def test_what_is_no_offset_is_a_mistake(ack: Callable[[Cursor], object], text: str) -> None:
    """Negative offsets, empty ranges, and more than 63 bits, by name; nothing is changed."""
    cursor = _cursor((7, 9))
    with pytest.raises(ValueError, match=f"^{text}$") as caught:
        ack(cursor)
    assert not isinstance(caught.value, CursorError)
    assert list(cursor.acked_ranges()) == [(7, 9)]
    assert cursor.counts == AckCounts(consumed=2)


@pytest.mark.parametrize(("start", "largest"), [(-1, False), (LARGEST_OFFSET, True)])
def test_a_start_is_an_offset(start: int, *, largest: bool) -> None:
    if largest:
        assert Cursor(IDENTITY, start=start).committed_offset == start
    else:
        with pytest.raises(ValueError, match="not an offset"):
            Cursor(IDENTITY, start=start)


@pytest.mark.parametrize(("subscription", "topic", "partition"), [("", "t", 0), ("s", "", 0)])
def test_a_cursor_has_names(subscription: str, topic: str, partition: int) -> None:
    with pytest.raises(ValueError, match="have names"):
        CursorIdentity(subscription, topic, partition)


def test_a_partition_is_not_negative() -> None:
    with pytest.raises(ValueError, match="-2"):
        CursorIdentity("s", "t", -2)


def test_absent_offsets_are_acked_and_not_consumed() -> None:
    """A transaction's marker at 2 lets the position move over it; it is no message."""
    cursor = _cursor((0, 2), (3, 5))
    assert cursor.ack_absent(2, 3, end=END) == 1
    assert cursor.mark_delete == 4
    assert cursor.ack_absent(2, 3, end=END) == 0
    assert cursor.counts == AckCounts(consumed=4, absent=1, repeated=1)


def test_acks_in_a_batch_may_be_in_any_order_and_doubled() -> None:
    """Each offset counts once, the others as repeats."""
    cursor = _cursor((0, 2))
    assert cursor.ack_offsets(np.array([9, 4, 1, 5, 4, 2]), end=END) == 4
    assert (cursor.mark_delete, list(cursor.acked_ranges())) == (2, [(4, 6), (9, 10)])
    assert cursor.counts == AckCounts(consumed=6, repeated=2)


def test_ranges_in_a_batch_may_overlap() -> None:
    """And reach before the mark-delete position."""
    cursor = _cursor((0, 4))
    firsts, stops = np.array([10, 2, 12, 20]), np.array([15, 6, 18, 21])
    assert cursor.ack_ranges(firsts, stops, end=END) == 2 + 8 + 1
    assert (cursor.mark_delete, list(cursor.acked_ranges())) == (5, [(10, 18), (20, 21)])
    assert cursor.counts == AckCounts(consumed=15, repeated=2 + 3)


def test_an_empty_batch_changes_nothing() -> None:
    """A step may ack nothing of a partition."""
    cursor = _cursor((3, 4))
    assert cursor.ack_offsets(np.array([], dtype=np.int64), end=END) == 0
    assert cursor.counts == AckCounts(consumed=1)


def test_reading_goes_on_behind_what_was_skipped() -> None:
    """A cumulative ack beyond the read position takes it along, an individual one does not."""
    cursor = _cursor((50, 60))
    assert cursor.read_position == 0
    cursor.ack_cumulative(9, end=END)
    assert cursor.read_position == 10
    cursor.seek(30, end=END)
    cursor.ack_cumulative(19, end=END)
    assert cursor.read_position == 30


def test_seek_and_rewind_stay_behind_the_mark_delete_position() -> None:
    cursor = _cursor((0, 10))
    cursor.seek(END, end=END)
    assert cursor.read_position == END
    cursor.seek(3, end=END)
    assert cursor.read_position == 10
    cursor.seek(40, end=END)
    cursor.rewind()
    assert cursor.read_position == 10


def test_what_is_acked_is_said_of_one_and_of_many() -> None:
    """A restart skips what is acked, a batch at a time."""
    cursor = _cursor((0, 2), (4, 6), (8, 9))
    expected = [True, True, False, False, True, True, False, False, True, False]
    assert [cursor.is_acked(offset) for offset in range(10)] == expected
    assert cursor.acked_among(np.arange(10)).tolist() == expected
    assert cursor.acked_among(np.array([9, 0, 5])).tolist() == [False, True, True]
    assert cursor.acked_among(np.array([], dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("first", "stop", "expected"),
    [
        (0, 12, [(2, 4), (6, 8), (9, 12)]),
        (3, 7, [(3, 4), (6, 7)]),
        (4, 6, []),
        (5, 9, [(6, 8)]),
        (0, 2, []),
        (20, 22, [(20, 22)]),
    ],
)
def test_what_is_not_acked_comes_in_ranges(
    first: int, stop: int, expected: list[tuple[int, int]]
) -> None:
    assert list(_cursor((0, 2), (4, 6), (8, 9)).unacked_ranges(first, stop)) == expected


def test_the_nth_message_that_is_not_acked() -> None:
    """Pulsar's skip counts the messages that are not acked, and acks up to the last of them."""
    cursor = _cursor((0, 2), (4, 6), (8, 9))
    found = [cursor.nth_unacked(count, end=11) for count in range(1, 8)]
    assert found == [2, 3, 6, 7, 9, 10, None]


def test_a_backlog_before_what_is_acked_is_refused() -> None:
    """The end is older than the cursor, or another topic's: the figure would be a wrong one."""
    cursor = _cursor((0, 2), (40, 50))
    assert cursor.backlog(50) == 38
    for figure in (cursor.backlog, cursor.stats):
        with pytest.raises(AckBeyondEndError, match="before 50, but the partition ends before 49"):
            figure(49)


def test_a_cursor_names_itself() -> None:
    """In a log it says whose it is and how many ranges it has."""
    assert repr(_cursor((0, 2), (4, 6))) == "<Cursor billing on orders-3: 1 + 1 ranges>"
