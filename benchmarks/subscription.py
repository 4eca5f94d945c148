"""A `Subscription` beside the consumer of confluent-kafka that it reads with.

    python -m benchmarks.subscription [--messages N]

A topic of four partitions is read from its beginning to its end, by each way in a fresh process:

- *consume*: `Consumer.consume`, a thousand at a time; nothing is kept of them, and nothing acked.
- each type of a `Subscription`, one message at a time (`receive`, `acknowledge`), and many at a
  time (`receive_many`, `acknowledge_many`); with the acks stored at the end.

A message has 100 bytes and one of 1,000 keys. The time is from the first message to the last, the
best of the rounds, and the ways take turns in each. Prints a table and writes
build/bench/subscription.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.broker import bench_broker
from benchmarks.figures import print_figures
from sequitur import Subscription, SubscriptionType
from sequitur.kafka.admin import KafkaTopics
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGES: Final = 1_000_000
_SINGLE_SHARE: Final = 4
_PARTITIONS: Final = 4
_KEYS: Final = 1_000
_VALUE: Final = b"v" * 90
_AT_ONCE: Final = 1_000
_ROUNDS: Final = 3
_TIMEOUT_S: Final = 60.0
_OUTPUT: Final = Path("build/bench")
_PEER: Final = "consume"
_TYPES: Final = (SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
_WAYS: Final = (_PEER, *(f"{one}, {how}" for one in _TYPES for how in ("one", "many")))


def measure(servers: str, messages: int) -> list[dict[str, Any]]:
    """Return all figures as name, value and unit."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    _fill(servers, topic, messages)
    rates: defaultdict[str, float] = defaultdict(float)
    for _ in range(_ROUNDS):
        for way in _WAYS:
            rates[way] = max(rates[way], _in_fresh_process(servers, topic, way, messages))
    figures = [_figure(way, rate / 1e3, "k msgs/s") for way, rate in rates.items()]
    return figures + [
        _figure(f"{way}: of {_PEER}", rates[way] / rates[_PEER], "x") for way in _WAYS[1:]
    ]


def run(servers: str, topic: str, way: str, messages: int) -> float:
    """Return how many messages a second one way reads."""
    if way == _PEER:
        return _rate(_consumed(servers, topic), messages)
    type_, how = way.split(", ")
    if how == "one":
        messages //= _SINGLE_SHARE
    with Subscription(
        servers, f"bench-{uuid.uuid4().hex}", topic, type=SubscriptionType(type_),
        position="earliest",
    ) as subscription:  # fmt: skip
        return _rate((_each if how == "one" else _many)(subscription), messages)


def _rate(counts: Iterator[int], messages: int) -> float:
    left = messages - next(counts)
    begin_s = time.perf_counter()
    wanted = left
    while left > 0:
        left -= next(counts)
    return wanted / (time.perf_counter() - begin_s)


def _consumed(servers: str, topic: str) -> Iterator[int]:
    settings = KafkaSettings(bootstrap_servers=servers).librdkafka()
    with closing(Consumer({**settings, "group.id": "bench", "enable.auto.commit": False})) as peer:
        peer.assign([TopicPartition(topic, one, 0) for one in range(_PARTITIONS)])
        while True:
            yield len(peer.consume(_AT_ONCE, timeout=1))


def _each(subscription: Subscription) -> Iterator[int]:
    while (message := subscription.receive(_TIMEOUT_S)) is not None:
        subscription.acknowledge(message)
        yield 1


def _many(subscription: Subscription) -> Iterator[int]:
    while messages := subscription.receive_many(_AT_ONCE, _TIMEOUT_S):
        subscription.acknowledge_many(messages)
        yield len(messages)


def _fill(servers: str, topic: str, messages: int) -> None:
    kafka = KafkaSettings(bootstrap_servers=servers)
    KafkaTopics(kafka).ensure(topic, partitions=_PARTITIONS, replication_factor=1)
    client = Producer({**kafka.librdkafka(), "linger.ms": 50})
    for number in range(messages):
        while True:
            try:
                client.produce(
                    topic, _VALUE, key=b"%d" % (number % _KEYS), partition=number % _PARTITIONS
                )
                break
            except BufferError:
                client.poll(0.1)
    if client.flush(_TIMEOUT_S):
        raise RuntimeError("the topic cannot be filled")


def _figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit}


def _in_fresh_process(*given: object) -> float:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.subscription", "--run", *map(str, given)],
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(found.stdout)


def main() -> None:
    """Measure, print and write; or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--run", nargs=4, metavar=("SERVERS", "TOPIC", "WAY", "MESSAGES"))
    given = parser.parse_args()
    if given.run is not None:
        servers, topic, way, messages = given.run
        print(run(servers, topic, way, int(messages)))
        return
    with bench_broker() as servers:
        figures = measure(servers, given.messages)
    print_figures("A subscription beside the consumer that it reads with", figures)
    _OUTPUT.mkdir(parents=True, exist_ok=True)
    (_OUTPUT / "subscription.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
