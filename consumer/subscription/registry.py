"""The registry: which durable subscriptions there are, and which policies hold.

It is in a compacted topic. Here is what its records say, and the rules of a change: a process that
makes one reads the registry, asks here for the records to write, and writes them if nobody else has
written meanwhile (`registry_store`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from sequitur.base.stored import dump, load
from sequitur.consumer.subscription.policies import (
    BacklogQuota,
    DetectionThresholds,
    Retention,
    TopicPolicies,
)
from sequitur.errors import (
    StateFormatError,
    SubscriptionExistsError,
    SubscriptionNameError,
    UnknownSubscriptionError,
)
from sequitur.kafka.settings import system_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.subscription.policies import PoliciesInForce
    from sequitur.kafka.settings import KafkaSettings


Changes: TypeAlias = "dict[bytes, bytes | None]"
"""Records to write: a value for each key, None to delete it."""
RECORD_FORMAT: Final = 2
"""No release had 1. It is refused, and not used again. A new field needs a new format: older
versions would drop it."""
NOTED_EACH_MS: Final = 60_000
"""The time of the last connection is written at most so often: expiration counts in minutes."""
_SUBSCRIPTION: Final = "subscription"
_POLICIES: Final = "policies"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


class SubscriptionType(StrEnum):
    """How a subscription distributes messages to its consumers."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"
    KEY_SHARED = "Key_Shared"

    @property
    def takes_cumulative_acks(self) -> bool:
        """Whether one ack may ack all messages before it."""
        return self in {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}


class _Subscription(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag=RECORD_FORMAT,
):
    name: str
    topics: tuple[str, ...]
    type: SubscriptionType  # how its messages are given to consumers
    created_ms: int  # when it was created, epoch milliseconds
    epoch: int = 0  # how often its cursors were reset
    last_connected_ms: int = 0  # when it last had a consumer; its creation, if it never had one
    # after so long without a consumer it is deleted; 0 never, None for its topics' policies
    expiration_time_minutes: int | None = None
    # when it was last reset to read messages again; None if it was not. Messages from before that
    # moment do not expire until it has acked them
    reset_ms: int | None = None
    # partition of the cursors' topic with its cursors; None if no owner has noted it: then all
    # partitions are searched
    partition: int | None = None


class SubscriptionRecord(_Subscription, frozen=True, kw_only=True):
    TITLE: ClassVar = "the record of a subscription"
    group: str  # id of its consumer group, see `group_of_new`
    # its owner or the checks copy messages to this topic before a backlog quota evicts them; None:
    # no copies
    evicted_topic: str | None = None
    # a job may hold so many bytes for its frontier, which do not count for quotas that hold
    # producers; None for other subscriptions
    max_held_bytes: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.topics:
            raise ValueError(f"subscription {self.name!r} is on no topic")

    @property
    def key(self) -> bytes:
        return _key(_SUBSCRIPTION, self.name)

    def encode(self) -> bytes:
        return _json(dump(self))

    @classmethod
    def decode(cls, value: bytes) -> Self:
        document = _loaded(value, "a subscription")
        number = document.get("format") if isinstance(document, dict) else None
        if number != RECORD_FORMAT:
            raise StateFormatError(
                f"{cls.TITLE} has an unknown format, {number!r}, this version reads "
                f"{RECORD_FORMAT}: let the version that wrote it delete the subscription, and "
                "create it again"
            )
        try:
            return load(cls, document)
        except StateFormatError as error:
            raise StateFormatError(f"{cls.TITLE} cannot be read: {error.__cause__}") from error


_KEEPS: Final = TopicPolicies(
    BacklogQuota(), 0, 0, Retention(time_minutes=-1, size_mb=-1), DetectionThresholds()
)
"""The policies in force if the stored ones cannot be read."""


