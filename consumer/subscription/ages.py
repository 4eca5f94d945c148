"""Which messages are older than a limit, with few of their timestamps read.

A broker tells of a partition the first offset whose timestamp is not before a time, for all
partitions that it leads in one request. All messages before that offset are older than that time.
To read a timestamp takes a whole batch, so one is read for a limit and a partition: it shows that
there is a message at all before that offset, since offsets of markers and of compacted messages
hold none. Behind the offset a message counts as younger, also where its own timestamp is older than
those of messages before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sequitur.consumer.subscription.expiry import ttl_cutoff_ms
from sequitur.consumer.subscription.policies import BacklogPolicy
from sequitur.consumer.subscription.quota import age_cutoff_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sequitur.consumer.subscription.policies import PoliciesInForce
    from sequitur.kafka.partition import SourcePartition

Place: TypeAlias = "tuple[SourcePartition, int]"
"""A partition and an offset."""


def limits_ms(
    policies: PoliciesInForce, *, now_ms: int, retention_ms: int | None, is_detected: bool
) -> set[int]:
    """Return the times before which messages of a topic are old."""
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
    """Return of places a time that the timestamp of the first message from there on is before."""
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
            elif len(before) > 1:  # there is no message from the last one up to that offset
                again.append((where, time_ms, before[:-1]))
        left = again
    return found
