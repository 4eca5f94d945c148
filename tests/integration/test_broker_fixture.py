"""What tests may expect of their broker, wherever it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.support.brokers import answers
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import MakeBroker, MakeTopic
    from tests.support.brokers import Broker

pytestmark = pytest.mark.either_broker


def _write(servers: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "acks": "all"})
    producer.produce(topic, value, partition=0)
    # It retries until its delivery time-out: nothing left means acknowledged.
    assert producer.flush(PATIENCE_S) == 0


def _read_all(servers: str, topic: str) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "log_level": 0,
            "enable.auto.commit": False,
        }
    )
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(end, timeout=PATIENCE_S)]
    finally:
        consumer.close()


def test_a_topic_is_ready_when_it_is_returned(broker: Broker, make_topic: MakeTopic) -> None:
    """It has the partitions and settings asked for, and a name of its own."""
    first, second = make_topic(3, retention_ms=60_000), make_topic(1)
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = client.list_topics(timeout=PATIENCE_S).topics
    assert [len(topics[first].partitions), len(topics[second].partitions)] == [3, 1]
    resource = ConfigResource(ResourceType.TOPIC, first)
    settings = client.describe_configs([resource])[resource].result(PATIENCE_S)
    assert settings["retention.ms"].value == "60000"


@pytest.mark.test_all
def test_what_was_acknowledged_outlives_a_kill(make_broker: MakeBroker) -> None:
    """Killed and started again, the broker has its old address and the old data."""
    own = make_broker({"auto.create.topics.enable": "true"})
    servers = own.bootstrap_servers
    _write(servers, "kept", b"before")
    own.kill()
    assert not answers(servers)
    assert own.start() == servers
    _write(servers, "kept", b"after")
    assert _read_all(servers, "kept") == [b"before", b"after"]


@pytest.mark.test_all
def test_a_stopped_broker_starts_again(make_broker: MakeBroker) -> None:
    """Stopped in order it is gone, and it comes back where it was."""
    own = make_broker()
    servers = own.bootstrap_servers
    own.stop()
    assert not answers(servers)
    assert own.start() == servers
    assert answers(servers)


def test_a_paused_broker_answers_nothing_until_it_is_resumed(make_broker: MakeBroker) -> None:
    """A pause is silence, not an end: what comes after it goes on with the same broker."""
    own = make_broker()
    own.pause()
    assert not answers(own.bootstrap_servers)
    own.resume()
    assert answers(own.bootstrap_servers, timeout_s=PATIENCE_S)
    own.pause()
    own.start()
    assert answers(own.bootstrap_servers)
