"""Of Pulsar's ManagedCursorTest: positions, what is stored, and what is read after it.

Only the figures are Pulsar's; see `test_managed_cursor_cases`. These have no counterpart:

* Ledgers, bookies and ZooKeeper, which Kafka has not: closeCursor, repeatCloseCursor,
  persistentMarkDeleteIfCreateCursorLedgerFailed and ...IfSwitchCursorLedgerFailed,
  switchLedgerFailed, readFromClosedLedger, markDeleteWithErrors, markDeleteWithZKErrors,
  markDeleteAcrossLedgers, removeCursorFail, errorCreatingCursor, failDuringRecoveryWithEmptyLedger,
  errorRecoveringCursor and 2 and 3, cursorPersistenceWithLedgerForceRecovery, reopenMultipleTimes,
  leakFailedLedgerOfManageCursor, recoverCursorAheadOfLastPosition,
  cursorNoRolloverIfNoMetadataSession, forceCursorRecovery.
* Reads of a broker, its cache, and who waits for it: readWithCacheDisabled, getEntryDataTwice,
  asyncRead... (four), readEntriesOrWait... (four), cancelReadOperation, readEmptyEntryList,
  opReadEntryRecycle, readNoEntries, estimateEntryCountBySize, applyMaxSizeCap, scan (but for what
  is deleted, which is in testReadEntriesWithSkipDeletedEntries), readEntriesWithSkip and
  ...AndWithSkipConditions.
* findNewestMatching... (25): Kafka finds an offset by time (ListOffsets).
* Batches of several messages in an entry, batchIndex... and deleteBatchedMessageWithEmptyAckSet:
  Kafka has an offset for each.
* Threads and callbacks: asyncMarkDeleteBlocking, cursorPersistenceAsyncMarkDeleteSameThread,
  unorderedAsyncMarkDelete, callbackTimes, concurrentResetCursor, asyncResetCursor.
* When a cursor is stored, which is behind each step here: rateLimitMarkDelete,
  flushCursorAfter... (three).
* A reset makes a new epoch, with new cursors: resetCursor and 1, lastActiveAfterResetCursor.
* Of the subscription, and not of a cursor: removingCursor, deleteCursor, alwaysInactive,
  nonDurableCursorActive, cursorCheckReadPositionChanged.
* Counters that are estimates there: numberOfEntriesInBacklogWithFallback, cursorGetBacklog.
"""

from __future__ import annotations

import numpy as np
import pytest

from sequitur.consumer.subscription.counted_sizes import CountedSizes
from sequitur.consumer.subscription.cursor import Cursor
from sequitur.errors import AckBeyondEndError
from tests.support.cursors import MANAGED, Partition, partition_of


def test_reading_from_an_empty_partition() -> None:
    """readFromEmptyLedger, readTwice: nothing, then what was added, once for each cursor."""
    empty = partition_of(0)
    assert empty.read(10) == []
    one, two = Partition(empty.cursor, 1), partition_of(1)
    assert [one.read(10), one.read(10), two.read(2), two.read(2)] == [[0], [], [0], []]
    assert (one.cursor.mark_delete, one.cursor.read_position) == (-1, 1)


def test_a_cursor_that_begins_at_the_end() -> None:
    """testOpenCursorWithNullInitialPosition, testLazyCursorLedgerCreationForSubscriptionCreation.

    testRecoverCursorAfterResetToLatestForNewEntry and ...ForMultipleEntries: what is added is left.
    """
    for end, added in ((5, 0), (1, 0), (0, 1), (4, 2)):
        partition = Partition(Cursor(MANAGED, start=end), end + added)
        partition.reopen()
        cursor = partition.cursor
        assert (cursor.mark_delete, cursor.read_position) == (end - 1, end)
        assert partition.counts == (added, added)


def test_replay_leaves_out_what_is_deleted() -> None:
    """testReplayEntries: of the first and the third, the third is left behind the second."""
    partition = partition_of(4)
    wanted = np.array([0, 2])
    assert not partition.cursor.acked_among(wanted).any()
    partition.mark_delete(1)
    assert wanted[~partition.cursor.acked_among(wanted)].tolist() == [2]


def test_every_second_entry_deleted_is_stored() -> None:
    partition = partition_of(100)
    partition.delete(*range(0, 100, 2))
    assert partition.cursor.backlog(100) == 50
    assert partition.cursor.acked_range_count == 49
    partition.reopen()
    assert partition.cursor.acked_range_count == 49
    assert partition.cursor.backlog(100) == 50
    assert partition.read(100) == list(range(1, 100, 2))


def test_a_position_that_is_not_there_is_refused() -> None:
    """testInvalidMarkDelete: neither position moves, whichever delete it was."""
    partition = partition_of(20)
    for refused in (partition.mark_delete, partition.delete):
        with pytest.raises(AckBeyondEndError):
            refused(100)
        assert (partition.cursor.mark_delete, partition.cursor.read_position) == (-1, 0)


def test_the_size_of_what_is_left() -> None:
    """testEstimatedUnackedSize: 15 entries of five bytes, the fifth mark-deleted."""
    partition = partition_of(15)
    sizes = CountedSizes().read(15, 15 * 5)
    assert sizes.size_from(partition.cursor.committed_offset) == 75
    partition.mark_delete(4)
    assert sizes.size_from(partition.cursor.committed_offset) == 50


