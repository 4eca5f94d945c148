"""Policies of a topic, and of the namespace, under Pulsar's names and by its rules.

If a topic does not have a policy, that of the namespace holds. Kafka has no namespaces, so it is
one default for all topics of the cluster. If neither has it, it is off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from sequitur.errors import PolicyError, StateFormatError

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


@dataclass(frozen=True, slots=True)
class BacklogQuota:
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

    def to_document(self) -> dict[str, Any]:
        """Return it under Pulsar's names, with -1 for no limit."""
        return {
            "limit": INFINITE if self.limit_bytes is None else self.limit_bytes,
            "limitTime": INFINITE if self.limit_s is None else self.limit_s,
            "policy": self.policy.value,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
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
        """The time limit in seconds, None for ever."""
        return None if self.time_minutes < 0 else self.time_minutes * 60

    @property
    def size_bytes(self) -> int | None:
        """The size limit in bytes, None for no limit."""
        return None if self.size_mb < 0 else self.size_mb * _MB

    def to_document(self) -> dict[str, Any]:
        return {
            "retentionTimeInMinutes": self.time_minutes,
            "retentionSizeInMB": self.size_mb,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            time_minutes=int(document["retentionTimeInMinutes"]),
            size_mb=int(document["retentionSizeInMB"]),
        )


@dataclass(frozen=True, slots=True)
class DetectionThresholds:
    """The thresholds from which on a subscription is reported. 0 switches a report off."""

    slow_backlog: int = 1_000_000  # unacked messages
    slow_age_s: int = 3_600  # age of the oldest of them, in seconds
    # messages since the first unacked one, if few of them are unacked
    ack_hole_entries: int = 10_000
    ack_hole_share: float = 0.1  # at most this share of them is unacked
    # messages that were read and are unacked; Pulsar's `maxUnackedMessagesPerSubscription`, at
    # which the dispatch stops
    unacked_messages: int = 200_000

    def __post_init__(self) -> None:
        if min(getattr(self, one.name) for one in fields(self)) < 0 or self.ack_hole_share > 1:
            raise PolicyError("a threshold is not negative, and a share not above 1")

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON. Pulsar has a name only for the last field."""
        return {
            "slowBacklog": self.slow_backlog,
            "slowAgeInSeconds": self.slow_age_s,
            "ackHoleEntries": self.ack_hole_entries,
            "ackHoleShare": self.ack_hole_share,
            "maxUnackedMessagesPerSubscription": self.unacked_messages,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            slow_backlog=int(document["slowBacklog"]),
            slow_age_s=int(document["slowAgeInSeconds"]),
            ack_hole_entries=int(document["ackHoleEntries"]),
            ack_hole_share=float(document["ackHoleShare"]),
            unacked_messages=int(document["maxUnackedMessagesPerSubscription"]),
        )


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The settings of a topic or of the namespace. None means not set."""

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
        return all(getattr(self, one.name) is None for one in fields(self))

    def over(self, default: TopicPolicies) -> TopicPolicies:
        """Return these policies, with unset ones taken from `default`."""
        absent = (one.name for one in fields(self) if getattr(self, one.name) is None)
        return replace(self, **{name: getattr(default, name) for name in absent})

    def in_force(self) -> PoliciesInForce:
        built_in = PoliciesInForce()
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(built_in, **{name: one for name, one in given.items() if one is not None})

    def to_document(self) -> dict[str, Any]:
        """Return the set policies under Pulsar's names, and the format's number."""
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


def _optional_int(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    return None if value is None else int(value)


def _whole(value: int | None, unit: int, text: str, name: str) -> int:
    if value is None:
        return INFINITE
    if value % unit:
        raise PolicyError(f"retention {text!r} is not a whole number of {name}")
    return value // unit
