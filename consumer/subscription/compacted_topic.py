"""A compacted topic as a table: created on first use, read whole, by key.

What a transaction has written counts once it is committed. A reader waits for transactions of
others that are open when it begins, so that it never misses what was committed before that behind
them.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sequitur.errors import TopicError, UnansweredError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.error_codes import Request, action_of
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.records import arrivals

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from sequitur.base.retry import Outages
    from sequitur.kafka.settings import KafkaSettings

_POLL_S: Final = 0.1
_RECORDS: Final = 1_000
_PATIENCE_S: Final = 60.0
"""For a transaction of a process that died: `TRANSACTION_TIMEOUT_MS`, and a broker's round of ten
seconds that ends such ones."""

_FOLLOWED_FOR_S: Final = 600.0
"""Deletions are kept for `delete.retention.ms`: who comes back later begins anew."""

_CONFIG: Final = {
    "cleanup.policy": "compact",
    # Kafka compacts no segment that is written to, and its default is one of 1 GiB or a week: what
    # is written each second would be read whole each second. No batch is larger than this.
    "segment.bytes": str(4 << 20),
    # Markers of transactions stay so long, too, and each write is one. Readers begin at the start.
    "delete.retention.ms": str(3_600_000),
}


class KeptRecord(NamedTuple):
    """The newest value of a key, and the place of its record."""

    value: bytes
    partition: int
    offset: int


class CompactedTopic:
    """Newest value of each key."""

    def __init__(
        self, kafka: KafkaSettings, name: str, *, partitions: int, outages: Outages | None = None
    ) -> None:
        self.name = name
        self._kafka = kafka
        self._wanted = partitions
        self._topics = KafkaTopics(kafka, outages)

    def ensure(self, *, replication_factor: int = -1) -> None:
        """Create the topic if it is missing."""
        self._topics.ensure(
            self.name,
            partitions=self._wanted,
            replication_factor=replication_factor,
            config=_CONFIG,
        )
        if not self._topics.is_compacted(self.name):
            raise TopicError(
                f"topic {self.name!r} is not compacted (cleanup.policy): it would lose what is to "
                "be kept; set cleanup.policy = compact there"
            )

    def exists(self) -> bool:
        """Tell whether the topic is there."""
        return self.partitions() is not None

    def partitions(self) -> int | None:
        """Return how many partitions the topic has; None if it is not there."""
        return self._topics.partitions(self.name)

    def partition_of(self, name: str) -> int:
        """Return the partition that everything called `name` is in."""
        return zlib.crc32(name.encode()) % self._topics.require(self.name)

    def read(self, partition: int | None = None) -> dict[bytes, bytes]:
        """Return the newest value of each key; nothing where the topic is not there yet."""
        return {key: one.value for key, one in self.read_records(partition).items()}

    def read_records(self, partition: int | None = None) -> dict[bytes, KeptRecord]:
        """Return the newest record of each key, and where it stands; see `read`."""
        found: dict[bytes, KeptRecord] = {}
        for records in self.read_apart(partition).values():
            found |= records
        return found

    def read_apart(self, partition: int | None = None) -> dict[int, dict[bytes, KeptRecord]]:
        """Return the newest record of each key by partition; see `read`.

        A topic that has grown may hold a key in two of them.
        """
        there = self.partitions()
        if there is None:
            return {}
        wanted = [SourcePartition(self.name, one) for one in range(there)]
        if partition is not None:
            wanted = wanted[partition : partition + 1]
        first = self._topics.low_watermarks(wanted)
        # Beyond what a reader of committed records is told: it waits for open transactions.
        ends = self._topics.high_watermarks(wanted)
        found: dict[int, dict[bytes, KeptRecord]] = {one.partition: {} for one in wanted}
        self._read({one: ends[one] for one in wanted if first[one] < ends[one]}, found)
        return {one: records for one, records in found.items() if records}

    def read_on(self, partition: int, records: dict[bytes, KeptRecord], first: int) -> int:
        """Read a partition from an offset on into the records that were read of it before."""
        if not self.exists():
            records.clear()
            return 0
        where = SourcePartition(self.name, partition)
        end = self._topics.high_watermarks([where])[where]
        if end < first:
            records.clear()
            first = 0
        if first < end:
            self._read({where: end}, {partition: records}, first)
        return end

    def _read(
        self,
        ends: dict[SourcePartition, int],
        found: dict[int, dict[bytes, KeptRecord]],
        first: int = 0,
    ) -> None:
        if not ends:
            return
        consumer = Consumer(
            {
                **self._kafka.librdkafka(),
                "group.id": "sequitur-reader",  # required; nothing is committed under it
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            consumer.assign([TopicPartition(*one, first) for one in ends])
            deadline_s = time.monotonic() + _PATIENCE_S
            while ends:
                for message in arrivals(consumer, _RECORDS, timeout_s=_POLL_S):
                    if (error := message.error()) is not None:
                        self._look_at(message, error, ends)
                        continue
                    deadline_s = time.monotonic() + _PATIENCE_S
                    key, value = message.key(), message.value()
                    if key is None:
                        continue
                    place = cast("int", message.partition()), cast("int", message.offset())
                    if value is None:
                        found[place[0]].pop(key, None)
                    else:
                        found[place[0]][key] = KeptRecord(value, *place)
                if time.monotonic() > deadline_s:
                    raise UnansweredError(
                        f"topic {self.name!r} is not read to its end in {_PATIENCE_S:g} s: no "
                        "broker answers, or a transaction in it stays open"
                    )
        except KafkaException as error:
            raise UnansweredError(f"topic {self.name!r} cannot be read: {error}") from error
        finally:
            consumer.close()

    def _look_at(
        self, message: Message, error: KafkaError, ends: dict[SourcePartition, int]
    ) -> None:
        """Note that a partition is read to its end, which may lie behind markers."""
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's public codes, under these names
            where = SourcePartition(self.name, cast("int", message.partition()))
            if cast("int", message.offset()) >= ends.get(where, 0):
                ends.pop(where, None)
        elif not action_of(Request.TOPICS, code).is_waited_for:
            raise TopicError(f"topic {self.name!r} cannot be read: {error}")


class FollowedPartition:
    """Newest value of each key of one partition, read on with each look."""

    def __init__(
        self, topic: CompactedTopic, partition: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.partition = partition
        self._topic = topic
        self._clock = clock
        self._records: dict[bytes, KeptRecord] = {}
        self._next = 0
        self._read_s = clock()

    def read(self) -> dict[bytes, bytes]:
        """Return what is there now; see `CompactedTopic.read`."""
        now_s = self._clock()
        if now_s - self._read_s >= _FOLLOWED_FOR_S:
            self._records.clear()
            self._next = 0
        self._next = self._topic.read_on(self.partition, self._records, self._next)
        self._read_s = now_s
        return {key: one.value for key, one in self._records.items()}