def test_deletes_of_every_third_entry_and_then_of_half() -> None:
    """deleteMessagesCheckhMarkDelete: the positions follow, and both counts."""
    partition = partition_of(1_000)
    cursor = partition.cursor
    partition.delete(*range(0, 1_000, 3))
    assert partition.counts == (666, 666)
    assert (cursor.mark_delete, cursor.read_position) == (0, 1)
    partition.delete(*(offset for offset in range(500) if offset % 3))
    assert partition.counts == (333, 333)
    assert (cursor.mark_delete, cursor.read_position) == (499, 500)


def test_no_range_is_left_when_all_is_deleted() -> None:
    """testConsistencyOfIndividualMessages: one after the other, behind a mark-delete.

    Pulsar's case has a range before the position; such a cursor cannot be made here.
    """
    partition = partition_of(21)
    partition.mark_delete(0)
    partition.delete(*range(1, 21))
    assert (partition.cursor.acked_range_count, partition.cursor.mark_delete) == (0, 20)


def test_what_is_deleted_is_not_counted_among_what_is_read() -> None:
    """testReadEntriesWithSkipDeletedEntries: five, five and the rest of eleven out of twenty."""
    partition = partition_of(20)
    partition.delete(1, 4, 5, 8, 9, 10, 15, 17, 19)
    assert partition.read(5) == [0, 2, 3, 6, 7]
    assert partition.read(5) == [11, 12, 13, 14, 16]
    assert partition.read(100) == [18]
    assert partition.read(1) == []
    assert partition.cursor.read_position == 20


def test_entries_that_are_lost_are_skipped() -> None:
    """testSkipNonRecoverableEntries: they count as deleted; to say it again changes nothing."""
    partition = partition_of(10)
    cursor = partition.cursor
    partition.delete(*partition.read(2))
    assert cursor.mark_delete == 1
    last = partition.read(6)[-1]
    partition.delete(last)
    assert cursor.mark_delete == 1
    for _ in range(2):
        cursor.ack_absent(2, last + 1, end=10)
        assert cursor.mark_delete == last
    assert (cursor.counts.consumed, cursor.counts.absent) == (3, 5)


def test_a_mark_delete_of_the_last_entry_is_stored() -> None:
    """testRecoverCursorWithTerminateManagedLedger, testLazyCursorLedgerCreation.

    Reading goes on behind it, and so does the next mark-delete.
    """
    partition = partition_of(2)
    partition.read(2)
    partition.mark_delete(1)
    partition.reopen()
    assert (partition.cursor.mark_delete, partition.cursor.read_position) == (1, 2)
    more = Partition(partition.cursor, 12)
    more.mark_delete(11)
    more.reopen()
    assert (more.cursor.mark_delete, more.counts) == (11, (0, 0))


def test_cursors_that_began_one_after_the_other() -> None:
    cursors = [Partition(Cursor(MANAGED, start=start), 4) for start in range(5)]
    assert [one.counts for one in cursors] == [(left, left) for left in (4, 3, 2, 1, 0)]
    for one in cursors:
        one.reopen()
    assert [one.counts for one in cursors] == [(left, left) for left in (4, 3, 2, 1, 0)]
    first = cursors[0]
    first.mark_delete(first.read(2)[-1])
    assert first.counts == (2, 2)


def test_what_is_read_is_in_the_backlog() -> None:
    partition = partition_of(4)
    partition.read(2)
    assert partition.counts == (2, 4)
    partition.mark_delete(0)
    assert partition.counts == (2, 3)
    partition.delete(2)
    assert partition.counts == (1, 2)
    partition.mark_delete(3)
    assert partition.counts == (0, 0)


def test_mark_deletes_are_stored() -> None:
    """cursorPersistence, and 2: of cursors that got far, and of some that did not."""
    for start, deleted, expected in (
        (0, (2,), 2),
        (0, (5,), 5),
        (0, (0, 1, 2, 3, 4), 4),
        (0, (0,), 0),
        (0, (), -1),
        (1, (), 0),
    ):
        partition = Partition(Cursor(MANAGED, start=start), 6)
        for offset in deleted:
            partition.mark_delete(offset)
        partition.reopen()
        assert partition.cursor.mark_delete == expected


def test_seek_forward() -> None:
    """seekPosition, 2 and 3: the fourth entry is read, and behind the fifth the sixth."""
    partition = partition_of(6)
    partition.cursor.seek(3, end=6)
    assert partition.read(1) == [3]
    partition.cursor.seek(5, end=6)
    assert partition.read(1) == [5]
    assert partition.cursor.mark_delete == -1


def test_a_delete_of_what_is_deleted_changes_nothing() -> None:
    """deleteSingleMessageTwice: of each of four, in order, both positions and both counts."""
    partition = partition_of(4)
    for offset in range(4):
        for _ in range(2):
            partition.delete(offset)
            assert partition.counts == (3 - offset, 3 - offset)
            assert partition.cursor.mark_delete == offset
            assert partition.cursor.read_position == offset + 1
    assert partition.cursor.counts.repeated == 4
