"""A compacted topic as a table: created on first use, read whole, by key.

What a transaction has written counts once it is committed. A reader waits for transactions of
others that are open when it begins. So it does not miss what was committed after them.
"""

from __future__ import annotations

import threading
import time
import zlib
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from sequitur.errors import (
    TopicError,
)
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader
from sequitur.kafka.settings import system_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sequitur.base.retry import Outages
    from sequitur.kafka.settings import KafkaSettings


_FOLLOWED_FOR_S: Final = 600.0
"""Deletions are kept for `delete.retention.ms`. After a longer pause the topic is read again."""
_CONFIG: Final = {
    "cleanup.policy": "compact",
    # Kafka compacts no active segment, and its default segment is 1 GiB or a week. A topic that is
    # written each second would then be read whole each second. No batch is larger than this.
    "segment.bytes": str(4 << 20),
    # Transaction markers stay as long, and each write has one. Readers begin at the start.
    "delete.retention.ms": str(3_600_000),
}


class CompactedTopic:
    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        *,
        partitions: int,
        outages: Outages | None = None,
        topics: KafkaTopics | None = None,
    ) -> None:
        self.name = name
        self._kafka = kafka
        self._wanted = partitions
        self._topics = topics or KafkaTopics(kafka, outages)

    def ensure(self, *, replication_factor: int = -1) -> None:
        self._topics.ensure(
            self.name,
            partitions=self._wanted,
            replication_factor=replication_factor,
            config=_CONFIG,
        )
        if not self._topics.is_compacted(self.name):
            raise TopicError(
                f"topic {self.name!r} is not compacted (cleanup.policy): it would lose records "
                "that must be kept. Set cleanup.policy = compact there"
            )

    def exists(self) -> bool:
        return self.partitions() is not None

    def partitions(self) -> int | None:
        """Return how many partitions the topic has; None if it does not exist."""
        return self._topics.partitions(self.name)

    def partition_of(self, name: str) -> int:
        """Return the partition of all records that are called `name`."""
        return zlib.crc32(name.encode()) % self._topics.require(self.name)

    def read(self, partition: int | None = None) -> dict[bytes, bytes]:
        """Return the newest value of each key; nothing if the topic does not exist yet."""
        return {key: one.value for key, one in self.read_records(partition).items()}

    def read_records(self, partition: int | None = None) -> dict[bytes, KeptRecord]:
        found: dict[bytes, KeptRecord] = {}
        for records in self.read_apart(partition).values():
            found |= records
        return found

    def read_apart(self, partition: int | None = None) -> dict[int, dict[bytes, KeptRecord]]:
        """Return the newest record of each key by partition; see `read`.

        A topic that has grown may hold a key in two of them.
        """
        found: dict[int, dict[bytes, KeptRecord]] = {}
        self.read_on(found, {}, partition)
        return {one: records for one, records in found.items() if records}

    def read_on(
        self,
        found: dict[int, dict[bytes, KeptRecord]],
        known: Mapping[int, int],
        partition: int | None = None,
    ) -> dict[int, int]:
        """Read partitions on into the records that were read of them before; return their ends.

        `known` are the ends that were returned then.
        """
        wanted = [SourcePartition(self.name, one) for one in range(self.partitions() or 0)]
        if partition is not None:
            wanted = wanted[partition : partition + 1]
        # This is beyond the end that readers of committed records see, so the read waits for open
        # transactions.
        ends = self._topics.high_watermarks(wanted)
        anew = [one for one in wanted if not 0 < known.get(one.partition, 0) <= ends[one]]
        starts = {one: known.get(one.partition, 0) for one in wanted}
        starts |= self._topics.low_watermarks(anew)
        for one in found.keys() - {one.partition for one in wanted}:
            found[one].clear()
        found.update({one.partition: {} for one in anew})
        self._read(
            {one: (starts[one], ends[one]) for one in wanted if starts[one] < ends[one]}, found
        )
        return {one.partition: ends[one] for one in wanted}

    def _read(
        self,
        spans: Mapping[SourcePartition, tuple[int, int]],
        found: dict[int, dict[bytes, KeptRecord]],
    ) -> None:
        # A table needs the newest records, but not one that is deleted during the read.
        for where, row in Reader(kafka=self._kafka, passes_deleted=True).rows(spans):
            _keep(found, where.partition, row.offset, row.key, row.value)


class KeptRecord(NamedTuple):
    value: bytes
    partition: int
    offset: int


class FollowedTopic:
    """The newest value of each key of all partitions or of one. Each look reads on."""

    def __init__(
        self,
        topic: CompactedTopic,
        partition: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._only = partition
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[int, dict[bytes, KeptRecord]] = {}
        self._ends: dict[int, int] = {}
        self._read_s = clock()

    def read_apart(self) -> dict[int, dict[bytes, KeptRecord]]:
        with self._lock:
            now_s = self._clock()
            if now_s - self._read_s >= _FOLLOWED_FOR_S:
                self._ends = {}
            known, self._ends = self._ends, {}  # if this fails, the next read begins again
            self._ends = self._topic.read_on(self._records, known, self._only)
            self._read_s = now_s
            return {one: dict(records) for one, records in self._records.items() if records}

    def read(self) -> dict[bytes, bytes]:
        apart = self.read_apart().values()
        return {key: one.value for records in apart for key, one in records.items()}


class FollowedPartition(FollowedTopic):
    def __init__(
        self, topic: CompactedTopic, partition: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(topic, partition, clock)
        self.partition = partition


class TopicStore:
    """A store in the one topic of its kind that an installation has."""

    _name: ClassVar[str]
    _partitions: ClassVar[int]

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        replication_factor: int = -1,
        outages: Outages | None = None,
        topics: KafkaTopics | None = None,
    ) -> None:
        self._kafka = kafka
        self._outages = outages
        self._replication_factor = replication_factor
        self._topic = CompactedTopic(
            kafka,
            system_name(kafka, self._name),
            partitions=self._partitions,
            outages=outages,
            topics=topics,
        )
        self._followed = FollowedTopic(self._topic)

    def ensure(self) -> None:
        self._topic.ensure(replication_factor=self._replication_factor)


def _keep(
    found: dict[int, dict[bytes, KeptRecord]],
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
) -> None:
    if key is None:
        return
    if value is None:
        found[partition].pop(key, None)
    else:
        found[partition][key] = KeptRecord(value, partition, offset)
