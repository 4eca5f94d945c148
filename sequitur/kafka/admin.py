"""What brokers say of topics, their partitions and leaders; the creation of topics.

`KafkaTopics` asks from any thread. Two others know of leaders, for what runs in an event loop:

- `kafka.wire.Wire` has the cluster's metadata for one producer or one thread.
- `kafka.leaders.Leaders` asks the leaders of partitions, and sends batches to them, by a wire.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import time
from collections import Counter
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from sequitur.base.process import beside
from sequitur.base.retry import brief_outages
from sequitur.errors import FatalError, RetriableError, TopicError, UnansweredError
from sequitur.kafka.connections import Bound, GivesWay, kept_connections
from sequitur.kafka.error_codes import Action, Request, action_of
from sequitur.kafka.log_reading import EARLIEST, LATEST
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.record_format import RecordLimit
from sequitur.kafka.shared_admin import SharedAdmin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from typing import TypeVar

    from sequitur.base.retry import Outages
    from sequitur.kafka.connections import Connections
    from sequitur.kafka.settings import KafkaSettings

    T = TypeVar("T")

_CREATION_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05
_TIMEOUT_S: Final = 10.0
"""If a broker hangs, it or a known other broker is asked again after so many seconds."""
_LOOK_S: Final = 0.2
_STOPPING_S: Final = 2.0
"""A job that has to stop waits so long for an answer; a live broker needs less."""
_LEARNS_IN_S: Final = 5.0
_KNOWN_FOR_S: Final = 60.0
_REFUSED_BY_FOR_S: Final = 1.0
"""Rows are refused by a topic's known settings for so long, then these are read again."""
_JUST_TOLD_S: Final = 0.05
"""An answer about leaders counts for so long for the next question of a thread."""
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Spark does not subscribe to these internal topics by a pattern."""
_BOTH_WAYS: Final = "message.timestamp.difference.max.ms"
"""Brokers before 3.6 have this setting instead of the two others."""
_BEHIND: Final = ("message.timestamp.before.max.ms", _BOTH_WAYS)
_AHEAD: Final = ("message.timestamp.after.max.ms", _BOTH_WAYS)
_RETENTION: Final = ("retention.ms",)
_RETAINED: Final = "retention.bytes"
_NO_LIMIT: Final = -1
_PRODUCER_EXPIRY: Final = "producer.id.expiration.ms"
_DEFAULT_EXPIRY_MS: Final = 86_400_000
_SPECS: Final = {
    EARLIEST: OffsetSpec.earliest(),  # type: ignore[no-untyped-call] # has no annotations
    LATEST: OffsetSpec.latest(),  # type: ignore[no-untyped-call] # likewise
}
_NO_TOPICS: Final = "the brokers do not list their topics"
_NO_OFFSETS: Final = "the brokers do not list the topics' offsets"


class KafkaTopics:
    """What brokers say of topics, of their partitions, and of these partitions' leaders.

    Threads share librdkafka's admin client. With `by_thread`, questions about topics, their
    partitions and settings use the connections of the calling thread. These ask another broker if
    one hangs. librdkafka's client waits for it, and would be five threads more.

    Raises:
        TopicError: The brokers do not answer, or refuse to.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        outages: Outages | None = None,
        admin: SharedAdmin | None = None,
        *,
        by_thread: bool = False,
    ) -> None:
        self._admin = admin or SharedAdmin(kafka)
        self._outages = outages or brief_outages()
        self._by_admin = _ByAdmin(self._admin, self._outages)
        self._by_thread = _ByThread(kafka, self._outages)
        self._brokers = self._by_thread if by_thread else self._by_admin
        self._known: dict[str, tuple[float, dict[str, str]]] = {}

    def partitions(self, topic: str) -> int | None:
        """Return a topic's number of partitions, None if the topic does not exist."""
        # Ask for all topics: asking for this one by name may create it.
        return self.counts([topic]).get(topic)

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the numbers of partitions of those topics that exist."""
        wanted = set(topics)
        found = self._told(Request.TOPICS, _NO_TOPICS, lambda: self._brokers.led(wanted))
        return dict(Counter(where.topic for where in found))

    def extents(
        self, topics: Iterable[str], times: Mapping[str, Iterable[int]] | None = None
    ) -> Extents:
        """Return where the partitions of topics begin and end, of those that are there.

        One request a leader for each of these, and for each time. A topic that is deleted
        meanwhile, and a partition that loses its leader, are left out when all is asked again.
        """
        wanted = set(topics)

        def ask() -> Extents:
            found = self._brokers.led(wanted)
            led = sorted(where for where, is_led in found.items() if is_led)
            starts = self._brokers.offsets(dict.fromkeys(led, EARLIEST))
            ends = self._brokers.offsets(dict.fromkeys(led, LATEST))
            since = {}
            for at_once in _one_a_partition(led, times or {}):
                times_ms = {one: max(ms, 0) for one, ms in at_once.items()}
                for one, offset in self._brokers.offsets(times_ms).items():
                    # Records that are written meanwhile are left out.
                    before_end = min(offset, ends[one]) if offset >= 0 else ends[one]
                    since[one, at_once[one]] = before_end
            return Extents(
                {one: (starts[one], ends[one]) for one in led},
                frozenset(where for where, is_led in found.items() if not is_led),
                since,
            )

        return self._told(Request.TOPICS, _NO_OFFSETS, ask)

    def matching(
        self, pattern: str, matches: Callable[[str], bool], written: Iterable[str]
    ) -> dict[str, int]:
        """Return the number of partitions of each matching topic. Raise if none matches."""
        if own := next(filter(matches, written), None):
            raise TopicError(f"input_pattern {pattern!r} matches {own!r}, which the job writes")
        found = {
            topic: partitions
            for topic, partitions in self._all().items()
            if topic not in _INTERNAL and matches(topic)
        }
        if not found:
            raise TopicError(f"input_pattern {pattern!r} matches no topic")
        return found

    def compacted(self, matches: Callable[[str], object]) -> list[str]:
        """Return the topics of some names that are compacted, whatever else is done to them.

        One whose settings are not told counts as compacted: it may be. They are asked again after a
        minute.
        """
        named = [topic for topic in self._all() if matches(topic)]
        found = self._known_configurations(named, may_be_gone=True)
        policies = {one: found.get(one, {}).get("cleanup.policy", "compact") for one in named}
        return sorted(topic for topic, policy in policies.items() if "compact" in policy)

    def _all(self) -> dict[str, int]:
        return self._told(Request.TOPICS, _NO_TOPICS, self._brokers.all_topics)

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the brokers' ids of topics: a topic that is recreated gets another.

        Topics that are not there, or may not be described, are left out; and so are all where
        brokers give no ids.
        """
        wanted = sorted(topics)
        if not wanted:
            return {}
        message = "the brokers do not describe the topics"
        return self._told(Request.TOPIC_IDS, message, lambda: self._brokers.ids(wanted))

    def require(self, topic: str) -> int:
        """Return a topic's number of partitions. Raise if the topic does not exist."""
        partitions = self.partitions(topic)
        if partitions is None:
            raise TopicError(f"input topic {topic!r} does not exist")
        return partitions

    @staticmethod
    def check_partitions(topic: str, found: int | None, wanted: int | None) -> None:
        """Raise if an existing topic has another number of partitions than the setting."""
        if found is not None and wanted not in {None, found}:
            raise TopicError(
                f"topic {topic!r} has {found} partitions, not output_partitions = {wanted}: "
                "leave the setting out, or name another topic"
            )

    def ensure(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> int:
        """Create a topic if it is missing; return its number of partitions."""
        there = self.partitions(topic)
        if there is not None:
            return there

        def create() -> bool:
            creation = TopicCreation(
                self._admin,
                topic,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config,
            )
            return creation.is_new(Request.TOPIC_OF_JOB, timeout_s=_TIMEOUT_S)

        message = f"topic {topic!r} cannot be created"
        is_new = self._told(Request.TOPIC_OF_JOB, message, create, brokers=self._by_admin)
        # The broker that is asked next may learn of the topic later than the one that answered.
        until_s = time.monotonic() + _LEARNS_IN_S
        while (there := self.partitions(topic)) is None and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        if there is None and not is_new:
            raise TopicError(
                f"topic {topic!r} exists, but the brokers do not list it yet: try again"
            )
        return partitions if there is None else there

    def record_limit(self, topic: str) -> RecordLimit:
        """Return what a topic takes of one record; a broker's default without the right to ask.

        The brokers are asked again after a second: a row that a topic does not take is quarantined.
        """
        try:
            found = self._known_configurations([topic], for_s=_REFUSED_BY_FOR_S)
        except TopicError as error:
            if _is_missing(error.__cause__):
                raise TopicError(
                    f"output topic {topic!r} does not exist: was it deleted? What it held is gone: "
                    "start over with a checkpoint and an app of its own"
                ) from error
            raise
        return RecordLimit.of(found.get(topic, {}))

    def require_keyless(self, topic: str) -> None:
        """Raise unless a topic takes records without a key: late and bad rows may have none."""
        if self.record_limit(topic).needs_key:
            raise TopicError(
                f"topic {topic!r} is compacted (cleanup.policy), and takes no record without a "
                "key, which a late or bad row need not have: set cleanup.policy = delete there, "
                "or name another topic"
            )

    def is_compacted(self, topic: str) -> bool:
        """Tell whether cleanup.policy is compaction alone; True without the right to ask."""
        policy = self._configuration(topic).get("cleanup.policy", "compact")
        return policy.split(",") == ["compact"]

    def timestamps(self, topic: str) -> TopicTimestamps:
        return TopicTimestamps.of(self._configuration(topic))

    def producer_expiry_ms(self) -> int:
        """Return how long brokers remember a producer, after its newest record's timestamp.

        Their default without the right to ask.
        """

        def ask() -> Collection[int]:
            # A broker that hung and answers again may not have rejoined its cluster yet.
            found: Collection[int] = self._admin.list_topics(timeout=_TIMEOUT_S).brokers
            if not found:
                raise TimeoutError
            return found

        message = "the brokers do not tell of each other"
        brokers = self._told(Request.TOPICS, message, ask, brokers=self._by_admin)
        told = (self._configuration(str(node), ResourceType.BROKER) for node in brokers)
        return min(int(one.get(_PRODUCER_EXPIRY, _DEFAULT_EXPIRY_MS)) for one in told)

    def _known_configurations(
        self, topics: Collection[str], *, for_s: float = _KNOWN_FOR_S, may_be_gone: bool = False
    ) -> dict[str, dict[str, str]]:
        """Return topics' settings, not older than `for_s`; empty without the right to ask."""
        now_s = time.monotonic()
        self._known = {
            topic: known for topic, known in self._known.items() if now_s - known[0] < _KNOWN_FOR_S
        }
        asked = [
            topic
            for topic in topics
            if topic not in self._known or now_s - self._known[topic][0] >= for_s
        ]
        for topic, found in self._configurations(asked, may_be_gone=may_be_gone).items():
            self._known[topic] = now_s, found
        return {topic: self._known[topic][1] for topic in topics if topic in self._known}

    def _configuration(self, name: str, kind: ResourceType = ResourceType.TOPIC) -> dict[str, str]:
        """Return settings with the brokers' defaults; empty without the right to ask."""
        return self._configurations([name], kind)[name]

    def _configurations(
        self,
        names: Sequence[str],
        kind: ResourceType = ResourceType.TOPIC,
        *,
        may_be_gone: bool = False,
    ) -> dict[str, dict[str, str]]:
        if not names:
            return {}

        # Settings of a broker are asked of this broker, so no other can answer.
        brokers = self._brokers if kind is ResourceType.TOPIC else self._by_admin

        def describe() -> dict[str, dict[str, str]]:
            found = {}
            for name, told in brokers.settings(names, kind).items():
                if not isinstance(told, KafkaException):
                    found[name] = told
                elif may_be_gone and action_to(Request.TOPIC_IDS, told) is Action.GO_WITHOUT:
                    continue
                elif action_to(Request.TOPIC_CONFIGS, told) is Action.GO_WITHOUT:
                    found[name] = {}
                else:
                    raise told
            return found

        what = f"{kind.name.lower()} {names[0]!r}{' and others' if names[1:] else ''}"
        message = f"the settings of {what} cannot be read"
        return self._told(Request.TOPIC_CONFIGS, message, describe, brokers=brokers)

    def high_watermarks(
        self, partitions: Iterable[SourcePartition], *, of_some: bool = False
    ) -> dict[SourcePartition, int]:
        """Return the offset behind the last record of each partition.

        With `of_some` those are left out whose leaders do not answer, as long as one does.
        """
        if not of_some:
            return self._offsets(partitions, LATEST)
        wanted = dict.fromkeys(partitions, LATEST)
        brokers = self._by_thread  # librdkafka answers for all partitions or for none

        def ask() -> dict[SourcePartition, int]:
            found = brokers.some_offsets(wanted)
            if wanted and not found:
                raise TimeoutError
            return found

        return self._told(Request.TOPICS, _NO_OFFSETS, ask, brokers=brokers)

    def offsets_since(
        self, partitions: Iterable[SourcePartition], time_ms: int
    ) -> dict[SourcePartition, int]:
        """Return of each partition the first offset whose timestamp is not before a time.

        Where there is none it is the offset behind the last record. Records that are written
        meanwhile are left out.
        """
        wanted = list(partitions)
        ends = self.high_watermarks(wanted)
        found = self._offsets(wanted, max(time_ms, 0))
        return {one: found[one] if found[one] >= 0 else ends[one] for one in wanted}

    def delete_before(self, offsets: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """Delete each partition's records before an offset; return where the logs begin then."""
        wanted = [TopicPartition(*where, offset) for where, offset in offsets.items()]
        if not wanted:
            return {}

        def ask() -> dict[SourcePartition, int]:
            deleted = self._admin.delete_records(wanted, request_timeout=_TIMEOUT_S)
            return {
                SourcePartition(asked.topic, asked.partition): answer.result(
                    _TIMEOUT_S
                ).low_watermark
                for asked, answer in deleted.items()
            }

        return self._told(
            Request.TOPICS, "records cannot be deleted", ask, learns=True, brokers=self._by_admin
        )

    def own_retention(self, topic: str) -> OwnRetention:
        return OwnRetention.of(self._configuration(topic))

    def known_retentions(self, topics: Collection[str]) -> dict[str, OwnRetention]:
        """Return the `own_retention` of existing topics. It is read again after a minute."""
        found = self._known_configurations(topics, may_be_gone=True)
        return {topic: OwnRetention.of(one) for topic, one in found.items()}

    def low_watermarks(self, partitions: Iterable[SourcePartition]) -> dict[SourcePartition, int]:
        """Return the offset of each partition's first record that still exists."""
        return self._offsets(partitions, EARLIEST)

    def _offsets(
        self, partitions: Iterable[SourcePartition], time_ms: int
    ) -> dict[SourcePartition, int]:
        wanted = dict.fromkeys(partitions, time_ms)
        if not wanted:
            return {}
        return self._told(
            Request.TOPICS, _NO_OFFSETS, lambda: self._brokers.offsets(wanted), learns=True
        )

    def _told(
        self,
        request: Request,
        message: str,
        ask: Callable[[], T],
        *,
        learns: bool = False,
        brokers: _ByAdmin | _ByThread | None = None,
    ) -> T:
        asked = self._brokers if brokers is None else brokers
        return answered(
            self._outages,
            request,
            message,
            lambda: asked.run(ask),
            timeout_s=_TIMEOUT_S,
            before_next=asked.learn if learns else bool,
        )


class _ByAdmin:
    """Asks by librdkafka's admin client, which threads share."""

    def __init__(self, admin: SharedAdmin, outages: Outages) -> None:
        self._admin = admin
        self._outages = outages

    def run(self, ask: Callable[[], T]) -> T:
        """Ask in a thread: librdkafka's calls do not notice a stop, and a broker may hang."""
        answer, until_s = beside(ask, "asks brokers"), math.inf
        while not answer.done() and time.monotonic() < until_s:
            wait([answer], timeout=_LOOK_S)
            if until_s == math.inf and self._outages.is_over:
                until_s = time.monotonic() + _STOPPING_S
        if not answer.done():
            raise TimeoutError
        return answer.result()

    def learn(self) -> None:
        """Read where partitions are, for the next question."""
        with contextlib.suppress(KafkaException):
            self._admin.list_topics(timeout=_LEARNS_IN_S)

    def led(self, topics: Collection[str]) -> dict[SourcePartition, bool]:
        # Ask for all topics: asking for these by name may create them.
        return {
            SourcePartition(topic, number): one.leader >= 0
            for topic, listed in self._admin.list_topics(timeout=_TIMEOUT_S).topics.items()
            if topic in topics
            for number, one in listed.partitions.items()
        }

    def all_topics(self) -> dict[str, int]:
        # For a topic with partitions an error only means that leaders are unknown for now.
        return {
            name: len(found.partitions)
            for name, found in self._admin.list_topics(timeout=_TIMEOUT_S).topics.items()
            if found.partitions or not found.error
        }

    def settings(
        self, names: Iterable[str], kind: ResourceType
    ) -> dict[str, dict[str, str] | KafkaException]:
        """Return the settings of each, or why the brokers do not tell them."""
        wanted = [ConfigResource(kind, name) for name in names]
        asked = self._admin.describe_configs(wanted, request_timeout=_TIMEOUT_S)
        found: dict[str, dict[str, str] | KafkaException] = {}
        for one, answer in asked.items():
            try:
                entries = answer.result(_TIMEOUT_S)
            except KafkaException as error:
                found[one.name] = error
            else:
                found[one.name] = {name: str(entry.value) for name, entry in entries.items()}
        return found

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        asked = TopicCollection(list(topics))
        described = self._admin.describe_topics(asked, request_timeout=_TIMEOUT_S)
        found: dict[str, str] = {}
        for topic, answer in described.items():
            try:
                given = answer.result(_TIMEOUT_S).topic_id
            except KafkaException as error:
                if action_to(Request.TOPIC_IDS, error) is not Action.GO_WITHOUT:
                    raise
                continue
            if given.get_most_significant_bits() or given.get_least_significant_bits():
                found[topic] = str(given)
        return found

    def offsets(self, wanted: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """Return each partition's offset at its time, for all partitions or for none."""
        if not wanted:
            return {}
        asked = {
            TopicPartition(*where): _SPECS.get(time_ms) or OffsetSpec.for_timestamp(time_ms)
            for where, time_ms in wanted.items()
        }
        found = self._admin.list_offsets(asked, request_timeout=_TIMEOUT_S)
        return {
            SourcePartition(one.topic, one.partition): answer.result(_TIMEOUT_S).offset
            for one, answer in found.items()
        }


class _ByThread:
    """Asks by the connections of the calling thread, and answers what `_ByAdmin` answers of topics.

    A broker that hangs is not waited for, unless it leads what is asked for.
    """

    def __init__(self, kafka: KafkaSettings, outages: Outages) -> None:
        self._kafka = kafka
        self._outages = outages

    def run(self, ask: Callable[[], T]) -> T:
        return ask()

    def learn(self) -> None:
        """Do nothing: each question begins with this."""

    def led(self, topics: Collection[str]) -> dict[SourcePartition, bool]:
        wire = self._refreshed(topics, self._bound()).wire
        return {
            SourcePartition(topic, one): wire.leader(topic, one) is not None
            for topic in sorted(topics)
            for one in range(wire.partitions(topic) or 0)
        }

    def all_topics(self) -> dict[str, int]:
        bound = self._bound()
        connections = self._refreshed((), bound)
        return connections.run(connections.wire.all_topics(), bound)

    def settings(
        self, names: Sequence[str], _kind: ResourceType
    ) -> dict[str, dict[str, str] | KafkaException]:
        bound = self._bound()
        connections = self._refreshed((), bound)
        told = connections.run(connections.wire.topic_settings(names), bound)
        return {
            topic: KafkaException(KafkaError(found)) if isinstance(found, int) else found
            for topic, found in told.items()
        }

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        wire = self._refreshed(topics, self._bound()).wire
        known = {topic: wire.topic_id(topic) for topic in topics}
        return {
            topic: base64.b64encode(one).decode().rstrip("=")  # in librdkafka's form
            for topic, one in known.items()
            if one and any(one)
        }

    def offsets(self, wanted: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        found = self.some_offsets(wanted)
        if len(found) < len(wanted):
            raise TimeoutError
        return found

    def some_offsets(self, wanted: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """Return the offsets of those partitions whose leaders answer now."""
        if not wanted:
            return {}
        bound = self._bound()
        connections = kept_connections(self._kafka, bound)
        topics = {one.topic for one in wanted}
        # If no broker tells now who leads, those are asked that led when one told last. A step asks
        # for ids first, and then goes by the same answer.
        if not connections.leaders.were_told(topics, _JUST_TOLD_S):
            connections.run(connections.leaders.refresh(topics), bound)
        found: dict[SourcePartition, int] = {}
        for time_ms in sorted(set(wanted.values())):
            asked = [OutputPartition(*one) for one, at in wanted.items() if at == time_ms]
            told = connections.run(connections.leaders.offsets(asked, time_ms), bound)
            found |= {SourcePartition(*one): offset for one, offset in told.items()}
        return found

    def _bound(self) -> Bound:
        """Return how long one question may take, less if the job has to stop."""
        gives_way = GivesWay(lambda: self._outages.is_over)
        return Bound(time.monotonic() + 2 * _TIMEOUT_S, gives_way)

    def _refreshed(self, topics: Collection[str], bound: Bound) -> Connections:
        """Return the connections, after brokers have told where topics are."""
        connections = kept_connections(self._kafka, bound)
        if not connections.run(connections.leaders.refresh(topics), bound):
            raise RetriableError("no broker answers")
        return connections


class Extents(NamedTuple):
    # the first existing offset, and the one behind the last
    logs: dict[SourcePartition, tuple[int, int]]
    # partitions without a leader now; `logs` does not have them
    leaderless: frozenset[SourcePartition]
    # the first offset whose timestamp is not before a time, by partition and time; the end if there
    # is none
    since: dict[tuple[SourcePartition, int], int]


def _one_a_partition(
    partitions: Iterable[SourcePartition], times: Mapping[str, Iterable[int]]
) -> list[dict[SourcePartition, int]]:
    """Split the pairs so that no request names a partition twice: brokers refuse that."""
    found: list[dict[SourcePartition, int]] = []
    for where in partitions:
        for number, time_ms in enumerate(sorted(set(times.get(where.topic, ())))):
            if number == len(found):
                found.append({})
            found[number][where] = time_ms
    return found


@dataclass(frozen=True, slots=True)
class TopicTimestamps:
    # whether records keep their own timestamps. False with `message.timestamp.type =
    # LogAppendTime`, and without the right to ask
    are_kept: bool
    # how far timestamps may be before now: older records are refused, or soon deleted by retention.
    # None without a limit, or without the right to ask
    oldest_ms: int | None
    newest_ms: int | None = None  # how far timestamps may be after now; None as above

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Self:
        """That of a topic's configuration.

        Half of each limit is left: as time to read before retention deletes, for the duration of a
        step until its last batch arrives, and for clocks that differ.
        """
        behind = [*_BEHIND, *(_RETENTION if "delete" in config.get("cleanup.policy", "") else ())]
        return cls(
            are_kept=config.get("message.timestamp.type") == "CreateTime",
            oldest_ms=_half_of_least(config, behind),
            newest_ms=_half_of_least(config, _AHEAD),
        )


def _half_of_least(config: Mapping[str, str], names: Iterable[str]) -> int | None:
    limits = [int(config.get(name, _NO_LIMIT)) for name in names]
    least = min((limit for limit in limits if limit > _NO_LIMIT), default=None)
    return None if least is None else least // 2


@dataclass(frozen=True, slots=True)
class OwnRetention:
    """What the brokers themselves delete from a topic, whether or not it is known."""

    time_ms: int | None = None  # it deletes records older than this; None if time does not matter
    # it deletes what exceeds so many bytes in a partition; None if size does not matter
    size_bytes: int | None = None
    is_compacted: bool = False  # it deletes records with a newer record of the same key
    deletes: bool = True  # whether records may be deleted by offset, too
    is_known: bool = True  # whether the brokers tell; False without the right to ask

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Self:
        if not config:
            return cls(is_known=False)
        policies = config.get("cleanup.policy", "delete")
        if "delete" not in policies:
            return cls(is_compacted="compact" in policies, deletes=False)
        time_ms, size = (int(config.get(name, _NO_LIMIT)) for name in (*_RETENTION, _RETAINED))
        return cls(
            time_ms=None if time_ms <= _NO_LIMIT else time_ms,
            size_bytes=None if size <= _NO_LIMIT else size,
            is_compacted="compact" in policies,
        )

    @property
    def sentences(self) -> list[str]:
        """The retention in the words of the settings."""
        return self.limits if self.is_known else ["settings that may not be read"]

    @property
    def limits(self) -> list[str]:
        """The known limits, in the words of the settings."""
        told = []
        if self.time_ms is not None:
            told.append(f"retention.ms = {self.time_ms}")
        if self.size_bytes is not None:
            told.append(f"retention.bytes = {self.size_bytes}")
        return told


async def create_topic(
    kafka: KafkaSettings, topic: str, *, partitions: int, replication_factor: int
) -> bool:
    """Create a topic unless it exists. Return whether it is new."""
    admin = AdminClient(kafka.librdkafka())
    creation = TopicCreation(
        admin, topic, partitions=partitions, replication_factor=replication_factor
    )
    while not creation.is_answered:
        await asyncio.to_thread(admin.poll, _POLL_S)  # it asks for tokens only while it is polled
    try:
        return creation.is_new(Request.TOPIC_OF_DAEMON)
    except KafkaException as error:
        reason = error.args[0]
        passes = action_of(Request.TOPIC_OF_DAEMON, reason.code()) is Action.RETRY
        sentence = f"topic {topic} could not be created: {reason.str()}"
        raise (RetriableError if passes else FatalError)(sentence) from error


class TopicCreation:
    def __init__(
        self,
        admin: AdminClient | SharedAdmin,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        wanted = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replication_factor,
            config=dict(config or {}),
        )
        created = admin.create_topics(
            [wanted], operation_timeout=_CREATION_TIMEOUT_S, request_timeout=_CREATION_TIMEOUT_S
        )
        self._created: Future[None] = created[topic]

    @property
    def is_answered(self) -> bool:
        return self._created.done()

    def is_new(self, request: Request, *, timeout_s: float = _CREATION_TIMEOUT_S) -> bool:
        """Wait for the answer, and return whether the topic is new."""
        try:
            self._created.result(timeout_s)
        except KafkaException as error:
            if action_of(request, error.args[0].code()) is not Action.DONE:
                raise
            return False
        return True


def answered(
    outages: Outages,
    request: Request,
    message: str,
    ask: Callable[[], T],
    *,
    timeout_s: float,
    before_next: Callable[[], object] = bool,
) -> T:
    """Wait for the brokers' answer, and return it.

    Raises:
        TopicError: The brokers refuse, or no answer came while it was waited for.
    """
    briefly_until_s = time.monotonic() + timeout_s

    def sentence(error: Exception) -> str:
        is_silence = isinstance(error, TimeoutError | RetriableError)
        return f"{message}: {f'no answer in {timeout_s:g} s' if is_silence else error}"

    def may_pass(error: Exception) -> bool:
        is_brief = time.monotonic() < briefly_until_s
        return _passes(request, error, *[Action.RETRY_BRIEFLY] * is_brief)

    def passes(error: Exception) -> str | None:
        if not may_pass(error):
            return None
        before_next()
        return sentence(error)

    try:
        return outages.outlast(ask, passes)
    except (KafkaException, TimeoutError, RetriableError, FatalError) as error:
        kind = UnansweredError if may_pass(error) else TopicError
        raise kind(sentence(error)) from error


def _is_missing(error: BaseException | None) -> bool:
    """Return whether brokers do not know a topic: they do not know yet, or it was deleted."""
    return (
        isinstance(error, KafkaException)
        and action_to(Request.TOPICS, error) is Action.RETRY_BRIEFLY
    )


def action_to(request: Request, error: KafkaException) -> Action:
    return action_of(request, error.args[0].code())


def _passes(request: Request, error: Exception, *briefly: Action) -> bool:
    if not isinstance(error, KafkaException):
        return isinstance(error, TimeoutError | RetriableError)
    return action_to(request, error) in (Action.RETRY, *briefly)
