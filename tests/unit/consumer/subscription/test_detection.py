"""Diagnosis: a slow subscription, an ack hole, too many messages out."""

from __future__ import annotations

from sequitur.consumer.subscription.backlog_quota import PartitionBacklog, TopicBacklog
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.detection import Finding, detect, near_deletion
from sequitur.consumer.subscription.policies import DetectionThresholds
from tests.support.values import replace

_NOW_MS = 10_000_000
_OFF = DetectionThresholds(0, 0, 0, 0.1, 0)


def _cursor(partition: int = 0, *, acked: int = 0, read: int = 0, end: int = 1_000) -> Cursor:
    cursor = Cursor(CursorIdentity("sub1", "orders", partition))
    if acked:
        cursor.ack_cumulative(acked - 1, end=end)
    cursor.seek(read, end=end)
    return cursor


def _found(
    cursors: list[Cursor], thresholds: DetectionThresholds, *, end: int = 1_000, age_s: int = 0
) -> list[Finding]:
    parts = [
        PartitionBacklog(
            "sub1", "orders", one.identity.partition, one.committed_offset, end, one.backlog(end),
            size_bytes=(end - one.committed_offset) * 10,
            oldest_ms=_NOW_MS - age_s * 1000 if one.committed_offset < end else None,
        )
        for one in cursors
    ]  # fmt: skip
    backlog = TopicBacklog("orders", tuple(parts))
    return detect(backlog, cursors, thresholds, subscription="sub1", now_ms=_NOW_MS)


def test_a_slow_subscription_by_number_and_by_age() -> None:
    cursors = [_cursor(acked=400)]
    by_number, by_age = DetectionThresholds(600, 0, 0, 0, 0), DetectionThresholds(0, 30, 0, 0, 0)
    (one,) = _found(cursors, by_number, age_s=29)
    assert one.to_document() == {
        "kind": "slow subscription",
        "topic": "orders",
        "subscription": "sub1",
        "message": "600 messages are unacked, the oldest for at least 29 s; 0 of 1 partitions have "
        "caught up",
        "msgBacklog": 600,
        "age_s": 29,
        "partitionsBehind": [0],
    }
    assert not _found([_cursor(acked=401)], by_number)
    assert [found.kind for found in _found(cursors, by_age, age_s=30)] == [one.kind]
    assert not _found(cursors, by_age, age_s=29)
    assert not _found(cursors, _OFF, age_s=29)
    assert _found([_cursor(acked=999)], DetectionThresholds(1, 0, 0, 0, 0))
    assert _found(cursors, DetectionThresholds(0, 1, 0, 0, 0), age_s=1)


def test_another_subscription_is_judged_by_itself() -> None:
    """One that has nothing here is not slow, however old the backlog of others is."""
    part = PartitionBacklog("sub2", "orders", 0, 0, 9, 9, size_bytes=9, oldest_ms=0)
    backlog = TopicBacklog("orders", (part,))
    thresholds = DetectionThresholds(1, 1, 1, 0.5, 1)
    assert detect(backlog, [_cursor()], thresholds, subscription="sub1", now_ms=_NOW_MS) == []


def test_999_of_1000_partitions_have_caught_up() -> None:
    """The article's worst case: which partition is behind is said, and that the others are not."""
    cursors = [_cursor(number, acked=1_000) for number in range(999)]
    cursors.append(_cursor(999, acked=100))
    (one,) = _found(cursors, DetectionThresholds(500, 0, 0, 0, 0))
    assert "999 of 1,000 partitions have caught up" in one.sentence
    assert one.figures["partitionsBehind"] == [999]


