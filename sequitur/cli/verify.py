"""Check a topic: is it in event-time order, and is anything missing or duplicated?

Two orders are checked, since each can be broken without the other:

- *event order*: a record is an inversion when a record before it, of the same key, has a later
  event time. This is what the reorder job restores.
- *send order*: a record is out of order when a record before it in its partition, by the same
  producer, has a higher sequence. This is what the idempotent producer rules out.

A topic is in one order or in the other: the producer keeps the order of sending, whatever the event
times are, and the reorder job gives it up for theirs. Both are counted, and `Order` says which is
expected.

Gaps and duplicates come from the event ids: the sequences of one producer count from 0 without a
hole, over all its generations and all topics that it sends to. So a gap in the topics that were
read is either an event that was lost, or one that went to another topic: a topic does not tell
which. A duplicate is the same id again; the same sequence of two generations is two events, by two
holders of one journal. Where retention has removed a topic's beginning, sequences count from the
first one left.
"""

from __future__ import annotations

import enum
from array import array
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sequitur.errors import MalformedEventIdError
from sequitur.producer import EVENT_ID_HEADER, parse_event_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur.cli.topic_reader import TopicRecord
    from sequitur.producer import EventId


class Order(enum.Enum):
    EVENT = "event"
    SEND = "send"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class ProducerReport:
    producer: str  # the producer's name, from the event ids
    events: int  # records with its name, duplicates included
    first_sequence: int  # the lowest sequence seen
    last_sequence: int  # the highest sequence seen
    # sequences up to the highest that are in no topic that was read: lost, or sent elsewhere
    missing: int
    duplicates: int  # records beyond the first of their event id
    # sequences of more than one generation: two processes had copies of the producer's journal, or
    # a copy was put back. No event is lost by that
    shared: int = 0
    generations: int = 1  # how many lives of the producer have events in the topic


