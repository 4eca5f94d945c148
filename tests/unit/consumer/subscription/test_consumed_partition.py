"""A partition as it is read and acked: what is not there is acked, bytes are counted once."""

from __future__ import annotations

import numpy as np
import pytest

from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.partitions import (
    WORTH_A_SEEK,
    ConsumedPartition,
    PartitionCursor,
)
from sequitur.consumer.subscription.redeliveries import Redeliveries, RedeliverySpan
from sequitur.errors import AckBeyondEndError, MarkDeleteBackError
from tests.support.cursors import state_of

IDENTITY = CursorIdentity("billing", "orders", 0)


def test_gaps_are_acked_as_absent() -> None:
    """Offsets that reading has jumped over hold nothing; so do those before where it has got to."""
    part = ConsumedPartition.begin(IDENTITY, 10)
    assert part.read(10, range(13, 14), 5)
    assert part.read(14, range(16, 17), 5)
    assert not part.read(17, range(20, 20))
    assert part.end == 20
    assert list(part.cursor.acked_ranges()) == [(14, 16), (17, 20)]
    assert (part.cursor.mark_delete, part.cursor.read_position) == (12, 20)
    assert part.cursor.counts.absent == 8
    assert part.ack([13])
    assert part.ack([16])
    assert part.cursor.mark_delete == 19


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param([7], id="one"),
        pytest.param([3, 4, 5], id="in a row"),
        pytest.param([9, 3, 4], id="a few"),
        pytest.param([3, 4, 6], id="almost in a row"),
        pytest.param([*range(60, 20, -3)], id="many"),
    ],
)
def test_several_acks_count_each_once_and_no_other(offsets: list[int]) -> None:
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.know_end(100)
    assert part.ack(offsets) == len(offsets)
    acked = {one for first, stop in part.cursor.acked_ranges() for one in range(first, stop)}
    assert acked == set(offsets)
    assert part.cursor.counts.consumed == len(offsets)
    assert part.ack(offsets) == 0
    with pytest.raises(AckBeyondEndError):
        part.ack([*offsets, 100])


def test_what_was_deleted_before_it_was_acked_is_lost() -> None:
    part = ConsumedPartition.begin(IDENTITY, 10)
    part.know_end(40)
    part.cursor.ack_range(12, 15, end=40)
    assert not part.read(10, range(20, 20), is_deleted=True)
    assert part.read(20, range(22, 23), 5)
    counts = part.cursor.counts
    assert (counts.lost, counts.absent, counts.consumed, counts.repeated) == (7, 2, 3, 0)
    assert part.cursor.stats(40).to_document()["lostAtMost"] == 7


def test_what_is_read_again_is_no_repeated_ack() -> None:
    """A second life reads the gaps behind a hole again, and counts nothing of them."""
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.read(0, range(2, 3), 5)
    part.read(3, range(8, 9), 5)
    part.ack([8])
    again = ConsumedPartition(part.cursor.copy(), part.sizes, end=9)
    assert again.cursor.read_position == 2
    assert again.read(2, range(2, 3), 5)
    assert not again.read(3, range(8, 9), 5)  # it is acked
    assert again.cursor.counts.repeated == 0
    assert again.cursor.counts.absent == 7


def test_bytes_are_counted_once() -> None:
    """What an earlier life has counted is not counted again; what is acked falls away."""
    part = ConsumedPartition.begin(IDENTITY, 0)
    for offset in range(4):
        part.read(offset, range(offset, offset + 1), 100)
    part.count_sizes()
    assert part.sizes == CountedSizes(0, (4,), (400,))
    again = ConsumedPartition(part.cursor.copy(), part.sizes, end=4)
    for offset in range(6):
        again.read(offset, range(offset, offset + 1), 100)
    again.count_sizes()
    assert again.sizes.size_from(0) == 600
    again.ack_cumulative(4)
    assert again.sizes == CountedSizes(5, (6,), (50 * 2,))


def test_bytes_of_what_is_half_new_are_counted_by_its_share() -> None:
    """A fetch that an earlier life saw the begin of: whole bytes, and none without a size."""
    part = ConsumedPartition(Cursor(IDENTITY), CountedSizes(0, (2,), (7,)), end=3)
    part.read(0, range(3), 100)
    part.read(3, range(3, 5))
    part.count_sizes()
    assert part.sizes == CountedSizes(0, (2, 5), (7, 33))
    assert all(isinstance(one, int) for one in part.sizes.sizes)


def test_a_refused_ack_changes_nothing() -> None:
    """A repeated ack is counted."""
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.know_end(5)
    part.know_end(3)
    before = state_of(part.cursor)
    with pytest.raises(AckBeyondEndError):
        part.ack([5])
    with pytest.raises(AckBeyondEndError):
        part.ack_cumulative(5)
    assert (part.end, state_of(part.cursor)) == (5, before)
    assert part.ack([1])
    assert not part.ack([1])
    assert part.ack_cumulative(2) == 2
    assert (part.cursor.counts.consumed, part.cursor.counts.repeated) == (3, 1)


