"""The figures of the article on Pulsar's backlog, in terms of cursors.

On qiita.com, 2021-09-06: "Apache PulsarにおけるBacklogの概念とその挙動", of Pulsar 2.7.
"""

from __future__ import annotations

import pytest

from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity


def _cursor(subscription: str, acked: int = 0, *, partition: int = 0) -> Cursor:
    cursor = Cursor(CursorIdentity(subscription, "my-topic", partition))
    for offset in range(acked):
        cursor.ack(offset, end=acked)
    return cursor


def _backlog(cursor: Cursor, end: int) -> list[int]:
    ranges = cursor.unacked_ranges(0, end)
    return [offset for first, stop in ranges for offset in range(first, stop)]


def test_acks_cursor_and_backlog() -> None:
    """Figure 1: 0 to 3 of ten messages acked; the cursor stands at 4, the backlog is 4 to 9."""
    cursor = _cursor("Subscription-1", 4)
    assert cursor.committed_offset == 4
    assert cursor.read_position == 4
    assert _backlog(cursor, 10) == [4, 5, 6, 7, 8, 9]
    assert cursor.backlog(10) == 6


def test_two_subscriptions_have_two_backlogs() -> None:
    """Figure 2: the second has acked 0 to 6, and its backlog is 7 to 9; deletable is 0 to 3."""
    one, two = _cursor("Subscription-1", 4), _cursor("Subscription-2", 7)
    assert _backlog(one, 10) == [4, 5, 6, 7, 8, 9]
    assert _backlog(two, 10) == [7, 8, 9]
    assert min(one.committed_offset, two.committed_offset) == 4


def test_individual_acks_leave_one_out() -> None:
    cursor = _cursor("sub1")
    for offset in (0, 1, 3):
        cursor.ack(offset, end=4)
    assert [cursor.is_acked(offset) for offset in range(4)] == [True, True, False, True]


def test_a_cumulative_ack_takes_all_before() -> None:
    cursor = _cursor("sub1")
    assert cursor.ack_cumulative(3, end=10) == 4
    assert all(cursor.is_acked(offset) for offset in range(4))


def test_an_ack_hole_holds_the_mark_delete_position() -> None:
    """Figure 3: 3 is not acked, so only 0 to 2 can be deleted, although 4 to 9 are acked."""
    cursor = _cursor("sub1", 3)
    cursor.ack_range(4, 10, end=10)
    assert cursor.mark_delete == 2
    assert cursor.backlog(10) == 1
    cursor.ack(3, end=10)
    assert (cursor.mark_delete, cursor.backlog(10)) == (9, 0)


def test_a_hole_grows_the_distance_and_not_the_backlog() -> None:
    cursor = _cursor("sub1", 3)
    seen = []
    for end in (10, 100, 1000):
        cursor.ack_range(4, end, end=end)
        cursor.seek(end, end=end)
        stats = cursor.stats(end)
        seen.append((stats.backlog, stats.entries_since_first_not_acked))
    assert seen == [(1, 8), (1, 98), (1, 998)]


def test_internal_stats_are_those_of_the_article() -> None:
    """Mark-delete 3, read position 20, three ranges: the backlog is 3, 17 consumed, 17 since."""
    partition = 6990757
    cursor = _cursor("sub1", 4, partition=partition)
    for first, last in ((5, 8), (10, 13), (15, 19)):
        cursor.ack_range(first, last + 1, end=20)
    cursor.seek(20, end=20)
    assert cursor.stats(20).to_document() == {
        "markDeletePosition": "6990757:3",
        "readPosition": "6990757:20",
        "msgBacklog": 3,
        "messagesConsumedCounter": 17,
        "individuallyDeletedMessages": (
            "[(6990757:4..6990757:8], (6990757:9..6990757:13], (6990757:14..6990757:19]]"
        ),
        "numberOfEntriesSinceFirstNotAckedMessage": 17,
        "totalNonContiguousDeletedMessagesRange": 3,
        "committedOffset": 4,
        "absentOffsets": 0,
        "repeatedAcks": 0,
        "lostAtMost": 0,
    }


@pytest.mark.parametrize("acked", [0, 1, 10])
def test_a_cursor_that_has_caught_up_shows_1(acked: int) -> None:
    """And not 0, as the article says, also on an empty partition."""
    stats = _cursor("sub1", acked).stats(acked)
    assert (stats.backlog, stats.entries_since_first_not_acked) == (0, 1)
    assert stats.individually_deleted == "[]"


def test_one_slow_cursor_of_a_thousand_holds_the_topic() -> None:
    """999 have caught up; what can be deleted is what the last one has acked."""
    cursors = [_cursor(f"sub{number}", 10) for number in range(999)]
    cursors.append(_cursor("test-subs", 2))
    assert sum(cursor.backlog(10) for cursor in cursors) == 8
    assert min(cursor.committed_offset for cursor in cursors) == 2


def test_what_has_expired_counts_as_acked() -> None:
    """A time-to-live acks the oldest messages, and closes the hole among them."""
    cursor = _cursor("sub1", 3)
    cursor.ack_range(4, 8, end=10)
    assert cursor.ack_cumulative(6, end=10) == 1
    assert (cursor.mark_delete, cursor.backlog(10)) == (7, 2)
