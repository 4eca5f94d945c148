"""What tests of an open `Subscription` do with it, and with its topic."""

from __future__ import annotations

import contextlib
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sequitur import Backoff
from sequitur.consumer.subscription.registry import group_of_new
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sequitur import Message, Subscription
    from sequitur.producer import KafkaSettings

TIMEOUT_S = PATIENCE_S
SOON = Backoff(initial_ms=20, maximum_ms=100)
OFTEN = timedelta(milliseconds=100)


def fill(
    kafka: KafkaSettings, topic: str, count: int, *, partitions: int = 1, keys: int = 0
) -> None:
    """Write numbered messages, one partition after the other; by key if there are keys."""
    client = Producer({**kafka.librdkafka(), "linger.ms": 5})
    for number in range(count):
        key = f"key-{number % keys}".encode() if keys else None
        place = (number % keys if keys else number) % partitions
        client.produce(topic, b"%d" % number, key=key, partition=place)
    assert client.flush(PATIENCE_S) == 0


def receive(subscription: Subscription, count: int) -> list[Message]:
    found: list[Message] = []
    for _ in range(count):
        message = subscription.receive(TIMEOUT_S)
        assert message is not None, f"{len(found)} of {count} came"
        found.append(message)
    return found


def places(messages: Iterable[Message]) -> list[tuple[int, int]]:
    """Return partition and offset of each, in order."""
    return sorted((one.partition, one.offset) for one in messages)


def committed(kafka: KafkaSettings, subscription: str, topic: str, partition: int = 0) -> int:
    return group_commit(kafka, group_of_new(kafka, subscription), topic, partition).offset


def commit(kafka: KafkaSettings, group: str, offset: TopicPartition) -> None:
    with closing(Consumer({**kafka.librdkafka(), "group.id": group})) as consumer:
        consumer.commit(offsets=[offset], asynchronous=False)


def group_commit(
    kafka: KafkaSettings, group: str, topic: str, partition: int = 0
) -> TopicPartition:
    """Return what a group has committed, once it has a coordinator: a cluster's first is late."""
    found: list[TopicPartition] = []

    def is_answered() -> bool:
        with contextlib.suppress(KafkaException):
            found[:] = consumer.committed([TopicPartition(topic, partition)], timeout=PATIENCE_S)
        return bool(found)

    with closing(Consumer({**kafka.librdkafka(), "group.id": group})) as consumer:
        wait_until(is_answered)
    return found[0]


def is_caught_up(subscription: Subscription) -> Callable[[], bool]:
    """Return whether all is acked, as a condition to wait for."""
    return lambda: subscription.stats().backlog == 0
