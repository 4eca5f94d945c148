"""What passes away by time: messages by their time to live, subscriptions that nobody uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.registry import Registry, SubscriptionRecord


def ttl_cutoff_ms(ttl_s: int, *, now_ms: int) -> int | None:
    """Return the timestamp before which messages have expired; None where none ever does."""
    return now_ms - ttl_s * 1000 if ttl_s else None


def is_pinned(record: SubscriptionRecord, oldest_ms: int | None) -> bool:
    """Tell whether no message of a partition may expire, since a reset asked for the old ones.

    Without it a subscription that is reset to a time before the time to live would lose at once
    what it was reset for (apache/pulsar#23030).

    Args:
        record: The subscription.
        oldest_ms: Timestamp of the first record that it has not acked; None if it is not known, as
            of cursors that are newer than the ages that were asked for.
    """
    if record.reset_ms is None:
        return False
    return oldest_ms is None or oldest_ms < record.reset_ms


def expired_before(cursor: Cursor, alive_from: int, *, end: int, is_pinned: bool) -> int | None:
    """Return up to before which offset messages have expired and are not acked yet.

    All before it are to be acked at once, as Pulsar does: also such as are younger, which an older
    timestamp behind them shows only with clocks that differ.

    Args:
        cursor: Of the partition; it is not changed.
        alive_from: The first offset whose timestamp is not older than the time to live; `end` if
            there is none.
        end: The offset behind the partition's last one.
        is_pinned: See `is_pinned`.

    Returns:
        None if there is nothing to ack.
    """
    stop = min(alive_from, end)
    return None if is_pinned or stop <= cursor.committed_offset else stop


def is_unused(
    registry: Registry,
    record: SubscriptionRecord,
    *,
    is_connected: bool,
    now_ms: int,
    seen_ms: int | None = None,
) -> bool:
    """Tell whether a subscription is to be deleted; one that has a consumer never is.

    Args:
        registry: For the policies that hold.
        record: The subscription.
        is_connected: Whether it has an owner, or may have one.
        now_ms: The time.
        seen_ms: When an owner was last there; None if that is not known.
    """
    minutes = registry.expiration_minutes(record)
    if is_connected or not minutes:
        return False
    since_ms = max(record.last_connected_ms, record.created_ms, seen_ms or 0)
    return now_ms - since_ms >= minutes * 60_000
