"""Policies of a topic, and of the namespace, under Pulsar's names and by its rules.

A policy that a topic does not have is that of the namespace: here one default for all topics of the
cluster, since Kafka has no namespaces. What neither has is off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from sequitur.errors import PolicyError, StateFormatError
from sequitur.kafka.control import PROXIMITY_FROM, BacklogState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from sequitur.consumer.subscription.cursor import Cursor
    from sequitur.consumer.subscription.registry import Registry, SubscriptionRecord
    from sequitur.kafka.control import ProducerPolicy
    from sequitur.kafka.partition import SourcePartition


INFINITE: Final = -1
POLICIES_FORMAT: Final = 1
_MB: Final = 1 << 20
_SIZE: Final = re.compile(r"([0-9]{1,15})([kmgt]?)|-[0-9]+[kmgt]?", re.ASCII | re.IGNORECASE)
_TIME: Final = re.compile(r"([0-9]{1,12})([smhdwy]?)|-[0-9]+[smhdwy]?", re.ASCII | re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DAY_S: Final = 86_400
_TIME_UNITS_S: Final = {
    "s": 1, "m": 60, "h": 3_600, "d": _DAY_S, "w": 7 * _DAY_S, "y": 365 * _DAY_S,
}  # fmt: skip


def parse_size(text: str) -> int | None:
    """Read a size as Pulsar writes it."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise PolicyError(
            f"size {text!r}: expected 10M, 16G, 1T, a number of bytes, or -1 for no limit"
        )
    return None if found[1] is None else int(found[1]) * _SIZE_UNITS[found[2].lower()]


