"""Asking Kafka for all that backlogs are judged by: cursors, logs, ages, and who is connected."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from sequitur.consumer import OutputPartition, SourcePartition
from sequitur.consumer.subscription.survey import Held, Log, Survey
from sequitur.pipelines._errors import TopicError, UnansweredError
from sequitur.pipelines.kafka.connections import kept_connections
from sequitur.pipelines.kafka.groups import ConsumerGroups
from sequitur.pipelines.kafka.topics import KafkaTopics
from sequitur.pipelines.subscriptions.cursor_store import CursorStore
from sequitur.pipelines.subscriptions.registry_store import RegistryStore
from sequitur.producer import FatalError, RetriableError
from sequitur.producer.kafka.arrivals import arrivals
from sequitur.producer.kafka.error_codes import Action, Request, action_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from confluent_kafka import Message

    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.pipelines.subscriptions.cursor_store import StoredSubscription
    from sequitur.producer import KafkaSettings

_PASSES: Final = frozenset({Action.RETRY, Action.RETRY_BRIEFLY})
_POLL_S: Final = 0.1
_RECORDS: Final = 1_000
_FEW: Final = 4
"""Of more subscriptions than these all partitions of cursors are read once."""
_PATIENCE_S: Final = 60.0


class Surveyor:
    """Takes surveys of a cluster.

    Args:
        kafka: How to reach the brokers.
        replication_factor: How many replicas topics of subscriptions get that are not there; -1
            for the broker's default.
        outages: How long what passes is waited for.

    Attributes:
        kafka: How to reach the brokers.
        registry: The registry in Kafka.
        cursors: The cursors in Kafka.
        topics: Further questions.
        groups: Further questions.
    """

    def __init__(
        self, kafka: KafkaSettings, *, replication_factor: int = -1, outages: Outages | None = None
    ) -> None:
        self.kafka = kafka
        self.registry = RegistryStore(kafka, replication_factor=replication_factor, outages=outages)
        self.cursors = CursorStore(kafka, replication_factor=replication_factor, outages=outages)
        self.topics = KafkaTopics(kafka, outages)
        self.groups = ConsumerGroups(kafka, outages)

    def survey(
        self,
        wanted: Collection[str] | None = None,
        *,
        now_ms: int | None = None,
        known: Mapping[str, StoredSubscription] | None = None,
    ) -> Survey:
        """Ask for all there is of topics and of the subscriptions on them.

        Args:
            wanted: Topics; by default all that subscriptions are on. Those that are not there are
                left out.
            now_ms: The time; by default this machine's.
            known: What is stored of the subscriptions; by default it is read.

        Raises:
            CursorError: A stored cursor was changed, or is of another version.
            StateFormatError: A record of the registry is of another version.
            TopicError: The brokers do not answer.
        """
        registry = self.registry.read()
        topics = registry.topics() if wanted is None else sorted(set(wanted))
        names = sorted({one.name for topic in topics for one in registry.on(topic)})
        # Cursors before ends: else an ack could lie beyond the end that was asked.
        stored = self.stored(names) if known is None else known
        held = {
            name: {where: Held(one.cursor, one.sizes) for where, one in found.cursors.items()}
            for name, found in stored.items()
        }
        survey = Survey(
            now_ms=int(time.time() * 1000) if now_ms is None else now_ms,
            registry=registry,
            connected=frozenset(self.groups.connected(names)),
            logs=self._logs(topics),
            held=held,
            epochs={name: found.state.epoch for name, found in stored.items()},
        )
        return self.with_oldest(survey)

    def stored(self, names: Sequence[str]) -> dict[str, StoredSubscription]:
        """Return what is stored of subscriptions; a partition of the topic is not read twice."""
        if len(names) <= _FEW:
            found = {name: self.cursors.read(name) for name in names}
        else:
            found = {**self.cursors.read_all(names)}
        return {name: one for name in names if (one := found.get(name)) is not None}

    def with_oldest(self, survey: Survey) -> Survey:
        """Return a survey with the ages of what is not acked; what it knows is not asked again.

        Raises:
            TopicError: The brokers do not answer.
        """
        places = {
            (where, survey.first_unacked(record.name, where))
            for where in survey.logs
            for record in survey.registry.on(where.topic)
        }
        behind = {one for one in places if one[1] < survey.logs[one[0]].end}
        ends = {where: log.end for where, log in survey.logs.items()}
        asked = timestamps_from(self.kafka, behind - survey.oldest_ms.keys(), ends)
        known = {one: ms for one, ms in survey.oldest_ms.items() if one in behind}
        return survey.with_oldest({**known, **asked})

    def forget(self, subscription: str) -> None:
        """Delete cursors and group of a subscription that is not in the registry any more.

        Raises:
            CursorError: What is stored was changed, or is of another version.
            TopicError: The group has a member, or the brokers do not answer.
        """
        with self.cursors.take(subscription) as owner:
            owner.remove()
        self.groups.delete(subscription)

    def _logs(self, topics: Iterable[str]) -> dict[SourcePartition, Log]:
        counts = {topic: self.topics.partitions(topic) for topic in topics}
        wanted = [
            SourcePartition(topic, number)
            for topic, count in counts.items()
            for number in range(count or 0)
        ]
        starts, ends = self.topics.low_watermarks(wanted), self.topics.high_watermarks(wanted)
        sizes = log_sizes(self.kafka, wanted)
        return {one: Log(starts[one], ends[one], sizes.get(one)) for one in wanted}


def log_sizes(
    kafka: KafkaSettings, partitions: Collection[SourcePartition]
) -> dict[SourcePartition, int]:
    """Return the bytes of partitions' logs, as their leaders have them.

    Those that cannot be had are left out: without the right to describe the cluster it is all.
    """
    if not partitions:
        return {}
    wanted = [OutputPartition(*one) for one in partitions]
    # An estimate is not worth to fail for, and the next round asks again.
    with contextlib.suppress(RetriableError, FatalError):
        connections = kept_connections(kafka)
        connections.run(connections.leaders.refresh({one.topic for one in wanted}))
        found = connections.run(connections.leaders.log_sizes(wanted))
        return {SourcePartition(*where): size for where, size in found.items()}
    return {}


def timestamps_from(
    kafka: KafkaSettings,
    places: Collection[tuple[SourcePartition, int]],
    ends: Mapping[SourcePartition, int],
) -> dict[tuple[SourcePartition, int], int]:
    """Return the timestamp of the first record from each place on; those without one are left out.

    Args:
        kafka: How to reach the brokers.
        places: Partitions and offsets.
        ends: The offset behind the last record of each partition.

    Raises:
        TopicError: The brokers do not answer.
    """
    found: dict[tuple[SourcePartition, int], int] = {}
    of_partitions: dict[SourcePartition, list[int]] = {}
    for where, offset in sorted(places):
        of_partitions.setdefault(where, []).append(offset)
    with reader(kafka, **{"fetch.message.max.bytes": 1, "queued.min.messages": 1}) as consumer:
        while of_partitions:
            now = {where: offsets.pop(0) for where, offsets in of_partitions.items()}
            of_partitions = {where: some for where, some in of_partitions.items() if some}
            spans = {where: (offset, ends[where]) for where, offset in now.items()}
            for message in read_spans(consumer, spans, only_first=True):
                where = place_of(message)
                found[where, now[where]] = message.timestamp()[1]
    return found


@contextlib.contextmanager
def reader(kafka: KafkaSettings, **options: Any) -> Iterator[Consumer]:
    """Give a consumer of committed records that belongs to no group."""
    consumer = Consumer(
        {
            **kafka.librdkafka(),
            "group.id": "sequitur-reader",  # required; nothing is committed under it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
            # A partition that had sent enough is asked again after a second otherwise, though it
            # is read from another offset by then.
            "fetch.queue.backoff.ms": 5,
            **options,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def place_of(message: Message) -> SourcePartition:
    """Return the partition that a message is of."""
    return SourcePartition(str(message.topic()), int(message.partition() or 0))


def read_spans(
    consumer: Consumer,
    spans: Mapping[SourcePartition, tuple[int, int]],
    *,
    only_first: bool = False,
) -> Iterator[Message]:
    """Read the records from one offset to before another of partitions.

    Args:
        consumer: That of `reader`.
        spans: First offset and the one behind the last, of each partition.
        only_first: Of each partition the first record alone.

    Raises:
        TopicError: The brokers refuse, or do not answer.
    """
    left = {where: stop for where, (first, stop) in spans.items() if first < stop}
    wanted = [TopicPartition(*where, spans[where][0]) for where in left]
    consumer.assign(wanted)
    consumer.resume(wanted)  # a partition that was paused before stays so when it is assigned anew
    deadline_s = time.monotonic() + _PATIENCE_S
    while left:
        for message in arrivals(consumer, _RECORDS, timeout_s=_POLL_S):
            where, error = place_of(message), message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public code, under this name
                if action_of(Request.TOPICS, error.code()) in _PASSES:
                    continue
                raise TopicError(f"topic {where.topic!r} cannot be read: {error}")
            if where not in left:
                continue
            deadline_s = time.monotonic() + _PATIENCE_S
            offset = int(message.offset() or 0)
            if error is not None or offset >= left[where]:
                del left[where]
                continue
            yield message
            # What is behind the last record of a span may be markers, of which none is told.
            if only_first or offset + 1 >= left[where]:
                del left[where]
                if only_first:
                    # Of several partitions a broker gives one at a time where little is asked for:
                    # this one would be read to its end first.
                    consumer.pause([TopicPartition(*where)])
        if time.monotonic() > deadline_s:
            raise UnansweredError(f"no record of {min(left).topic!r} in {_PATIENCE_S:g} s")
