"""What goes wrong without an error: a slow subscription, an ack hole, too many messages out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.subscription.backlog_quota import TopicBacklog
    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.policies import DetectionThresholds


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    topic: str | None  # the topic; None if it is about no topic
    subscription: str | None  # the subscription; None if it is about none
    sentence: str
    figures: dict[str, Any] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "topic": self.topic,
            "subscription": self.subscription,
            "message": self.sentence,
            **self.figures,
        }


class FindingKind(StrEnum):
    SLOW_SUBSCRIPTION = "slow subscription"
    """Its backlog is large or old: the topic's storage waits for it alone."""
    ACK_HOLE = "ack hole"
    """A few messages are not acked, and much behind them is: `backlogSize` grows, `msgBacklog`
    does not."""
    UNACKED_LIMIT = "unacked messages"
    """More messages are out than allowed."""
    BACKLOG_QUOTA = "backlog quota"
    """A topic's backlog has reached its quota, and its policy acts."""
    EVICTED = "evicted"
    """Messages were skipped since the backlog had reached its quota."""
    EXPIRED_MESSAGES = "expired messages"
    """Messages were acked since they were older than their time to live."""
    EXPIRED_SUBSCRIPTION = "expired subscription"
    """A subscription was deleted that nobody used."""
    LOST = "lost messages"
    """A topic's own retention, or a person, has deleted unacked messages."""
    NEAR_DELETION = "near deletion"
    """A topic's own retention will soon delete unacked messages."""
    DAMAGED = "damaged cursors"
    """A subscription's stored records cannot be read."""
    UNKNOWN = "unknown"
    """Brokers do not answer, or a record has another version."""
    FAILED = "not done"
    """The brokers refused an action. The next round tries it again."""
    OWNED = "left to its consumer"
    """The action is left to the subscription's consumer: an open one or a job."""


def detect(
    backlog: TopicBacklog,
    cursors: Sequence[Cursor],
    thresholds: DetectionThresholds,
    *,
    subscription: str,
    now_ms: int,
) -> list[Finding]:
    parts = {one.partition: one for one in backlog.of_subscriptions.get(subscription, ())}
    messages = sum(one.messages for one in parts.values())
    age_s = backlog.age_s(now_ms, subscription)
    found = []
    is_large = 0 < thresholds.slow_backlog <= messages
    if is_large or 0 < thresholds.slow_age_s <= age_s:
        behind = [number for number, one in parts.items() if one.messages]
        found.append(
            Finding(
                FindingKind.SLOW_SUBSCRIPTION,
                backlog.topic,
                subscription,
                f"{messages:,} messages are unacked, the oldest for at least {age_s:,.0f} s; "
                f"{len(parts) - len(behind):,} of {len(parts):,} partitions have caught up",
                {"msgBacklog": messages, "age_s": age_s, "partitionsBehind": sorted(behind)},
            )
        )
    read = [cursor for cursor in cursors if cursor.identity.partition in parts]
    for cursor in read:
        hole = _hole(cursor, parts[cursor.identity.partition].end, thresholds)
        if hole is not None:
            found.append(Finding(FindingKind.ACK_HOLE, backlog.topic, subscription, *hole))
    most = sum(
        _reached(one, parts[one.identity.partition].end) - one.committed_offset for one in read
    )
    out = 0
    if 0 < thresholds.unacked_messages <= most:
        out = sum(_unacked(cursor, parts[cursor.identity.partition].end) for cursor in read)
    if 0 < thresholds.unacked_messages <= out:
        found.append(
            Finding(
                FindingKind.UNACKED_LIMIT,
                backlog.topic,
                subscription,
                f"{out:,} messages were read and are not acked, of at most "
                f"{thresholds.unacked_messages:,}",
                {"unackedMessages": out, "limit": thresholds.unacked_messages},
            )
        )
    return found


def near_deletion(
    backlog: TopicBacklog,
    *,
    subscription: str,
    now_ms: int,
    time_ms: int | None,
    size_bytes: int | None,
) -> list[Finding]:
    """Return the unacked messages past half of what the topic's own retention keeps."""
    found = []

    def add(what: str, limit: str, figures: dict[str, Any]) -> None:
        sentence = f"{what} of {limit}: Kafka deletes messages then, acked or not"
        kind = FindingKind.NEAR_DELETION
        found.append(Finding(kind, backlog.topic, subscription, sentence, figures))

    age_ms = int(backlog.age_s(now_ms, subscription) * 1000)
    if time_ms is not None and 2 * age_ms > time_ms:
        add(
            f"the oldest message that is not acked is at least {age_ms:,} ms old",
            f"retention.ms = {time_ms}",
            {"age_ms": age_ms, "retention.ms": time_ms},
        )
    for part in backlog.of_subscriptions.get(subscription, ()):
        if size_bytes is not None and 2 * part.size_bytes > size_bytes:
            add(
                f"partition {part.partition} has {part.size_bytes:,} bytes from the first message "
                "that is not acked on",
                f"retention.bytes = {size_bytes}",
                {"backlogSize": part.size_bytes, "retention.bytes": size_bytes},
            )
    return found


def _hole(
    cursor: Cursor, end: int, thresholds: DetectionThresholds
) -> tuple[str, dict[str, Any]] | None:
    """Return the sentence and the figures of a cursor's ack hole; None if it has none."""
    entries = max(cursor.read_position, _acked_to(cursor)) - cursor.mark_delete
    if not 0 < thresholds.ack_hole_entries <= entries or not cursor.acked_range_count:
        return None
    open_among = _unacked(cursor, end)
    if open_among > entries * thresholds.ack_hole_share:
        return None
    first = cursor.committed_offset
    partition = cursor.identity.partition
    sentence = (
        f"{partition}:{first} is not acked, and of {entries:,} messages since only {open_among:,} "
        "are not: `sequitur retention run` keeps them all"
    )
    return sentence, {
        "position": f"{partition}:{first}",
        "numberOfEntriesSinceFirstNotAckedMessage": entries,
        "unackedMessages": open_among,
    }


def _acked_to(cursor: Cursor) -> int:
    if not cursor.acked_range_count:
        return cursor.committed_offset
    _, stops = cursor.acked_arrays()
    return int(stops[-1])


def _reached(cursor: Cursor, end: int) -> int:
    return min(max(cursor.read_position, _acked_to(cursor)), end)


def _unacked(cursor: Cursor, end: int) -> int:
    unacked = cursor.unacked_ranges(cursor.committed_offset, _reached(cursor, end))
    return sum(stop - first for first, stop in unacked)
