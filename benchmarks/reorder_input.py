"""The events that the contenders of the reorder benchmark put into order.

JSON of about 75 bytes with a key and no headers, as fast as one client sends them. Event times grow
with the number of the event, less a random disorder; few events are late by far more than that.
The same settings give the same events.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS: Final = 4
FIRST_MS: Final = 1_700_000_000_000
_CHUNK: Final = 20_000
MOST_WAITING: Final = 1_000_000
_PATIENCE_S: Final = 0.02
_FLUSH_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the events are like.

    Attributes:
        events: How many.
        keys: How many keys; each event has a random one.
        disorder_ms: An event is behind its place by less than this.
        late_share: Share of the events that are behind by `late_ms` beside that.
        late_ms: By how much.
        events_per_ms: How dense events are in event time.
        seed: Of all that is random.
    """

    events: int = 8_000_000
    keys: int = 20_000
    disorder_ms: int = 5_000
    late_share: float = 0.001
    late_ms: int = 30_000
    events_per_ms: float = 20.0
    seed: int = 7

    @property
    def span_ms(self) -> float:
        """Event time from the first event to the last."""
        return self.events / self.events_per_ms


@dataclass(frozen=True, slots=True)
class Columns:
    """All events of a workload, in the order they are sent; each array has one entry an event.

    Attributes:
        key: Number of the key.
        usage: Hundredths of a percent.
        event_time_ms: Event time, epoch milliseconds.
        late: Whether it is one of the few that are late by far.
    """

    key: np.ndarray[Any, np.dtype[np.int64]]
    usage: np.ndarray[Any, np.dtype[np.int64]]
    event_time_ms: np.ndarray[Any, np.dtype[np.int64]]
    late: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def event_time_sum(self) -> int:
        """Of all event times; from six million events on it is more than 64 bits hold."""
        return FIRST_MS * len(self.event_time_ms) + int((self.event_time_ms - FIRST_MS).sum())


def columns(workload: Workload) -> Columns:
    """Draw the events."""
    random = np.random.default_rng(workload.seed)
    count = workload.events
    late = random.random(count) < workload.late_share
    due = FIRST_MS + (np.arange(count) / workload.events_per_ms).astype(np.int64)
    disorder = random.integers(workload.disorder_ms, size=count)
    return Columns(
        key=random.integers(workload.keys, size=count),
        usage=random.integers(10_000, size=count),
        event_time_ms=due - disorder - late * workload.late_ms,
        late=late,
    )


def key_and_value(key: int, usage: int, event_time_ms: int) -> tuple[bytes, bytes]:
    """One event as it is sent."""
    host, cpu = divmod(key, 4)
    return (
        b"host-%05d|%d" % (host, cpu),
        b'{"hostname":"host-%05d","cpu":%d,"usage":%.2f,"occurred_at":%d}'
        % (host, cpu, usage / 100, event_time_ms),
    )


def fill(bootstrap_servers: str, topic: str, workload: Workload) -> Columns:
    """Make the topic and send all events; return them once the broker has them.

    Raises:
        RuntimeError: The broker did not take one.
    """
    drawn = columns(workload)
    with sending(bootstrap_servers, topic) as producer:
        for messages in _chunks(drawn):
            waiting = messages
            while waiting:
                producer.produce_batch(topic, waiting)
                waiting = [one for one in waiting if one.pop("_error", None) is not None]
                producer.poll(_PATIENCE_S if waiting else 0)
    return drawn


@contextlib.contextmanager
def sending(bootstrap_servers: str, topic: str) -> Iterator[Producer]:
    """Make a topic, and give what sends to it; the broker has all that was sent at the end.

    Raises:
        RuntimeError: The broker did not take one.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    forever = {"retention.ms": "-1"}  # timestamps may be those of the events, which are old
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=forever)])[topic].result()
    failures: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "log_level": 0,  # what fails is raised
            "linger.ms": 20,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": MOST_WAITING,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "on_delivery": delivered,
            "delivery.report.only.error": True,
        }
    )
    yield producer
    left = producer.flush(_FLUSH_TIMEOUT_S)
    if failures or left:
        raise RuntimeError(f"{len(failures)} events failed, {left} are not out: {failures[:1]}")


def _chunks(drawn: Columns) -> Iterator[list[dict[str, Any]]]:
    for begin in range(0, len(drawn.key), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        rows = zip(
            drawn.key[part].tolist(),
            drawn.usage[part].tolist(),
            drawn.event_time_ms[part].tolist(),
            strict=True,
        )
        pairs = (key_and_value(*row) for row in rows)
        yield [{"key": key, "value": value} for key, value in pairs]
