"""Check a topic: is it in event-time order, and is anything missing or there twice?

Order is counted twice, since two things can be broken on their own:

- *event order*: a record is an inversion when an earlier record of its key is younger than it. This
is
  what the reorder job restores.
- *send order*: a record is out of order when an earlier record of its partition, by the same
producer,
  has a higher sequence. This is what the idempotent producer rules out.

Gaps and repeats come from the event ids: the sequences of one producer count from 0 without a hole.
Where retention has removed a topic's beginning, they count from the first one left.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from producer import EVENT_ID_HEADER, MalformedEventIdError, parse_event_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur._topic_reader import TopicRecord


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """What a topic holds of one producer.

    Attributes:
        producer: The producer's name, from the event ids.
        events: Records with its name, repeats included.
        first_sequence: The lowest sequence seen.
        last_sequence: The highest sequence seen.
        missing: Sequences up to the highest that are nowhere in the topic.
        repeated: Records beyond the first of their event id.
    """

    producer: str
    events: int
    first_sequence: int
    last_sequence: int
    missing: int
    repeated: int


@dataclass(frozen=True, slots=True)
class TopicReport:
    """The result of `TopicCheck`. All counts are of records.

    Attributes:
        topic: The topic's name.
        records: All records.
        partitions: Partitions that hold at least one of them.
        keys: Distinct pairs of partition and key.
        event_inversions: Records older than an earlier one of their key.
        partition_inversions: Records older than an earlier one of their partition.
        send_inversions: Records sent before an earlier one of their partition, by event id.
        without_event_time: Records whose event time is missing or cannot be read.
        without_event_id: Records without a readable event id.
        producers: One report for each producer, by name.
    """

    topic: str
    records: int
    partitions: int
    keys: int
    event_inversions: int
    partition_inversions: int
    send_inversions: int
    without_event_time: int
    without_event_id: int
    producers: tuple[ProducerReport, ...] = field(default=())

    @property
    def missing(self) -> int:
        """Events of all producers that are nowhere in the topic."""
        return sum(producer.missing for producer in self.producers)

    @property
    def repeated(self) -> int:
        """Records beyond the first of their event id."""
        return sum(producer.repeated for producer in self.producers)

    @property
    def holds(self) -> bool:
        """Whether each key is in order, nothing is missing and nothing is there twice."""
        return not (self.event_inversions or self.send_inversions or self.missing or self.repeated)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, for `json.dumps`."""
        return {
            **asdict(self),
            "missing": self.missing,
            "repeated": self.repeated,
            "holds": self.holds,
        }


class TopicCheck:
    """Takes the records of one topic, each partition in offset order, and counts what is wrong.

    Memory: eight bytes a record for the sequences, and one entry for each key.

    Args:
        topic: The topic's name, for the report.
        event_time: The event time of a record, epoch milliseconds, or None when it has none.
        truncated: Whether the topic's beginning is gone, so that sequences may start above 0.
    """

    def __init__(
        self,
        topic: str,
        event_time: Callable[[TopicRecord], int | None],
        *,
        truncated: bool = False,
    ) -> None:
        self._topic = topic
        self._truncated = truncated
        self._event_time = event_time
        self._records = 0
        self._event_inversions = 0
        self._partition_inversions = 0
        self._send_inversions = 0
        self._without_event_time = 0
        self._without_event_id = 0
        self._newest_of_key: dict[tuple[int, bytes | None], int] = {}
        self._newest_of_partition: dict[int, int] = {}
        self._highest_sent: dict[tuple[int, str], int] = {}
        self._keys: set[tuple[int, bytes | None]] = set()
        self._partitions: set[int] = set()
        self._sequences: dict[str, array[int]] = defaultdict(lambda: array("q"))

    def observe_all(self, records: Iterable[TopicRecord]) -> TopicCheck:
        """Take each record in turn."""
        for record in records:
            self.observe(record)
        return self

    def observe(self, record: TopicRecord) -> None:
        """Take the next record of its partition."""
        self._records += 1
        self._partitions.add(record.partition)
        key = (record.partition, record.key)
        self._keys.add(key)
        self._check_event_order(key, self._event_time(record))
        self._check_send_order(record)

    def report(self) -> TopicReport:
        """What was found so far."""
        return TopicReport(
            topic=self._topic,
            records=self._records,
            partitions=len(self._partitions),
            keys=len(self._keys),
            event_inversions=self._event_inversions,
            partition_inversions=self._partition_inversions,
            send_inversions=self._send_inversions,
            without_event_time=self._without_event_time,
            without_event_id=self._without_event_id,
            producers=tuple(
                self._producer_report(name, np.asarray(self._sequences[name], dtype=np.int64))
                for name in sorted(self._sequences)
            ),
        )

    def _check_event_order(self, key: tuple[int, bytes | None], event_time_ms: int | None) -> None:
        if event_time_ms is None:
            self._without_event_time += 1
            return
        newest = self._newest_of_key.get(key)
        if newest is not None and event_time_ms < newest:
            self._event_inversions += 1
        else:
            self._newest_of_key[key] = event_time_ms
        newest = self._newest_of_partition.get(key[0])
        if newest is not None and event_time_ms < newest:
            self._partition_inversions += 1
        else:
            self._newest_of_partition[key[0]] = event_time_ms

    def _check_send_order(self, record: TopicRecord) -> None:
        header = record.header(EVENT_ID_HEADER)
        try:
            event_id = parse_event_id(header) if header is not None else None
        except MalformedEventIdError:
            event_id = None
        if event_id is None:
            self._without_event_id += 1
            return
        self._sequences[event_id.producer].append(event_id.sequence)
        sender = (record.partition, event_id.producer)
        highest = self._highest_sent.get(sender, -1)
        if event_id.sequence < highest:
            self._send_inversions += 1
        else:
            self._highest_sent[sender] = event_id.sequence

    def _producer_report(
        self, name: str, sequences: np.ndarray[Any, np.dtype[np.int64]]
    ) -> ProducerReport:
        distinct = np.unique(sequences)
        first, last = int(distinct[0]), int(distinct[-1])
        expected = last + 1 - (first if self._truncated else 0)
        return ProducerReport(
            producer=name,
            events=len(sequences),
            first_sequence=first,
            last_sequence=last,
            missing=expected - len(distinct),
            repeated=len(sequences) - len(distinct),
        )
