"""What passes away by time: messages by their time to live, subscriptions that nobody uses.

Which messages are older than a limit is found out with few of their timestamps read. A broker tells
the first offset of a partition whose timestamp is not before a time, for all partitions that it
leads in one request. All messages before that offset are older than that time. To read a timestamp
takes a whole batch, so one is read for a limit and a partition. It shows that there is a message at
all before that offset, since offsets of markers and of compacted messages hold none. A message
after the offset counts as younger, even if its own timestamp is older than those of messages before
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from sequitur.consumer.subscription.backlog_quota import age_cutoff_ms
from sequitur.consumer.subscription.policies import BacklogPolicy, PoliciesInForce

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.registry import Registry, SubscriptionRecord
    from sequitur.kafka.partition import SourcePartition


LONGEST_IDLE_S: Final = 3_600.0
"""The checks look for at most so long, since their process may restart more often."""
Place: TypeAlias = "tuple[SourcePartition, int]"
"""A partition and an offset."""


def ttl_cutoff_ms(ttl_s: int, *, now_ms: int) -> int | None:
    """Return the timestamp before which messages have expired; None if none ever expire."""
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

    All before it are to be acked at once, as Pulsar does: also younger ones, which an older
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
    idle_s: float,
    seen_ms: int | None = None,
) -> bool:
    """Tell whether a subscription is to be deleted; one that has a consumer never is.

    Clocks of owners and of former checks may be wrong by hours. So it is deleted no earlier than it
    has been idle for long by our steady clock: for all the time, or for an hour of it.
    """
    minutes = registry.expiration_minutes(record)
    if is_connected or not minutes or idle_s < min(minutes * 60, LONGEST_IDLE_S):
        return False
    since_ms = max(record.last_connected_ms, record.created_ms, seen_ms or 0)
    return now_ms - since_ms >= minutes * 60_000


def limits_ms(
    policies: PoliciesInForce, *, now_ms: int, retention_ms: int | None, is_detected: bool
) -> set[int]:
    quota, slow_age_s = policies.backlog_quota, policies.thresholds.slow_age_s
    cutoff_ms = ttl_cutoff_ms(policies.message_ttl_s, now_ms=now_ms)
    times = set() if cutoff_ms is None else {cutoff_ms}
    if quota.limit_s is not None:
        times |= {now_ms - quota.limit_s * 1000, now_ms - quota.limit_s * 500}
        if quota.policy is BacklogPolicy.CONSUMER_BACKLOG_EVICTION:
            times.add(age_cutoff_ms(quota.limit_s, now_ms=now_ms))
    if is_detected and slow_age_s:
        times.add(now_ms - slow_age_s * 1000 + 1)  # an age that is reached counts
    if is_detected and retention_ms is not None:
        times.add(now_ms - retention_ms // 2)
    return times


def older_than(
    places: Mapping[SourcePartition, Collection[int]],
    since: Mapping[tuple[SourcePartition, int], int],
    read: Callable[[Collection[Place]], Mapping[Place, int]],
) -> dict[Place, int]:
    """Return for places a time that is after the timestamp of the first message from there on."""
    found: dict[Place, int] = {}
    left = []
    for (where, time_ms), stop in since.items():
        if before := sorted(one for one in places.get(where, ()) if one < stop):
            left.append((where, time_ms, before))
    while left:
        stamps = read({(where, before[-1]) for where, _, before in left})
        again = []
        for where, time_ms, before in left:
            stamp_ms = stamps.get((where, before[-1]))
            if stamp_ms is not None and stamp_ms < time_ms:
                for offset in before:
                    known_ms = found.get((where, offset), time_ms)
                    found[where, offset] = min(known_ms, time_ms)
            elif len(before) > 1:  # there is no message between the last known one and that offset
                again.append((where, time_ms, before[:-1]))
        left = again
    return found
