"""Read a topic: once from its beginning to where it ends now, some records of it, or as it grows.

This reader shares no code with the producer and the jobs of this project: it is librdkafka's, and
sees what any consumer sees. Only records that librdkafka cannot give are read once more.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sequitur.base.retry import Backoff, Retry
from sequitur.errors import (
    BrokerUnreachableError,
    UnansweredError,
    UnknownRecordError,
    UnknownTopicError,
)
from sequitur.kafka.arrivals import Arrivals, headers_of
from sequitur.kafka.broker_check import require_broker
from sequitur.kafka.error_codes import Action, Request, action_of
from sequitur.kafka.partition import is_topic_name
from sequitur.kafka.settings import system_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from confluent_kafka import Message

    from sequitur.kafka.settings import KafkaSettings


_METADATA_TIMEOUT_S: Final = 10.0
_SILENCE_LIMIT_S: Final = 60.0
_BATCH_SIZE: Final = 10_000
_PATIENCE_S: Final = 0.2
_RETRY: Final = Retry(
    patience_s=_METADATA_TIMEOUT_S, backoff=Backoff(initial_ms=200, maximum_ms=200, jitter=0)
)
_EMPTY_FETCH_MS: Final = 50
"""A fetch without records tells the end of a partition, behind a transaction's markers."""
_DEFAULT_ISOLATION: Final = "read_committed"


@dataclass(frozen=True, slots=True)
class TopicRecord:
    partition: int
    offset: int
    timestamp_ms: int  # the record's timestamp, epoch milliseconds
    key: bytes | None  # its key, or None
    value: bytes | None  # its value, None for a tombstone
    headers: tuple[tuple[str, bytes | None], ...]  # name and value of each header, in order

    def header(self, name: str) -> bytes | None:
        """Return the last header called `name`, as Kafka's `lastHeader` does; None without one."""
        for header, value in reversed(self.headers):
            if header == name:
                return value
        return None


def topic_exists(kafka: KafkaSettings, topic: str) -> bool:
    with _consumer(kafka) as consumer:
        return bool(_partitions(consumer, topic))


def is_truncated(kafka: KafkaSettings, topic: str) -> bool:
    with open_topic(kafka, topic) as opened:
        return any(first > 0 for first, _ in opened.spans.values())


def read_topic(
    kafka: KafkaSettings, topic: str, *, isolation_level: str = _DEFAULT_ISOLATION
) -> Iterator[TopicRecord]:
    """Yield the records that `topic` holds now, each partition in offset order.

    Records that are written meanwhile are left out, so reading ends also in a busy topic.
    """
    with open_topic(kafka, topic, isolation_level=isolation_level) as opened:
        yield from opened.read(opened.spans)


def read_records(
    kafka: KafkaSettings, topic: str, places: Collection[tuple[int, int]]
) -> list[TopicRecord]:
    with open_topic(kafka, topic) as opened:
        spans = {}
        for partition in opened.spans.keys() & {partition for partition, _ in places}:
            start, end = opened.spans[partition]
            offsets = [offset for one, offset in places if one == partition]
            spans[partition] = max(start, min(offsets)), min(end, max(offsets) + 1)
        found = [
            record for record in opened.read(spans) if (record.partition, record.offset) in places
        ]
    absent = set(places) - {(record.partition, record.offset) for record in found}
    if absent:
        named = ", ".join(f"{partition}:{offset}" for partition, offset in sorted(absent))
        raise UnknownRecordError(f"topic {topic!r} has no record at {named}")
    return found


