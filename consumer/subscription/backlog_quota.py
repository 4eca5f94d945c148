"""Whether a topic's backlog has reached its quota, who holds it, and what eviction would skip.

A backlog's size counts from the first message that is not acked to the end, with the acked ones
between, since Kafka keeps these, too. Of several subscriptions the one that is furthest behind
counts, in each partition. So the size says what the backlog costs in storage, as Pulsar's does.

What a job holds until its frontier passes it has been read, and is not acked. Producers are not
held for it: the job needs their events to let it out. Eviction counts it, since it is storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sequitur.consumer.subscription.policies import BacklogPolicy, BacklogQuota
from sequitur.kafka.control import PROXIMITY_FROM, BacklogState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.kafka.control import ProducerPolicy


@dataclass(frozen=True, slots=True)
class QuotaCheck:
    topic: str
    quota: BacklogQuota
    size_bytes: int  # size of the backlog that is compared with the quota
    held_bytes: int  # what a job holds for its frontier, which `size_bytes` leaves out
    is_estimate: bool  # whether these bytes are an estimate
    age_s: float  # age of the oldest unacked message that counts
    # the subscription with the largest backlog; if only the age is too high, the one with the
    # oldest message
    subscription: str | None
    is_too_large: bool  # whether the size has reached its limit
    is_too_old: bool  # whether the age is beyond its limit

    @property
    def is_exceeded(self) -> bool:
        return self.is_too_large or self.is_too_old

    @property
    def has_limit(self) -> bool:
        return self.quota.limit_bytes is not None or self.quota.limit_s is not None

    @property
    def holds_producers(self) -> bool:
        evicts = self.quota.policy is BacklogPolicy.CONSUMER_BACKLOG_EVICTION
        return self.is_exceeded and not evicts

    @property
    def evicts(self) -> bool:
        return self.is_exceeded and not self.holds_producers

    @property
    def proximity(self) -> float:
        """The used share of the limit that is nearest, for a gauge of 50 to 100 %.

        0 while not even half of a limit is used, and where there is none.
        """
        share = self.state(now_ms=0, valid_for_ms=0).proximity or 0.0
        return 0.0 if share < PROXIMITY_FROM else min(share, 1.0)

    def state(self, *, now_ms: int, valid_for_ms: int) -> BacklogState:
        policy: ProducerPolicy | None = None
        if self.is_exceeded and self.quota.policy is BacklogPolicy.PRODUCER_REQUEST_HOLD:
            policy = "producer_request_hold"
        elif self.is_exceeded and self.quota.policy is BacklogPolicy.PRODUCER_EXCEPTION:
            policy = "producer_exception"
        return BacklogState(
            issued_ms=now_ms,
            valid_for_ms=valid_for_ms,
            policy=policy,
            subscription=self.subscription,
            backlog_bytes=self.size_bytes,
            limit_bytes=self.quota.limit_bytes,
            age_s=self.age_s,
            limit_s=self.quota.limit_s,
        )


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    subscription: str
    topic: str
    partition: int
    first_unacked: int  # the first unacked offset; `end` if all are acked
    end: int  # the offset behind the partition's last one
    messages: int  # the number of unacked offsets: Pulsar's msgBacklog
    size_bytes: int  # bytes of the log from `first_unacked` to `end`, estimated
    # timestamp of the record at `first_unacked`, or a later one; None if there is none, or if the
    # record is not known to be old
    oldest_ms: int | None = None
    # a job holds offsets before this one for its frontier; None if none does
    held_to: int | None = None
    held_bytes: int = 0  # the part of `size_bytes` up to there
    behind_held_ms: int | None = None  # like `oldest_ms`, for the record at `held_to`

    def __post_init__(self) -> None:
        if not 0 <= self.messages <= self.end - self.first_unacked:
            raise ValueError(f"{self.messages} messages from {self.first_unacked} to {self.end}")
        if self.size_bytes < 0:
            raise ValueError(f"{self.size_bytes} bytes are fewer than none")

    @property
    def unheld(self) -> PartitionBacklog:
        """The part that no job holds for its frontier."""
        if self.held_to is None:
            return self
        return PartitionBacklog(
            self.subscription,
            self.topic,
            self.partition,
            first_unacked=self.held_to,
            end=self.end,
            messages=min(self.messages, self.end - self.held_to),
            size_bytes=self.size_bytes - self.held_bytes,
            oldest_ms=self.behind_held_ms,
        )


@dataclass(frozen=True)
class TopicBacklog:
    topic: str
    parts: tuple[PartitionBacklog, ...] = ()

    @cached_property
    def longest(self) -> dict[int, PartitionBacklog]:
        """For each partition, the backlog of the cursor that is furthest behind."""
        found: dict[int, PartitionBacklog] = {}
        for part in self.parts:
            known = found.get(part.partition)
            if known is None or part.first_unacked < known.first_unacked:
                found[part.partition] = part
        return found

    @cached_property
    def of_subscriptions(self) -> dict[str, list[PartitionBacklog]]:
        found: dict[str, list[PartitionBacklog]] = {}
        for part in self.parts:
            found.setdefault(part.subscription, []).append(part)
        return found

    @cached_property
    def size_bytes(self) -> int:
        """Pulsar's backlogSize, over all partitions."""
        return sum(part.size_bytes for part in self.longest.values())

    @property
    def is_estimate(self) -> bool:
        """Whether the bytes are an estimate: a broker tells only the size of a whole partition."""
        return self.size_bytes > 0

    @cached_property
    def unheld(self) -> TopicBacklog:
        """The part that no job holds for its frontier."""
        if all(part.held_to is None for part in self.parts):
            return self
        return TopicBacklog(self.topic, tuple(part.unheld for part in self.parts))

    @property
    def slowest(self) -> str | None:
        """The subscription with the largest backlog; None if nothing is left to ack."""
        sizes: dict[str, int] = {}
        for part in self.parts:
            if part.first_unacked < part.end:
                sizes[part.subscription] = sizes.get(part.subscription, 0) + part.size_bytes
        return max(sorted(sizes), key=sizes.__getitem__, default=None)

    @property
    def oldest(self) -> PartitionBacklog | None:
        aged = (part for part in self.parts if part.oldest_ms is not None)
        return min(aged, key=lambda part: part.oldest_ms or 0, default=None)

    def messages(self, subscription: str) -> int:
        """Return Pulsar's msgBacklog of a subscription."""
        return sum(part.messages for part in self.of_subscriptions.get(subscription, ()))

    def age_s(self, now_ms: int, subscription: str | None = None) -> float:
        """Return a lower bound of the oldest unacked message's age; 0 without such a message."""
        asked: Iterable[PartitionBacklog] = self.parts
        if subscription is not None:
            asked = self.of_subscriptions.get(subscription, ())
        stamps = [part.oldest_ms for part in asked if part.oldest_ms is not None]
        return max(now_ms - min(stamps), 0) / 1000 if stamps else 0.0


