"""Policies of a topic, and of the namespace, under Pulsar's names and by its rules.

If a topic does not have a policy, that of the namespace holds. Kafka has no namespaces, so it is
one default for all topics of the cluster. If neither has it, it is off.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import msgspec
from msgspec.structs import asdict, astuple, replace

from sequitur.base.stored import dump, load
from sequitur.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class BacklogPolicy(StrEnum):
    PRODUCER_REQUEST_HOLD = "producer_request_hold"
    """Producers wait until there is room; a send may time out."""
    PRODUCER_EXCEPTION = "producer_exception"
    """Sends fail at once."""
    CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"
    """The slowest cursor moves over the oldest messages, which are not processed."""


class BacklogQuota(
    msgspec.Struct, frozen=True, rename={"limit_bytes": "limit", "limit_s": "limitTime"}
):
    """A limit of the backlog; stored under Pulsar's names, with -1 for no limit."""

    TITLE: ClassVar = "policies: backlogQuota"
    limit_bytes: int | None = None  # bytes, None for no limit
    # age of the oldest unacked message, in seconds; None for no limit
    limit_s: int | None = None
    policy: BacklogPolicy = BacklogPolicy.PRODUCER_REQUEST_HOLD  # what happens at the limit

    def __post_init__(self) -> None:
        for name, limit in (("size", self.limit_bytes), ("age", self.limit_s)):
            if limit is not None and limit < 1:
                raise PolicyError(
                    f"a backlog quota by {name} of {limit} lets nothing in. For no limit, use -1"
                )

    def to_stored(self) -> dict[str, Any]:
        limits = {"limit": self.limit_bytes, "limitTime": self.limit_s}
        stored = {name: INFINITE if one is None else one for name, one in limits.items()}
        return {**stored, "policy": self.policy}

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        limits = {name: stored[name] for name in ("limit", "limitTime")}
        return {**stored, **{name: None if one < 0 else one for name, one in limits.items()}}


class Retention(
    msgspec.Struct,
    frozen=True,
    rename={"time_minutes": "retentionTimeInMinutes", "size_mb": "retentionSizeInMB"},
):
    """How long messages are kept that all subscriptions have acked.

    Each limit is of one partition, as in Pulsar, where a partition is a topic of its own.
    """

    TITLE: ClassVar = "policies: retention"
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
        """The time limit in seconds, None for ever."""
        return None if self.time_minutes < 0 else self.time_minutes * 60

    @property
    def size_bytes(self) -> int | None:
        """The size limit in bytes, None for no limit."""
        return None if self.size_mb < 0 else self.size_mb * _MB


class DetectionThresholds(
    msgspec.Struct,
    frozen=True,
    rename={
        "slow_backlog": "slowBacklog",
        "slow_age_s": "slowAgeInSeconds",
        "ack_hole_entries": "ackHoleEntries",
        "ack_hole_share": "ackHoleShare",
        "unacked_messages": "maxUnackedMessagesPerSubscription",
    },
):
    """The thresholds from which on a subscription is reported. 0 switches a report off.

    Pulsar has a name only for the last field.
    """

    TITLE: ClassVar = "policies: thresholds"
    slow_backlog: int = 1_000_000  # unacked messages
    slow_age_s: int = 3_600  # age of the oldest of them, in seconds
    # messages since the first unacked one, if few of them are unacked
    ack_hole_entries: int = 10_000
    ack_hole_share: float = 0.1  # at most this share of them is unacked
    # messages that were read and are unacked; Pulsar's `maxUnackedMessagesPerSubscription`, at
    # which the dispatch stops
    unacked_messages: int = 200_000

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0 or self.ack_hole_share > 1:
            raise PolicyError("a threshold is not negative, and a share not above 1")


class TopicPolicies(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="format",
    tag=POLICIES_FORMAT,
    rename={
        "backlog_quota": "backlogQuota",
        "message_ttl_s": "messageTtlInSeconds",
        "subscription_expiration_time_minutes": "subscriptionExpirationTimeMinutes",
    },
):
    """The settings of a topic or of the namespace, under Pulsar's names. None means not set."""

    TITLE: ClassVar = "policies"
    backlog_quota: BacklogQuota | None = None  # how large the backlog may become
    message_ttl_s: int | None = None  # after so many seconds a message counts as acked; 0 never
    # a subscription without a consumer is deleted after so many minutes; 0 never. Minutes, as in
    # Pulsar's `set-subscription-expiration-time`
    subscription_expiration_time_minutes: int | None = None
    retention: Retention | None = None  # how long acked messages are kept
    thresholds: DetectionThresholds | None = None  # beyond these it is reported

    def __post_init__(self) -> None:
        for name in ("message_ttl_s", "subscription_expiration_time_minutes"):
            if (getattr(self, name) or 0) < 0:
                raise PolicyError(f"{name} is negative: 0 switches it off")

    @property
    def is_empty(self) -> bool:
        return not self._set()

    def over(self, default: TopicPolicies) -> TopicPolicies:
        """Return these policies, with unset ones taken from `default`."""
        return replace(default, **self._set())

    def in_force(self) -> PoliciesInForce:
        return PoliciesInForce(**self._set())

    def _set(self) -> dict[str, Any]:
        return {name: one for name, one in asdict(self).items() if one is not None}

    def to_stored(self) -> Self:
        quota = self.backlog_quota
        return self if quota is None else replace(self, backlog_quota=dump(quota))

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        parts: Mapping[str, type[Any]] = {
            "backlogQuota": BacklogQuota,
            "retention": Retention,
            "thresholds": DetectionThresholds,
        }
        given = {name: kind for name, kind in parts.items() if stored.get(name) is not None}
        return {**stored, **{name: load(kind, stored[name]) for name, kind in given.items()}}


class PoliciesInForce(msgspec.Struct, frozen=True):
    backlog_quota: BacklogQuota = BacklogQuota()
    message_ttl_s: int = 0
    subscription_expiration_time_minutes: int = 0
    retention: Retention = Retention()
    thresholds: DetectionThresholds = DetectionThresholds()


def parse_size(text: str) -> int | None:
    """Read a size as Pulsar writes it. None means no limit."""
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


def _whole(value: int | None, unit: int, text: str, name: str) -> int:
    if value is None:
        return INFINITE
    if value % unit:
        raise PolicyError(f"retention {text!r} is not a whole number of {name}")
    return value // unit