class OpenTopic:
    def __init__(self, consumer: Consumer, kafka: KafkaSettings, name: str) -> None:
        self._consumer = consumer
        self._arrivals = Arrivals(consumer, kafka)
        self.name = name
        self.spans = {
            partition: watermarks(consumer, name, partition)
            for partition in sorted(_known_partitions(consumer, name))
        }

    def offsets_at(self, time_ms: int) -> dict[int, int]:
        """Return each partition's first offset at or after a time."""
        asked = [TopicPartition(self.name, partition, time_ms) for partition in self.spans]
        try:
            found = self._consumer.offsets_for_times(asked, timeout=_METADATA_TIMEOUT_S)
        except KafkaException as error:
            raise BrokerUnreachableError(f"no broker answers: {error.args[0].str()}") from error
        # A negative offset means that all records are earlier.
        return {
            one.partition: self.spans[one.partition][1] if one.offset < 0 else one.offset
            for one in found
        }

    def read(self, spans: Mapping[int, tuple[int, int]]) -> Iterator[TopicRecord]:
        """Yield the records of each partition's span, from one offset to before the other."""
        ends = {partition: end for partition, (start, end) in spans.items() if start < end}
        self._begin({partition: spans[partition][0] for partition in ends})
        heard_s = time.monotonic()
        while ends:
            messages = self._next()
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _SILENCE_LIMIT_S:
                raise BrokerUnreachableError(
                    f"no records for {_SILENCE_LIMIT_S:.0f} s while reading {self.name}"
                )
            for message in messages:
                partition, offset = cast("int", message.partition()), cast("int", message.offset())
                is_record = _is_record(message)
                if is_record and offset < ends.get(partition, 0):
                    yield _record(message)
                # The last offsets may be a transaction's markers, which a consumer does not get.
                # Then the end of the partition, or a later record, shows that all records are read.
                if not is_record or offset + 1 >= ends.get(partition, 0):
                    ends.pop(partition, None)

    def follow(self, starts: Mapping[int, int]) -> Iterator[TopicRecord]:
        """Yield each partition's records from an offset on, then new ones, without end."""
        self._begin(starts)
        while True:
            for message in self._next():
                if _is_record(message):
                    yield _record(message)

    def _next(self) -> list[Message]:
        with contextlib.suppress(UnansweredError):  # they come with a later call
            return self._arrivals.next(_BATCH_SIZE, timeout_s=_PATIENCE_S)
        return []

    def _begin(self, starts: Mapping[int, int]) -> None:
        self._consumer.assign(
            [TopicPartition(self.name, partition, start) for partition, start in starts.items()]
        )


@contextlib.contextmanager
def open_topic(
    kafka: KafkaSettings, topic: str, *, isolation_level: str = _DEFAULT_ISOLATION
) -> Iterator[OpenTopic]:
    with _consumer(kafka, isolation_level) as consumer:
        yield OpenTopic(consumer, kafka, topic)


def _is_record(message: Message) -> bool:
    """Tell whether it is a record instead of the end of a partition."""
    error = message.error()
    if error is None:
        return True
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public code, under this name
        raise KafkaException(error)
    return False


def watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return a partition's first and next offset. Wait for its leader if need be."""
    where = TopicPartition(topic, partition)
    try:
        found: tuple[int, int] = _RETRY.run(
            lambda: consumer.get_watermark_offsets(where, timeout=_METADATA_TIMEOUT_S), _passes
        )
    except KafkaException as error:
        raise BrokerUnreachableError(
            f"partition {partition} of {topic}: {error.args[0].str()}"
        ) from error
    return found


def _passes(error: Exception) -> str | None:
    if not isinstance(error, KafkaException):
        return None
    told = error.args[0]
    is_passing = action_of(Request.WATERMARKS, told.code()) is Action.RETRY
    return str(told.str()) if is_passing else None


def _record(message: Message) -> TopicRecord:
    return TopicRecord(
        partition=cast("int", message.partition()),
        offset=cast("int", message.offset()),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(headers_of(message)),
    )


@contextlib.contextmanager
def _consumer(
    kafka: KafkaSettings, isolation_level: str = _DEFAULT_ISOLATION
) -> Iterator[Consumer]:
    require_broker(kafka)
    consumer = Consumer(
        {
            **kafka.librdkafka(),
            # required by the client; we commit nothing
            "group.id": system_name(kafka, "verify"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # if retention deletes records meanwhile
            "enable.partition.eof": True,
            "fetch.wait.max.ms": _EMPTY_FETCH_MS,
            "isolation.level": isolation_level,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _known_partitions(consumer: Consumer, topic: str) -> set[int]:
    partitions = _partitions(consumer, topic)
    if not partitions:
        raise UnknownTopicError(f"topic {topic!r} does not exist")
    return partitions


def _partitions(consumer: Consumer, topic: str) -> set[int]:
    if not is_topic_name(topic):
        return set()
    try:
        metadata = consumer.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
    except KafkaException as error:
        raise BrokerUnreachableError(f"no broker answers: {error.args[0].str()}") from error
    return set() if metadata.error is not None else set(metadata.partitions)
