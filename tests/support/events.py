"""Records for a reorder job, and what stands in them."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from confluent_kafka import Producer

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.producer import KafkaSettings

T0: Final = 1_700_000_000_000
Headers = list[tuple[str, str | bytes | None]]


class Written(Protocol):
    """A record that a job has written."""

    @property
    def partition(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


R = TypeVar("R", bound=Written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A record to be produced."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int = -1
    timestamp_ms: int = 0


def send(kafka: KafkaSettings, topic: str, events: Iterable[Event]) -> None:
    """Send events, each partition in order, and wait until they are there."""
    failures: list[object] = []
    producer = Producer(
        {
            **kafka.librdkafka(),
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "on_delivery": lambda error, _: failures.append(error) if error else None,
        }
    )
    for sent in events:
        producer.produce(
            topic,
            value=sent.value,
            key=sent.key,
            headers=sent.headers,
            partition=sent.partition,
            timestamp=sent.timestamp_ms,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def event(time_ms: object, key: str = "k", partition: int = -1, **more: object) -> Event:
    value = json.dumps({"at": time_ms, **more}).encode()
    return Event(value=value, key=key.encode(), partition=partition)


def time_of(record: Written) -> Any:
    return json.loads(record.value or b"")["at"]


def by_partition(records: Iterable[R]) -> dict[int, list[R]]:
    found: defaultdict[int, list[R]] = defaultdict(list)
    for record in records:
        found[record.partition].append(record)
    return dict(found)


def shuffled(count: int, *, seed: int, start_ms: int = T0, disorder_ms: int = 900) -> list[Event]:
    """Events 10 ms apart in an order that is wrong by less than the job's delay."""
    rng = random.Random(seed)
    times = [start_ms + 10 * number for number in range(count)]
    times.sort(key=lambda time_ms: time_ms + rng.randrange(disorder_ms))
    return [event(time_ms, key=f"k{time_ms % 29}", n=n) for n, time_ms in enumerate(times)]


def contents(records: Iterable[Event | Written]) -> list[tuple[Any, Any]]:
    return sorted((record.key, record.value) for record in records)


def assert_ordered(records: Iterable[Written]) -> None:
    for partition in by_partition(records).values():
        times = [time_of(record) for record in partition]
        assert sorted(times) == times
