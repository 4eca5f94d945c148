"""What the reorder job's driver asks of Kafka beside Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewPartitions,
)

from consumer import SourcePartition
from pipelines import _kafka_topics
from pipelines._errors import TopicError
from pipelines._kafka_topics import KafkaTopics
from producer import KafkaSettings

if TYPE_CHECKING:
    from tests.brokers import Broker


def test_ends_of_a_partition_that_was_just_added(broker: Broker, topic: str) -> None:
    """A partition created after our client looked last has an end like any other."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topics = KafkaTopics(kafka)
    before = [SourcePartition(topic, number) for number in range(4)]
    assert dict.fromkeys(before, 0) == topics.high_watermarks(before)
    admin = AdminClient(kafka.librdkafka())
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(30)
    producer = Producer(kafka.librdkafka())
    producer.produce(topic, b"value", partition=5)
    assert producer.flush(30) == 0
    after = [*before, SourcePartition(topic, 4), SourcePartition(topic, 5)]
    assert {**dict.fromkeys(after, 0), after[5]: 1} == topics.high_watermarks(after)


def test_ends_of_a_partition_that_does_not_come_are_an_error(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is not there in time is an error, and not taken for an empty one."""
    monkeypatch.setattr(_kafka_topics, "_TIMEOUT_S", 1.0)
    topics = KafkaTopics(KafkaSettings(bootstrap_servers=broker.bootstrap_servers))
    with pytest.raises(TopicError, match="do not tell the topics' ends"):
        topics.high_watermarks([SourcePartition(topic, 7)])