def test_copied_cursor_is_of_its_own() -> None:
    """A copy is equal, and neither changes with the other."""
    cursor = Cursor(IDENTITY)
    cursor.ack_offsets(np.arange(1, 9_000, 2), end=10_000)
    cursor.ack_absent(0, 1, end=10_000)
    before = state_of(cursor)
    copied = cursor.copy()
    assert state_of(copied) == before
    copied.ack_cumulative(5_000, end=10_000)
    assert state_of(cursor) == before
    cursor.ack(9_500, end=10_000)
    assert not copied.is_acked(9_500)


def test_a_copy_is_as_of_now() -> None:
    """Of its own partition; acks that follow do not change what is being written."""
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.read(0, range(1), 5)
    part.read(1, range(1, 2), 7)
    part.count_sizes()
    part.read(2, range(2, 3), 11)
    part.count_sizes()
    held = part.copy()
    part.ack([0])
    assert held.cursor.identity == IDENTITY
    assert (held.cursor.committed_offset, part.cursor.committed_offset) == (0, 1)
    assert held.sizes == CountedSizes(0, (2, 3), (12, 11))


def test_a_message_that_is_read_again_changes_nothing() -> None:
    part = ConsumedPartition.begin(IDENTITY, 0)
    found = []
    for first, offset in ((0, 0), (0, 0), (1, 4), (5, 5)):
        part.read(first, range(offset, offset + 1), 5)
        found.append((part.cursor.read_position, part.cursor.counts.absent))
    assert found == [(1, 0), (1, 0), (5, 3), (6, 3)]


def test_cumulative_ack_of_what_was_passed_over_acks_nothing() -> None:
    """A message was out when its time to live ended: to ack it is no mistake of the caller's."""
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.know_end(20)
    part.pass_over(10, start=0)
    assert part.ack_cumulative(3) == 0
    assert part.ack_cumulative(9) == 0
    assert part.cursor.counts.repeated == 2
    assert part.ack_cumulative(14) == 5
    assert part.ack_cumulative(3) == 0
    for acked in (10, 12):
        with pytest.raises(MarkDeleteBackError):
            part.ack_cumulative(acked)


def test_cumulative_ack_goes_back_where_nothing_was_passed_over() -> None:
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.know_end(20)
    part.ack_cumulative(9)
    with pytest.raises(MarkDeleteBackError):
        part.ack_cumulative(0)


@pytest.mark.promise("sub-deleted-then-passed-over")
def test_what_was_deleted_and_not_read_is_lost_when_it_is_passed_over() -> None:
    """What was read waits here, and is skipped; so is what is there still."""
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.know_end(20)
    assert part.read(0, range(4)) == [range(4)]
    part.ack([1])
    part.ack([6])
    assert part.pass_over(12, start=9) == 4
    counts = part.cursor.counts
    assert (counts.lost, counts.consumed, part.cursor.committed_offset) == (4, 8, 12)
    assert part.pass_over(14, start=9) == 0
    assert part.read(12, range(14, 15)) == [range(14, 15)]
    assert part.cursor.counts.lost == 4


@pytest.mark.promise("sub-hole-reopened")
def test_what_is_acked_far_ahead_is_not_read() -> None:
    """Reading goes on at what is left; what was passed weighs as much, and is no absence."""
    end = 3 * WORTH_A_SEEK
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.know_end(end)
    part.cursor.ack_range(1, end - 1, end=end)
    assert part.read(0, range(100), 1_000) == [range(1)]
    part.count_sizes()
    assert part.pass_acked(100) == end - 1
    assert part.cursor.read_position == end - 1
    assert part.read(end - 1, range(end - 1, end), 10) == [range(end - 1, end)]
    part.count_sizes()
    assert part.pass_acked(end) is None
    assert part.cursor.counts.absent == 0
    assert part.sizes.stop == end
    assert part.sizes.size_from(0) == pytest.approx(10 * end)


def test_a_short_span_is_read_over() -> None:
    """Also at the end of the partition: there is nothing behind it."""
    part = ConsumedPartition.begin(IDENTITY, 0)
    part.know_end(WORTH_A_SEEK)
    part.cursor.ack_range(1, WORTH_A_SEEK, end=WORTH_A_SEEK)
    assert part.pass_acked(1) is None
    part.know_end(WORTH_A_SEEK + 1)
    part.cursor.ack_range(1, WORTH_A_SEEK + 1, end=WORTH_A_SEEK + 1)
    assert part.pass_acked(1) == WORTH_A_SEEK + 1


def test_how_often_messages_were_delivered_is_kept_with_the_cursor() -> None:
    """In this life those that are out, and in the former ones those that were not read since."""
    earlier = Redeliveries((RedeliverySpan(2, 9, 3),))
    part = ConsumedPartition(Cursor(IDENTITY), CountedSizes(), redeliveries=earlier, end=20)
    part.read(0, range(5), 5)
    part.ack([0])
    kept = part.copy(Redeliveries((RedeliverySpan(0, 5, 1),)))
    assert kept.redeliveries.spans == ((1, 5, 1), (5, 9, 3))
    assert part.copy().redeliveries.spans == ((5, 9, 3),)


def test_sizes_of_a_new_cursor_begin_where_it_does() -> None:
    held = PartitionCursor.begin(IDENTITY, 7)
    assert (held.cursor.committed_offset, held.sizes) == (7, CountedSizes(7))