@dataclass(frozen=True)
class Registry:
    """All that is registered at one moment."""

    subscriptions: Mapping[str, SubscriptionRecord] = field(
        default_factory=lambda: MappingProxyType({})
    )
    # the set policies by topic; the namespace's under None
    policies: Mapping[str | None, TopicPolicies] = field(
        default_factory=lambda: MappingProxyType({})
    )
    # the subscriptions with unreadable records, and why: usually another version. Their topics are
    # unknown, so nothing is deleted while there are any
    unread: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # the topics with unreadable policies. Nothing in them expires, is evicted or is deleted
    unread_policies: frozenset[str | None] = frozenset()

    @classmethod
    def of(cls, records: Mapping[bytes, bytes]) -> Self:
        """Read the records of the topic.

        Those of other kinds, such as backlogs, are passed over, and so are those whose key nobody
        here writes. One that cannot be read is named, and stops no other.
        """
        subscriptions: dict[str, SubscriptionRecord] = {}
        policies: dict[str | None, TopicPolicies] = {}
        unread: dict[str, str] = {}
        unread_policies: set[str | None] = set()
        for key, value in records.items():
            try:
                kind, name = read_key(key)
            except StateFormatError:
                continue
            try:
                if kind == _SUBSCRIPTION and name is not None:
                    subscriptions[name] = _record_of(name, value)
                elif kind == _POLICIES:
                    policies[name] = load(TopicPolicies, _loaded(value, "policies"))
            except StateFormatError as error:
                if kind == _SUBSCRIPTION and name is not None:
                    unread[name] = str(error)
                else:
                    unread_policies.add(name)
        return cls(
            MappingProxyType(subscriptions),
            MappingProxyType(policies),
            MappingProxyType(unread),
            frozenset(unread_policies),
        )

    def require(self, name: str) -> SubscriptionRecord:
        if (found := self.find(name)) is None:
            raise UnknownSubscriptionError(f"there is no subscription {name!r}")
        return found

    def find(self, name: str) -> SubscriptionRecord | None:
        """Return a subscription, None if it is not registered. Raise if it is unreadable."""
        if name in self.unread:
            raise StateFormatError(f"subscription {name!r}: {self.unread[name]}")
        return self.subscriptions.get(name)

    def on(self, topic: str) -> list[SubscriptionRecord]:
        return self._on.get(topic, [])

    def partition_of(self, name: str) -> int | None:
        """Return the partition of the cursors' topic that a subscription's cursors are in.

        None: it is not registered, or that is not noted.
        """
        found = self.subscriptions.get(name)
        return None if found is None else found.partition

    def topics(self) -> list[str]:
        return sorted(self._on)

    @cached_property
    def _on(self) -> dict[str, list[SubscriptionRecord]]:
        found: dict[str, list[SubscriptionRecord]] = {}
        for _, record in sorted(self.subscriptions.items()):
            for topic in dict.fromkeys(record.topics):
                found.setdefault(topic, []).append(record)
        return found

    def set_policies(self, topic: str | None) -> TopicPolicies:
        return self.policies.get(topic, TopicPolicies())

    def policies_of(self, topic: str) -> PoliciesInForce:
        """Return what holds for a topic: its own, then the namespace's, else nothing.

        In the place of what cannot be read, all is kept.
        """
        if topic not in self._in_force:
            self._in_force[topic] = self._policies_of(topic)
        return self._in_force[topic]

    @cached_property
    def _in_force(self) -> dict[str, PoliciesInForce]:
        return {}

    def _policies_of(self, topic: str) -> PoliciesInForce:
        if topic in self.unread_policies:
            return _KEEPS.in_force()
        if None in self.unread_policies:
            return self.set_policies(topic).over(_KEEPS).in_force()
        return self.set_policies(topic).over(self.set_policies(None)).in_force()

    def expiration_minutes(self, record: SubscriptionRecord) -> int:
        """Return after how long without a consumer a subscription is deleted; 0 never.

        Its own time comes first. Of several topics the longest counts, and never is the longest.
        """
        if record.expiration_time_minutes is not None:
            return record.expiration_time_minutes
        of_topics = [
            self.policies_of(topic).subscription_expiration_time_minutes for topic in record.topics
        ]
        return 0 if 0 in of_topics else max(of_topics)

    def created(self, record: SubscriptionRecord) -> Changes:
        if self.find(record.name) is not None:
            raise SubscriptionExistsError(f"there is a subscription {record.name!r} already")
        return {record.key: record.encode()}

    def deleted(self, name: str) -> Changes:
        return {self.require(name).key: None}

    def connected(self, name: str, *, now_ms: int, partition: int | None = None) -> Changes:
        record = self.require(name)
        return _changed(
            replace(
                record,
                last_connected_ms=max(now_ms, record.last_connected_ms),
                partition=record.partition if partition is None else partition,
            )
        )

    def opened(self, record: SubscriptionRecord, *, now_ms: int) -> Changes:
        known = replace(
            self.require(record.name),
            evicted_topic=record.evicted_topic,
            max_held_bytes=record.max_held_bytes,
        )
        noted = Registry({record.name: known})
        return noted.connected(record.name, now_ms=now_ms, partition=record.partition)

    def reset(self, name: str, *, epoch: int, now_ms: int) -> Changes:
        """Return the changes that note a reset; nothing if it is noted already."""
        record = self.require(name)
        if record.epoch >= epoch:
            return {}
        return _changed(replace(record, epoch=epoch, reset_ms=now_ms))

    def with_policies(self, topic: str | None, policies: TopicPolicies) -> Changes:
        if topic in self.unread_policies:
            raise StateFormatError(f"the policies of {topic or 'the namespace'} cannot be read")
        value = None if policies.is_empty else _json(dump(policies))
        return {_key(_POLICIES, topic): value}


def group_of_new(kafka: KafkaSettings, name: str) -> str:
    return system_name(kafka, name)


def check_name(name: str) -> str:
    """Return the name of a subscription, if it may be one.

    It is in the group's id, for which Kafka takes any text, and is the `group.instance.id` of the
    member, for which it takes what it takes as the name of a topic.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise SubscriptionNameError(
            f"subscription {name!r}: expected letters, digits, '.', '_' and '-', at most 249"
        )
    return name


def read_key(key: bytes) -> tuple[str, str | None]:
    """Return the kind and the name in a record's key."""
    found = _loaded(key, "a key of the registry")
    match found:
        case [str(kind), str() | None as name]:
            return kind, name
    raise StateFormatError(f"{key!r} is not a key of the registry")


def _record_of(name: str, value: bytes) -> SubscriptionRecord:
    record = SubscriptionRecord.decode(value)
    if record.name != name:
        raise StateFormatError(f"the record of {record.name!r} has the key of {name!r}")
    return record


def _changed(record: SubscriptionRecord) -> Changes:
    return {record.key: record.encode()}


def _key(kind: str, name: str | None) -> bytes:
    return _json([kind, name])


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _loaded(value: bytes, what: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise StateFormatError(f"{what} is not JSON: {value[:80]!r}") from error