@dataclass(frozen=True, slots=True)
class TopicReport:
    """The result of `TopicCheck`. All counts are of records."""

    topic: str
    records: int
    partitions_with_records: int  # partitions that hold at least one of them
    keys: int  # distinct pairs of partition and key
    event_inversions: int  # records older than an earlier one of their key
    partition_inversions: int  # records older than an earlier one of their partition
    send_inversions: int  # records sent before an earlier one of their partition, by event id
    without_event_time: int  # records whose event time is missing or cannot be read
    without_event_id: int  # records without a readable event id
    # one report for each producer, by name
    producers: tuple[ProducerReport, ...] = field(default=())
    # further topics that were searched for events, without a check of their order
    also: tuple[str, ...] = field(default=())
    order: Order = Order.BOTH

    @property
    def missing(self) -> int:
        """The sequences of all producers that are in no topic that was read."""
        return sum(producer.missing for producer in self.producers)

    @property
    def duplicates(self) -> int:
        """The records beyond the first with their event id."""
        return sum(producer.duplicates for producer in self.producers)

    @property
    def holds(self) -> bool:
        """Whether the topic has records, they are in order, and none is missing or duplicated."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        found = []
        if not self.records:
            found.append("the topic is empty: there is nothing to check")
        if self.event_inversions and self.order is not Order.SEND:
            found.append(f"{_records(self.event_inversions)} older than an earlier one of the key")
        if self.send_inversions and self.order is not Order.EVENT:
            found.append(f"{_records(self.send_inversions)} after one that was sent later")
        for producer in self.producers:
            if producer.duplicates:
                found.append(f"{producer.producer}: {_records(producer.duplicates)} duplicated")
            if producer.missing:
                found.append(f"{producer.producer}: {self._gap(producer)}")
        return tuple(found)

    def _gap(self, producer: ProducerReport) -> str:
        where = f"{self.topic} or {', '.join(self.also)}" if self.also else self.topic
        return (
            f"{producer.missing:,} of its events up to sequence {producer.last_sequence:,} are not "
            f"in {where}: they were lost, or went to another topic (name it with --also)"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "order": self.order.value,
            "missing": self.missing,
            "duplicates": self.duplicates,
            "problems": self.problems,
            "holds": self.holds,
        }


class TopicCheck:
    """Takes the records of one topic, each partition in offset order, and counts what is wrong.

    Memory: eight bytes a record for the sequences, and one entry for each key.
    """

    def __init__(
        self,
        topic: str,
        event_time: Callable[[TopicRecord], int | None],
        *,
        truncated: bool = False,
        also: tuple[str, ...] = (),
        order: Order = Order.BOTH,
    ) -> None:
        self._topic = topic
        self._order = order
        self._also = also
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
        self._sent: dict[tuple[int, str], _SendOrder] = defaultdict(_SendOrder)
        self._keys: set[tuple[int, bytes | None]] = set()
        self._partitions: set[int] = set()
        self._sequences: dict[str, dict[str, array[int]]] = defaultdict(
            lambda: defaultdict(lambda: array("q"))
        )

    def observe_all(self, records: Iterable[TopicRecord]) -> TopicCheck:
        for record in records:
            self.observe(record)
        return self

    def observe(self, record: TopicRecord) -> None:
        self._records += 1
        self._partitions.add(record.partition)
        key = (record.partition, record.key)
        self._keys.add(key)
        self._check_event_order(key, self._event_time(record))
        self._check_send_order(record)

    def observe_elsewhere(self, record: TopicRecord) -> None:
        """Take a record from a further topic, so that it is not a gap of its producer."""
        event_id = _event_id(record)
        if event_id is not None:
            self._sequences[event_id.producer][event_id.generation].append(event_id.sequence)

    def report(self) -> TopicReport:
        return TopicReport(
            topic=self._topic,
            records=self._records,
            partitions_with_records=len(self._partitions),
            keys=len(self._keys),
            event_inversions=self._event_inversions,
            partition_inversions=self._partition_inversions,
            send_inversions=self._send_inversions,
            without_event_time=self._without_event_time,
            without_event_id=self._without_event_id,
            producers=tuple(
                self._producer_report(
                    name, [np.asarray(given, dtype=np.int64) for given in generations.values()]
                )
                for name, generations in sorted(self._sequences.items())
            ),
            also=self._also,
            order=self._order,
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
        event_id = _event_id(record)
        if event_id is None:
            self._without_event_id += 1
            return
        self._sequences[event_id.producer][event_id.generation].append(event_id.sequence)
        order = self._sent[record.partition, event_id.producer]
        self._send_inversions += not order.takes(event_id)

    def _producer_report(
        self, name: str, generations: list[np.ndarray[Any, np.dtype[np.int64]]]
    ) -> ProducerReport:
        of_each = [np.unique(sequences) for sequences in generations]
        distinct = np.unique(np.concatenate(of_each))
        events = sum(map(len, generations))
        distinct_ids = sum(map(len, of_each))
        first, last = int(distinct[0]), int(distinct[-1])
        expected = last + 1 - (first if self._truncated else 0)
        return ProducerReport(
            producer=name,
            events=events,
            first_sequence=first,
            last_sequence=last,
            missing=expected - len(distinct),
            duplicates=events - distinct_ids,
            shared=distinct_ids - len(distinct),
            generations=len(generations),
        )


def _event_id(record: TopicRecord) -> EventId | None:
    header = record.header(EVENT_ID_HEADER)
    try:
        return parse_event_id(header) if header is not None else None
    except MalformedEventIdError:
        return None


def _records(count: int) -> str:
    return "1 record is" if count == 1 else f"{count:,} records are"


class _SendOrder:
    """Whether records of one producer and partition are in the order in which they were sent.

    A generation is newer than those whose records came before its first. What an older one gives
    after a newer has begun is out of order if the newer went on behind it: two that hold copies of
    a journal both begin where the copy ends, and neither goes on behind the other.
    """

    def __init__(self) -> None:
        self._spans: dict[str, tuple[int, int]] = {}  # first, highest; newest last

    def takes(self, event_id: EventId) -> bool:
        """Take the next record; return False if it is out of order."""
        sequence = event_id.sequence
        first, highest = self._spans.setdefault(event_id.generation, (sequence, sequence))
        if len(self._spans) > 1 and self._is_behind_a_newer(event_id):
            return False
        if sequence < highest:
            return False
        self._spans[event_id.generation] = (first, sequence)
        return True

    def _is_behind_a_newer(self, event_id: EventId) -> bool:
        for generation, (first, _) in reversed(self._spans.items()):
            if generation == event_id.generation:
                return False
            if event_id.sequence < first:
                return True
        return False
