"""The broker of compose.yaml comes up with the settings that stand there."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.base import ports as _ports
from tests.containers.kafka_container import container_of
from tests.support.brokers import wait_until_it_answers
from tests.support.compose_file import read_compose_file
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.container


def test_the_composed_broker_answers_and_takes_events() -> None:
    """Its environment makes a working broker, transactions and their internal topic included."""
    external, internal, controller = ports = _free_ports()
    content = read_compose_file({"KAFKA_PORT": str(external)})
    environment = dict(content["services"]["kafka-1"]["environment"])
    # The host's network instead of one of its own: other ports, and on 127.0.0.1 only.
    environment["KAFKA_LISTENERS"] = _on_loopback(environment["KAFKA_LISTENERS"], ports)
    for name, value in environment.items():
        moved = value.replace("kafka-1:19092", f"kafka-1:{internal}")
        environment[name] = moved.replace("kafka-1:29093", f"kafka-1:{controller}")
    container = container_of(environment).with_kwargs(
        network_mode="host", extra_hosts={"kafka-1": _ports.HOST}
    )
    servers = f"{_ports.HOST}:{external}"
    with container:
        assert wait_until_it_answers(servers, 90.0), container.get_logs()
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("events", num_partitions=1)])["events"].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("events", b"event")
        producer.commit_transaction(PATIENCE_S)


def _free_ports() -> tuple[int, int, int]:
    first = _ports.choose_free()
    second = _ports.choose_free({first})
    return first, second, _ports.choose_free({first, second})


def _on_loopback(listeners: str, ports: tuple[int, int, int]) -> str:
    for was, now in zip((9092, 19092, 29093), ports, strict=True):
        listeners = re.sub(f"://:{was}\\b", f"://{_ports.HOST}:{now}", listeners)
    return listeners
