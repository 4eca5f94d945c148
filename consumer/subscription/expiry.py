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
    """
    if record.reset_ms is None:
        return False
    return oldest_ms is None or oldest_ms < record.reset_ms


def expired_before(cursor: Cursor, alive_from: int, *, end: int, is_pinned: bool) -> int | None:
    """Return up to before which offset messages have expired and are not acked yet.

    All before it are to be acked at once, as Pulsar does: also such as are younger, which an older
    timestamp behind them shows only with clocks that differ.
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
    """Tell whether a subscription is to be deleted; one that has a consumer never is."""
    minutes = registry.expiration_minutes(record)
    if is_connected or not minutes:
        return False
    since_ms = max(record.last_connected_ms, record.created_ms, seen_ms or 0)
    return now_ms - since_ms >= minutes * 60_000
