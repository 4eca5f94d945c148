"""What a round of checks takes: of many subscriptions on one partition, and of some on many.

    python -m benchmarks.checks

1,000 subscriptions on a topic of a partition, and 100 on one of 50; each has a cursor of its own on
each partition. A round is measured when no cursor has moved since the last one, and when all have;
with a quota by age and a time to live in force, which nothing exceeds. The median of the rounds,
and the processor time of this process in it. Prints a table and writes build/bench/checks.json.
"""

from __future__ import annotations

import json
import os
import statistics
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from benchmarks.broker import bench_broker
from benchmarks.figures import print_figures
from sequitur.consumer.subscription.backlog import Surveyor
from sequitur.consumer.subscription.checks import Checks
from sequitur.consumer.subscription.compacted_topic import CompactedTopic
from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.cursor_store import cursor_topic
from sequitur.consumer.subscription.fenced_writer import FencedWriter, TopicWrite
from sequitur.consumer.subscription.policies import BacklogQuota, TopicPolicies
from sequitur.consumer.subscription.registry import (
    SubscriptionRecord,
    SubscriptionType,
    group_of_new,
)
from sequitur.consumer.subscription.stored_pieces import pieces_of
from sequitur.consumer.subscription.stored_records import cursor_key, cursor_value, state_key
from sequitur.consumer.subscription.subscription_state import SubscriptionState
from sequitur.kafka.partition import SourcePartition
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHAPES: Final = ((1_000, 1), (100, 50))
_MESSAGES: Final = 2_000
"""Of each partition; 1,000 bytes each."""
_ROUNDS: Final = 7
_DAY_S: Final = 86_400
_OUTPUT: Final = Path("build/bench")


def measure(servers: str, subscriptions: int, partitions: int) -> Iterator[dict[str, Any]]:
    """Return the figures of a number of subscriptions on a number of partitions."""
    kafka = KafkaSettings(bootstrap_servers=servers)
    surveyor, topic = Surveyor(kafka), f"bench-{uuid.uuid4().hex[:8]}"
    _fill(kafka, surveyor, topic, partitions)
    names = [f"{topic}-{number}" for number in range(subscriptions)]
    cursors = CompactedTopic(kafka, cursor_topic(kafka), partitions=8)
    cursors.ensure()
    places = {name: cursors.partition_of(name) for name in names}
    made_ms = int(time.time() * 1000)
    records = [
        SubscriptionRecord(
            name,
            (topic,),
            SubscriptionType.SHARED,
            made_ms,
            group=group_of_new(kafka, name),
            last_connected_ms=made_ms,
            partition=places[name],
        )
        for name in names
    ]
    quota = TopicPolicies(backlog_quota=BacklogQuota(None, _DAY_S), message_ttl_s=_DAY_S)
    surveyor.registry.change(
        lambda registry: {
            **{one.key: one.encode() for one in records},
            **registry.with_policies(topic, quota),
        }
    )
    with (
        closing(FencedWriter(kafka, topic, name="the benchmark")) as writer,
        closing(Checks(Surveyor(kafka))) as checks,
    ):
        for moves in (False, True):
            taken: list[tuple[float, float]] = []
            for number in range(_ROUNDS):
                if moves or not number:
                    writer.write(_cursors(cursors.name, topic, places, partitions, number + moves))
                if not number:
                    checks.run()
                begun_s, busy_s = time.perf_counter(), time.process_time()
                checks.run()
                taken.append((time.perf_counter() - begun_s, time.process_time() - busy_s))
            what = f"{subscriptions:,} x {partitions}, {'all' if moves else 'none'} moved"
            for figure, values in zip(
                ("round", "processor"), zip(*taken, strict=True), strict=True
            ):
                value = round(statistics.median(values), 3)
                yield {"name": f"{what}: {figure}", "value": value, "unit": "s"}
    surveyor.registry.change(lambda _registry: {one.key: None for one in records})


def _fill(kafka: KafkaSettings, surveyor: Surveyor, topic: str, partitions: int) -> None:
    surveyor.topics.ensure(topic, partitions=partitions, replication_factor=1)
    client = Producer({**kafka.librdkafka(), "linger.ms": 50})
    for _ in range(_MESSAGES):
        for partition in range(partitions):
            client.produce(topic, os.urandom(1_000), partition=partition)
        client.poll(0)
    if client.flush(60):
        raise RuntimeError("the topic cannot be filled")


def _cursors(
    stored_in: str, topic: str, places: dict[str, int], partitions: int, turn: int
) -> Iterator[TopicWrite]:
    """Return records of cursors that stand at offsets of their own each turn."""
    for number, (name, place) in enumerate(places.items()):
        state = SubscriptionState(written_ms=turn).encode()
        yield TopicWrite(stored_in, place, state_key(name), state)
        for partition in range(partitions):
            start = (number + 3 * turn) % _MESSAGES
            cursor = Cursor(CursorIdentity(name, topic, partition), start=start)
            pieces = pieces_of(cursor, generation=0)
            key = cursor_key(name, SourcePartition(topic, partition))
            value = cursor_value(pieces.offset, pieces.metadata)
            yield TopicWrite(stored_in, place, key, value)


def main() -> None:
    """Measure, print and write."""
    with bench_broker() as servers:
        figures = [figure for shape in _SHAPES for figure in measure(servers, *shape)]
    print_figures("A round of checks of subscriptions x partitions", figures)
    _OUTPUT.mkdir(parents=True, exist_ok=True)
    (_OUTPUT / "checks.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
