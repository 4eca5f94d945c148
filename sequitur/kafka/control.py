"""The control record of a topic: what its producers are to do about a backlog, without any I/O.

The program that checks quotas writes a record for each topic into a compacted topic of one
partition, again and again while the record holds. Producers read it. Key and value are JSON::

    ["backlog","orders"]
    {"format":1,"issued_ms":1700000000000,"valid_for_ms":30000,"policy":"producer_request_hold",
     "subscription":"billing","backlog_bytes":12582912,"limit_bytes":10485760}

A record counts for a limited time from when a producer reads it. Else producers would stand still
for ever after the program that checks has died. The policies have Pulsar's names. Pulsar's third
policy, `consumer_backlog_eviction`, asks nothing of producers.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from sequitur.errors import ControlRecordError
from sequitur.kafka.settings import system_name

if TYPE_CHECKING:
    from sequitur.kafka.settings import KafkaSettings

CONTROL_NAME: Final = "subscriptions"
"""The part of the topic's name behind the prefix."""

ProducerPolicy = Literal["producer_request_hold", "producer_exception"]

PROXIMITY_FROM: Final = 0.5
"""A lower share of a quota is not shown as its proximity, since it needs no attention."""

_KIND: Final = "backlog"
_FORMAT: Final = 1
_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

_NotNegative = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class ToDo(enum.Enum):
    GO_ON = enum.auto()
    """Accept it."""
    HOLD = enum.auto()
    """Wait until the backlog has room."""
    REFUSE = enum.auto()
    """Raise at once."""


_TO_DO: Final[dict[ProducerPolicy, ToDo]] = {
    "producer_request_hold": ToDo.HOLD,
    "producer_exception": ToDo.REFUSE,
}


class BacklogState(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="format", tag=_FORMAT
):
    # when it was measured, by the issuer's clock, epoch milliseconds: for people, and to tell
    # states apart. Clocks differ, so nothing is judged by it
    issued_ms: _NotNegative
    valid_for_ms: _NotNegative  # how long it counts after its arrival
    # what producers are to do; None while the backlog is within its quota
    policy: ProducerPolicy | None = None
    subscription: str | None = None  # the subscription with this largest backlog
    backlog_bytes: _NotNegative | None = None
    limit_bytes: int | None = None  # the quota by size; None or negative without one
    age_s: _Seconds | None = None  # age of the oldest event in the backlog
    limit_s: float | None = None  # the quota by age; None or negative without one

    def encode(self) -> bytes:
        """Return the value of the control record, without fields that are None."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, topic: str, value: bytes) -> BacklogState:
        """Read the value of a control record. Unknown fields are ignored."""
        try:
            version = msgspec.json.decode(value, type=_Version).format
            if version == _FORMAT:
                return msgspec.json.decode(value, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ControlRecordError(f"backlog of topic {topic!r}", str(error)) from error
        raise ControlRecordError(
            f"backlog of topic {topic!r}", f"format {version}, expected {_FORMAT}"
        )

    @property
    def to_do(self) -> ToDo:
        return ToDo.GO_ON if self.policy is None else _TO_DO[self.policy]

    @property
    def proximity(self) -> float | None:
        """The backlog's share of its quota, the larger of size and age; None without a quota."""
        pairs = ((self.backlog_bytes, self.limit_bytes), (self.age_s, self.limit_s))
        shares = [
            amount / limit
            for amount, limit in pairs
            if amount is not None and limit is not None and limit > 0
        ]
        return max(shares, default=None)

    @property
    def figures(self) -> str:
        """The backlog and its quota in words, for people."""
        told = []
        if self.backlog_bytes is not None and self.limit_bytes is not None:
            told.append(f"{_size(self.backlog_bytes)} of at most {_size(self.limit_bytes)}")
        if self.age_s is not None and self.limit_s is not None:
            told.append(f"the oldest event {self.age_s:g} s of at most {self.limit_s:g} s")
        whose = f" of subscription {self.subscription!r}" if self.subscription else ""
        return f"the backlog{whose} is over its quota: {', '.join(told) or 'no figures given'}"


class _Version(msgspec.Struct):
    format: int


def control_topic(kafka: KafkaSettings) -> str:
    """Return the topic of an installation's control records, and of its registry."""
    return system_name(kafka, CONTROL_NAME)


def key_of(topic: str) -> bytes:
    return msgspec.json.encode([_KIND, topic])


def topic_of(key: bytes | None) -> str | None:
    """Return the topic of a backlog record; None for the other records of the control topic."""
    try:
        parts = msgspec.json.decode(key or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # another kind of record
    match parts:
        case [kind, str(topic)] if kind == _KIND:
            return topic
        case [kind, *_] if kind == _KIND:
            raise ControlRecordError(f"key {key!r}", 'expected ["backlog", TOPIC]')
        case _:
            return None


def _size(value: int) -> str:
    unit, size = next((one for one in _UNITS if value >= one[1]), ("bytes", 1))
    return f"{value / size:.4g} {unit}" if size > 1 else f"{value} bytes"