def check_quota(backlog: TopicBacklog, quota: BacklogQuota, *, now_ms: int) -> QuotaCheck:
    """Compare a backlog with its quota.

    As in Pulsar a size is exceeded once it reaches its limit, an age once it is beyond.
    """
    whole_bytes = backlog.size_bytes
    if quota.policy is not BacklogPolicy.CONSUMER_BACKLOG_EVICTION:
        backlog = backlog.unheld
    age_s = backlog.age_s(now_ms)
    is_too_large = quota.limit_bytes is not None and backlog.size_bytes >= quota.limit_bytes
    is_too_old = quota.limit_s is not None and age_s > quota.limit_s
    holder = backlog.slowest
    if is_too_old and not is_too_large and backlog.oldest is not None:
        holder = backlog.oldest.subscription
    return QuotaCheck(
        topic=backlog.topic,
        quota=quota,
        size_bytes=backlog.size_bytes,
        held_bytes=whole_bytes - backlog.size_bytes,
        is_estimate=backlog.is_estimate,
        age_s=age_s,
        subscription=holder,
        is_too_large=is_too_large,
        is_too_old=is_too_old,
    )


def cuts_by_size(backlog: TopicBacklog, limit_bytes: int) -> dict[int, int]:
    """Return up to before which offset of each partition cursors must move.

    Then the backlog is below 0.9 of its limit, as Pulsar aims at; the factor is its
    BacklogQuotaManager's. Each partition loses the same share of its backlog. Bytes are taken as
    spread evenly over the offsets of one.
    """
    target = (9 * limit_bytes - 1) // 10
    size = backlog.size_bytes
    cuts: dict[int, int] = {}
    if size <= target:
        return cuts
    for partition, part in backlog.longest.items():
        span = part.end - part.first_unacked
        if part.size_bytes and span:
            cuts[partition] = part.end - span * target // size
    return cuts


def age_cutoff_ms(limit_s: int, *, now_ms: int) -> int:
    """Return the timestamp from which on messages stay when an age is beyond its limit.

    The rest is then younger than 0.9 of the limit, as in Pulsar with
    `preciseTimeBasedBacklogQuotaCheck`.
    """
    return now_ms - limit_s * 900