def test_an_ack_hole_is_a_long_way_with_little_that_is_not_acked() -> None:
    """Figure 3, and the diagnosis: backlogSize grows while msgBacklog is small."""
    thresholds = DetectionThresholds(0, 0, 900, 0.1, 0)
    cursor = _cursor(acked=3)
    cursor.ack_range(4, 1_000, end=1_000)
    (one,) = _found([cursor], thresholds)
    assert one.to_document() == {
        "kind": "ack hole",
        "topic": "orders",
        "subscription": "sub1",
        "message": "0:3 is not acked, and of 998 messages since only 1 are not: `sequitur "
        "retention run` keeps them all",
        "position": "0:3",
        "numberOfEntriesSinceFirstNotAckedMessage": 998,
        "unackedMessages": 1,
    }
    assert not _found([cursor], DetectionThresholds(0, 0, 0, 0.1, 0))
    cursor = _cursor(acked=2)
    cursor.ack_range(3, 5, end=5)
    assert _found([cursor], DetectionThresholds(0, 0, 4, 0.25, 0), end=5)


def test_what_is_no_ack_hole() -> None:
    """A short way, much that is not acked, nothing acked behind, and a hole that was closed."""
    thresholds = DetectionThresholds(0, 0, 900, 0.1, 0)
    short = _cursor(acked=3)
    short.ack_range(4, 500, end=1_000)
    wide = _cursor(acked=3)
    wide.ack_range(500, 1_000, end=1_000)
    reads = _cursor(acked=3, read=1_000)
    closed = _cursor(acked=3)
    closed.ack_range(3, 1_000, end=1_000)
    for cursor in (short, wide, reads, closed):
        assert not _found([cursor], thresholds)


def test_messages_that_are_out_are_limited() -> None:
    """Read and not acked, over all partitions; what was never read does not count."""
    cursors = [_cursor(0, acked=100, read=400), _cursor(1, acked=100, read=200)]
    cursors[0].ack_range(200, 250, end=1_000)
    (one,) = _found(cursors, DetectionThresholds(0, 0, 0, 0, 350))
    assert one.to_document() == {
        "kind": "unacked messages",
        "topic": "orders",
        "subscription": "sub1",
        "message": "350 messages were read and are not acked, of at most 350",
        "unackedMessages": 350,
        "limit": 350,
    }
    assert not _found(cursors, DetectionThresholds(0, 0, 0, 0, 351))
    assert not _found([_cursor()], DetectionThresholds(0, 0, 0, 0, 1))
    assert _found([_cursor(read=1)], DetectionThresholds(0, 0, 0, 0, 1))


def _near(
    *, age_s: int, time_ms: int | None = None, size_bytes: int | None = None
) -> list[Finding]:
    """Of 100 messages 40 are acked; the others have 600 bytes."""
    part = PartitionBacklog(
        "sub1", "orders", 0, 40, 100, 60, size_bytes=600, oldest_ms=_NOW_MS - age_s * 1000
    )
    return near_deletion(
        TopicBacklog("orders", (part, replace(part, subscription="sub2"))),
        subscription="sub1",
        now_ms=_NOW_MS,
        time_ms=time_ms,
        size_bytes=size_bytes,
    )


def test_what_is_past_half_of_a_topics_own_retention_is_told() -> None:
    """By its age and by its bytes, of the subscription itself; nothing without a limit."""
    assert not _near(age_s=9_000)
    assert not _near(age_s=30, time_ms=60_000, size_bytes=1_200)
    (by_age,) = _near(age_s=31, time_ms=60_000)
    about = {"kind": "near deletion", "topic": "orders", "subscription": "sub1"}
    assert by_age.to_document() == {
        **about,
        "message": "the oldest message that is not acked is at least 31,000 ms old of "
        "retention.ms = 60000: Kafka deletes messages then, acked or not",
        "age_ms": 31_000,
        "retention.ms": 60_000,
    }
    (by_size,) = _near(age_s=31, size_bytes=1_199)
    assert by_size.to_document() == {
        **about,
        "message": "partition 0 has 600 bytes from the first message that is not acked on of "
        "retention.bytes = 1199: Kafka deletes messages then, acked or not",
        "backlogSize": 600,
        "retention.bytes": 1_199,
    }