def parse_time_s(text: str, *, plain_unit: str = "s") -> int | None:
    """Read a length of time as Pulsar writes it."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise PolicyError(
            f"time {text!r}: expected 30s, 90m, 4h, 3d, 2w, a number, or -1 for no limit"
        )
    if found[1] is None:
        return None
    return int(found[1]) * _TIME_UNITS_S[found[2].lower() or plain_unit]


class BacklogPolicy(StrEnum):
    """What happens when a backlog has reached its quota."""

    PRODUCER_REQUEST_HOLD = "producer_request_hold"
    """Producers wait until there is room; a send may time out."""
    PRODUCER_EXCEPTION = "producer_exception"
    """Sends fail at once."""
    CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"
    """The slowest cursor moves over the oldest messages, which are not processed."""


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How large and how old a topic's backlog may become."""

    limit_bytes: int | None = None  # bytes, None for no limit
    # age of the oldest message that is not acked, in seconds; None for no limit
    limit_s: int | None = None
    policy: BacklogPolicy = BacklogPolicy.PRODUCER_REQUEST_HOLD  # what happens then

    def __post_init__(self) -> None:
        for name, limit in (("size", self.limit_bytes), ("age", self.limit_s)):
            if limit is not None and limit < 1:
                raise PolicyError(
                    f"a backlog quota by {name} of {limit} lets nothing in. For no limit, use -1"
                )

    def to_document(self) -> dict[str, Any]:
        """Return it under Pulsar's names, -1 for no limit."""
        return {
            "limit": INFINITE if self.limit_bytes is None else self.limit_bytes,
            "limitTime": INFINITE if self.limit_s is None else self.limit_s,
            "policy": self.policy.value,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        limit, limit_s = int(document["limit"]), int(document["limitTime"])
        return cls(
            limit_bytes=None if limit < 0 else limit,
            limit_s=None if limit_s < 0 else limit_s,
            policy=BacklogPolicy(document["policy"]),
        )


@dataclass(frozen=True, slots=True)
class Retention:
    """How long messages are kept that all subscriptions have acked.

    Each limit is of one partition, as in Pulsar, where a partition is a topic of its own.
    """

    time_minutes: int = 0  # minutes; -1 for ever
    size_mb: int = 0  # units of 1,048,576 bytes; -1 without limit

    def __post_init__(self) -> None:
        if min(self.time_minutes, self.size_mb) < INFINITE:
            raise PolicyError("a limit of retention is -1 for none, 0 for off, or positive")
        if (self.time_minutes == 0) != (self.size_mb == 0):
            raise PolicyError(
                f"retention of {self.time_minutes} minutes and {self.size_mb} MB: one limit is "
                "off and the other is not. Use -1 for a limit that must not count, or 0 for "
                "both"
            )

    @classmethod
    def parse(cls, *, time: str, size: str) -> Self:
        """Read the texts of `set-retention`.

        A number without a unit is refused, but for 0 and -1: Pulsar 2.7 took it for minutes and
        MB, today's takes it for seconds and bytes.
        """
        for text, example in ((time, "90m, 4h, 3d or 2w"), (size, "10M or 16G")):
            if text.strip().isdecimal() and int(text):
                raise PolicyError(f"retention {text!r} has no unit: expected {example}")
        seconds, size_bytes = parse_time_s(time), parse_size(size)
        return cls(
            time_minutes=_whole(seconds, 60, time, "minutes"),
            size_mb=_whole(size_bytes, _MB, size, "MB"),
        )

    @property
    def time_s(self) -> int | None:
        """The limit by time in seconds, None for ever."""
        return None if self.time_minutes < 0 else self.time_minutes * 60

    @property
    def size_bytes(self) -> int | None:
        """The limit by size in bytes, None without."""
        return None if self.size_mb < 0 else self.size_mb * _MB

    def to_document(self) -> dict[str, Any]:
        """Return it under Pulsar's names."""
        return {
            "retentionTimeInMinutes": self.time_minutes,
            "retentionSizeInMB": self.size_mb,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        return cls(
            time_minutes=int(document["retentionTimeInMinutes"]),
            size_mb=int(document["retentionSizeInMB"]),
        )


@dataclass(frozen=True, slots=True)
class DetectionThresholds:
    """From where on a subscription is reported. 0 switches a report off."""

    slow_backlog: int = 1_000_000  # messages that are not acked
    slow_age_s: int = 3_600  # age of the oldest of them, in seconds
    # messages since the first that is not acked, where few of them are not
    ack_hole_entries: int = 10_000
    ack_hole_share: float = 0.1  # so many of them at most are not acked, as a share
    # messages that were read and are not acked; Pulsar's `maxUnackedMessagesPerSubscription`, which
    # stops the dispatch there
    unacked_messages: int = 200_000

    def __post_init__(self) -> None:
        if min(getattr(self, one.name) for one in fields(self)) < 0 or self.ack_hole_share > 1:
            raise PolicyError("a threshold is not negative, and a share not above 1")

    def to_document(self) -> dict[str, Any]:
        """Return it; Pulsar has a name for the last alone."""
        return {
            "slowBacklog": self.slow_backlog,
            "slowAgeInSeconds": self.slow_age_s,
            "ackHoleEntries": self.ack_hole_entries,
            "ackHoleShare": self.ack_hole_share,
            "maxUnackedMessagesPerSubscription": self.unacked_messages,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read `to_document` back."""
        return cls(
            slow_backlog=int(document["slowBacklog"]),
            slow_age_s=int(document["slowAgeInSeconds"]),
            ack_hole_entries=int(document["ackHoleEntries"]),
            ack_hole_share=float(document["ackHoleShare"]),
            unacked_messages=int(document["maxUnackedMessagesPerSubscription"]),
        )


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """What is set for a topic, or for the namespace. None: not set."""

    backlog_quota: BacklogQuota | None = None  # how large the backlog may become
    message_ttl_s: int | None = None  # after so many seconds a message counts as acked; 0 never
    # a subscription without a consumer is deleted after so many minutes; 0 never. Minutes, as in
    # Pulsar's `set-subscription-expiration-time`
    subscription_expiration_time_minutes: int | None = None
    retention: Retention | None = None  # how long acked messages are kept
    thresholds: DetectionThresholds | None = None  # from where on a subscription is reported

    def __post_init__(self) -> None:
        for name in ("message_ttl_s", "subscription_expiration_time_minutes"):
            if (getattr(self, name) or 0) < 0:
                raise PolicyError(f"{name} is negative: 0 switches it off")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is set."""
        return all(getattr(self, one.name) is None for one in fields(self))

    def over(self, default: TopicPolicies) -> TopicPolicies:
        """Return these policies, those that are not set taken from `default`."""
        absent = (one.name for one in fields(self) if getattr(self, one.name) is None)
        return replace(self, **{name: getattr(default, name) for name in absent})

    def in_force(self) -> PoliciesInForce:
        """Return what holds, off where nothing is set."""
        built_in = PoliciesInForce()
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(built_in, **{name: one for name, one in given.items() if one is not None})

    def to_document(self) -> dict[str, Any]:
        """Return what is set, under Pulsar's names, and the format's number."""
        document: dict[str, Any] = {"format": POLICIES_FORMAT}
        if self.backlog_quota is not None:
            document["backlogQuota"] = self.backlog_quota.to_document()
        if self.message_ttl_s is not None:
            document["messageTtlInSeconds"] = self.message_ttl_s
        if self.subscription_expiration_time_minutes is not None:
            document["subscriptionExpirationTimeMinutes"] = (
                self.subscription_expiration_time_minutes
            )
        if self.retention is not None:
            document["retention"] = self.retention.to_document()
        if self.thresholds is not None:
            document["thresholds"] = self.thresholds.to_document()
        return document

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read `to_document` back."""
        if not isinstance(document, dict) or document.get("format") != POLICIES_FORMAT:
            raise StateFormatError(f"policies of an unknown format, expected {POLICIES_FORMAT}")
        quota, retention = document.get("backlogQuota"), document.get("retention")
        thresholds = document.get("thresholds")
        try:
            return cls(
                backlog_quota=None if quota is None else BacklogQuota.from_document(quota),
                message_ttl_s=_optional_int(document, "messageTtlInSeconds"),
                subscription_expiration_time_minutes=_optional_int(
                    document, "subscriptionExpirationTimeMinutes"
                ),
                retention=None if retention is None else Retention.from_document(retention),
                thresholds=(
                    None if thresholds is None else DetectionThresholds.from_document(thresholds)
                ),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StateFormatError(f"policies cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class PoliciesInForce:
    """What holds for a topic: see `TopicPolicies`."""

    backlog_quota: BacklogQuota = BacklogQuota()
    message_ttl_s: int = 0
    subscription_expiration_time_minutes: int = 0
    retention: Retention = Retention()
    thresholds: DetectionThresholds = DetectionThresholds()


def _optional_int(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    return None if value is None else int(value)


def _whole(value: int | None, unit: int, text: str, name: str) -> int:
    if value is None:
        return INFINITE
    if value % unit:
        raise PolicyError(f"retention {text!r} is not a whole number of {name}")
    return value // unit


# Whether a topic's backlog has reached its quota, who holds it, and what eviction would skip.
#
# A backlog's size counts from the first message that is not acked to the end, acked ones between
# included, since Kafka keeps these, too; of several subscriptions the one that is furthest behind
# counts, in each partition. So it says what the backlog costs in storage, as Pulsar's does.
#
# What a job holds until its frontier passes it has been read, and is not acked. Producers are not
# held for it: the job needs their events to let it out. Eviction counts it, since it is storage.


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """What a subscription has not acked of a partition."""

    subscription: str
    topic: str
    partition: int
    first_unacked: int  # the first offset that is not acked; `end` if all are
    end: int  # the offset behind the partition's last one
    messages: int  # how many offsets are not acked: Pulsar's msgBacklog
    size_bytes: int  # bytes of the log from `first_unacked` to `end`, estimated
    # timestamp of the record at `first_unacked`, or one that it is not behind; None if there is
    # none, or it is not known to be old
    oldest_ms: int | None = None
    # up to before this offset a job holds it for its frontier; None if none does
    held_to: int | None = None
    held_bytes: int = 0  # of `size_bytes` those up to there
    behind_held_ms: int | None = None  # as `oldest_ms`, of the record at `held_to`

    def __post_init__(self) -> None:
        if not 0 <= self.messages <= self.end - self.first_unacked:
            raise ValueError(f"{self.messages} messages from {self.first_unacked} to {self.end}")
        if self.size_bytes < 0:
            raise ValueError(f"{self.size_bytes} bytes are fewer than none")

    @property
    def unheld(self) -> PartitionBacklog:
        """What of it no job holds for its frontier."""
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
    """The backlogs of all subscriptions on a topic."""

    topic: str
    parts: tuple[PartitionBacklog, ...] = ()

    @cached_property
    def longest(self) -> dict[int, PartitionBacklog]:
        """Of each partition the backlog of the cursor that is furthest behind."""
        found: dict[int, PartitionBacklog] = {}
        for part in self.parts:
            known = found.get(part.partition)
            if known is None or part.first_unacked < known.first_unacked:
                found[part.partition] = part
        return found

    @cached_property
    def of_subscriptions(self) -> dict[str, list[PartitionBacklog]]:
        """The parts of each subscription."""
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
        """Whether these bytes are not known exactly: a broker tells those of whole partitions."""
        return self.size_bytes > 0

    @cached_property
    def unheld(self) -> TopicBacklog:
        """What of it no job holds for its frontier."""
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
        """The part with the oldest message that is not acked."""
        aged = (part for part in self.parts if part.oldest_ms is not None)
        return min(aged, key=lambda part: part.oldest_ms or 0, default=None)

    def messages(self, subscription: str) -> int:
        """Return a subscription's msgBacklog."""
        return sum(part.messages for part in self.of_subscriptions.get(subscription, ()))

    def age_s(self, now_ms: int, subscription: str | None = None) -> float:
        """Return the age of the oldest message that is not acked, at least; 0 without one."""
        asked: Iterable[PartitionBacklog] = self.parts
        if subscription is not None:
            asked = self.of_subscriptions.get(subscription, ())
        stamps = [part.oldest_ms for part in asked if part.oldest_ms is not None]
        return max(now_ms - min(stamps), 0) / 1000 if stamps else 0.0


@dataclass(frozen=True, slots=True)
class QuotaCheck:
    """How a topic's backlog stands to its quota."""

    topic: str
    quota: BacklogQuota
    size_bytes: int  # size of the backlog that is compared with it
    held_bytes: int  # what a job holds for its frontier, which is left out of that
    is_estimate: bool  # whether these are not known exactly
    age_s: float  # age of the oldest message that is not acked and counts
    # who holds most of the backlog; where only the age is beyond its limit, who has the oldest
    # message
    subscription: str | None
    is_too_large: bool  # whether the size has reached its limit
    is_too_old: bool  # whether the age is beyond its limit

    @property
    def is_exceeded(self) -> bool:
        """Whether the policy is to act."""
        return self.is_too_large or self.is_too_old

    @property
    def has_limit(self) -> bool:
        """Whether there is a quota at all."""
        return self.quota.limit_bytes is not None or self.quota.limit_s is not None

    @property
    def holds_producers(self) -> bool:
        """Whether producers are to wait, or to fail."""
        evicts = self.quota.policy is BacklogPolicy.CONSUMER_BACKLOG_EVICTION
        return self.is_exceeded and not evicts

    @property
    def evicts(self) -> bool:
        """Whether messages are to be skipped."""
        return self.is_exceeded and not self.holds_producers

    @property
    def proximity(self) -> float:
        """The used share of the limit that is nearest, for a gauge of 50 to 100 %.

        0 while not even half of a limit is used, and where there is none.
        """
        share = self.state(now_ms=0, valid_for_ms=0).proximity or 0.0
        return 0.0 if share < PROXIMITY_FROM else min(share, 1.0)

    def state(self, *, now_ms: int, valid_for_ms: int) -> BacklogState:
        """Return what the topic's producers are told."""
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


# What passes away by time: messages by their time to live, subscriptions that nobody uses.


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


LONGEST_IDLE_S: Final = 3_600.0
"""Whoever makes the checks looks for so long at most: it may be started again more often."""


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


# Which messages are older than a limit, with few of their timestamps read.
#
# A broker tells of a partition the first offset whose timestamp is not before a time, for all
# partitions that it leads in one request. All messages before that offset are older than that time.
# To read a timestamp takes a whole batch, so one is read for a limit and a partition: it shows that
# there is a message at all before that offset, since offsets of markers and of compacted messages
# hold none. Behind the offset a message counts as younger, also where its own timestamp is older
# than those of messages before it.


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
