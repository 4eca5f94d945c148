"""What Pulsar's ManagedCursorTest expects of its cursors holds of ours.

Only the figures are Pulsar's. Its entries 1 to n are the offsets 0 to n - 1 here, its "number of
entries" is what is left to read. See `test_more_managed_cursor_cases` for the others, and for those
without a counterpart.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from sequitur.consumer.subscription.cursor import Cursor
from sequitur.errors import MarkDeleteBackError
from tests.support.cursors import MANAGED, Partition, entries_to_read, partition_of


def test_single_deletes_move_the_position_when_it_is_reached() -> None:
    """testSingleDelete: the fourth first; a second delete of the third silently succeeds."""
    partition = partition_of(6)
    positions = []
    for offset in (3, 0, 2, 2, 1, 4):
        partition.delete(offset)
        positions.append(partition.cursor.mark_delete)
    assert positions == [-1, 0, 0, 0, 3, 4]


def test_deleted_entries_are_not_read() -> None:
    """testFilteringReadEntries: what is deleted is neither read nor left to read."""
    partition = partition_of(6)
    seen = [partition.counts]
    assert partition.read(3) == [0, 1, 2]
    seen.append(partition.counts)
    partition.delete(4)
    seen.append(partition.counts)
    assert partition.read(3) == [3, 5]
    seen.append(partition.counts)
    assert seen == [(6, 6), (3, 6), (2, 5), (0, 5)]


def test_reading_goes_on_behind_deleted_entries() -> None:
    """testReadingAllFilteredEntries: the second and third are deleted after the first is read."""
    partition = partition_of(5)
    partition.read(1)
    partition.delete(1, 2)
    assert partition.read(2) == [3, 4]


def test_counting_with_deleted_entries() -> None:
    """testCountingWithDeletedEntries: from the end, from the beginning, and in between."""
    partition = partition_of(8)
    seen = [partition.counts]
    for offsets in ((7,), (0,), (6, 5, 4)):
        partition.delete(*offsets)
        seen.append(partition.counts)
    assert seen == [(8, 8), (7, 7), (6, 6), (3, 3)]


def test_mark_delete_twice() -> None:
    """testMarkDeleteTwice: the second one changes nothing."""
    partition = partition_of(1)
    partition.mark_delete(0)
    partition.mark_delete(0)
    assert partition.cursor.mark_delete == 0


def test_mark_delete_does_not_go_back() -> None:
    """unorderedMarkDelete: the first entry after the second is refused."""
    partition = partition_of(2)
    partition.mark_delete(1)
    with pytest.raises(MarkDeleteBackError):
        partition.mark_delete(0)
    assert partition.cursor.mark_delete == 1


def test_mark_delete_beyond_the_read_position_skips() -> None:
    """markDeleteSkippingMessage: reading goes on behind it."""
    partition = partition_of(4)
    partition.mark_delete(0)
    assert (entries_to_read(partition.cursor, 4), partition.cursor.read_position) == (3, 1)
    assert partition.read(1) == [1]
    partition.mark_delete(3)
    assert (entries_to_read(partition.cursor, 4), partition.cursor.read_position) == (0, 4)


def test_rewind() -> None:
    partition = partition_of(4)
    seen = [partition.counts]
    for offset, count in ((0, 3), (1, 2)):
        partition.mark_delete(offset)
        seen.append(partition.counts)
        assert len(partition.read(10)) == count
        seen.append(partition.counts)
        partition.cursor.rewind()
        seen.append(partition.counts)
    partition.mark_delete(3)
    partition.cursor.rewind()
    seen.append(partition.counts)
    partition.end = 6
    seen.append(partition.counts)
    expected = [(4, 4), (3, 3), (0, 3), (3, 3), (2, 2), (0, 2), (2, 2), (0, 0), (2, 2)]
    assert seen == expected


def test_seek_behind_the_position() -> None:
    """seekPosition4: back to the second entry, which was read; the position stays."""
    partition = partition_of(6)
    partition.mark_delete(0)
    partition.read(2)
    partition.cursor.seek(1, end=6)
    assert (partition.cursor.mark_delete, partition.cursor.read_position) == (0, 1)


@pytest.mark.parametrize("offsets", [(1, 2, 0), (1, 2)])
def test_no_range_is_left_that_touches(offsets: tuple[int, ...]) -> None:
    """testIndividuallyDeletedMessages2 and 3: the first entry joins the others."""
    partition = partition_of(5)
    partition.delete(*offsets)
    if 0 not in offsets:
        partition.mark_delete(0)
    assert partition.cursor.acked_range_count == 0
    assert partition.cursor.mark_delete == 2


@pytest.mark.parametrize("offsets", [(1, 2), (1,)])
def test_mark_delete_takes_the_ranges_before_it(offsets: tuple[int, ...]) -> None:
    partition = partition_of(5)
    partition.delete(*offsets)
    partition.mark_delete(3)
    assert partition.cursor.acked_range_count == 0
    assert partition.cursor.mark_delete == 3


def test_skip_counts_what_is_not_deleted() -> None:
    """testSkipEntriesWithIndividualDeletedMessages: three of five, two of them deleted."""
    partition = partition_of(5)
    partition.delete(1, 3)
    third = partition.cursor.nth_unacked(3, end=5)
    assert third == 4
    partition.mark_delete(third)
    assert partition.counts == (0, 0)
    assert (partition.cursor.read_position, partition.cursor.mark_delete) == (5, 4)


def test_skip_more_than_there_are() -> None:
    """testSkipEntries: of an empty partition, and of more messages than are left."""
    assert partition_of(0).cursor.nth_unacked(1, end=0) is None
    partition = partition_of(8)
    partition.mark_delete(6)
    assert partition.counts == (1, 1)
    assert partition.cursor.nth_unacked(10, end=8) is None


def test_clear_backlog() -> None:
    """testClearBacklog: of three cursors that began one after the other, two are cleared."""
    partitions = [Partition(Cursor(MANAGED, start=start), 3) for start in range(3)]
    assert [partition.counts for partition in partitions] == [(3, 3), (2, 2), (1, 1)]
    for partition in (partitions[0], partitions[2]):
        partition.mark_delete(2)
    assert [partition.counts for partition in partitions] == [(0, 0), (2, 2), (0, 0)]
    for partition in partitions:
        partition.reopen()
    assert [partition.counts for partition in partitions] == [(0, 0), (2, 2), (0, 0)]


def test_the_last_deleted_range() -> None:
    """testGetLastIndividualDeletedRange: two and two, then one more behind them."""
    partition = partition_of(10)
    partition.cursor.ack_offsets(np.array([0, 1, 4, 5]), end=10)
    assert list(partition.cursor.acked_ranges())[-1] == (4, 6)
    partition.delete(7)
    assert list(partition.cursor.acked_ranges())[-1] == (7, 8)


def test_deleted_entries_are_trimmed() -> None:
    """testTrimDeletedEntries: of five entries that were read, the one not deleted is left."""
    partition = partition_of(10)
    partition.delete(0, 1, 4, 5)
    read = np.array([0, 1, 4, 5, 6])
    assert read[~partition.cursor.acked_among(read)].tolist() == [6]


def test_out_of_order_acks() -> None:
    """outOfOrderAcks: the backlog shrinks by one with each, from the fourth back to the first."""
    partition = partition_of(10)
    seen = []
    for offset in (3, 2, 1, 0):
        partition.delete(offset)
        seen.append(partition.cursor.backlog(10))
    assert seen == [9, 8, 7, 6]


@pytest.mark.parametrize("seed", range(5))
def test_random_order_acks(seed: int) -> None:
    partition = partition_of(10)
    seen = []
    for offset in random.Random(seed).sample(range(10), 10):
        partition.delete(offset)
        seen.append(partition.cursor.backlog(10))
    assert seen == list(range(9, -1, -1))
    assert partition.cursor.mark_delete == 9


def test_the_nth_entry() -> None:
    """testGetEntryAfterN, and ...WithIndividualDeletedMessages: asking moves nothing."""
    partition = partition_of(5)
    partition.read(4)
    cursor = partition.cursor
    assert [cursor.nth_unacked(count, end=5) for count in (1, 1, 3, 5, 10)] == [0, 0, 2, 4, None]
    assert (cursor.mark_delete, cursor.read_position) == (-1, 4)
    partition.mark_delete(3)
    assert cursor.nth_unacked(1, end=5) == 4
    partition.mark_delete(4)
    assert cursor.nth_unacked(1, end=5) is None
    deleted = partition_of(5)
    deleted.delete(2, 3)
    assert deleted.cursor.nth_unacked(3, end=5) == 4


def test_deletes_out_of_order_are_stored() -> None:
    partition = partition_of(20)
    partition.delete(2, 5, 7, 8, 9)
    assert partition.cursor.backlog(20) == 15
    partition.reopen()
    assert partition.cursor.backlog(20) == 15
    assert partition.read(20) == [0, 1, 3, 4, 6, *range(10, 20)]
    assert entries_to_read(partition.cursor, 20) == 0
