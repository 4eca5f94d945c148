"""How many records Spark's consumers take at once, by how large they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from sequitur.consumer import SourcePartition
from sequitur.pipelines.ordering.row_probe import MOST_POLLED, mean_row_bytes, records_a_poll
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


@pytest.mark.parametrize(("size", "at_most"), [(100, MOST_POLLED), (600_000, 112)])
def test_rows_are_polled_by_their_size(
    broker: Broker, make_topic: MakeTopic, size: int, at_most: int
) -> None:
    """However well they are packed; what was read already, and partitions without, do not count."""
    topic = make_topic(partitions=2)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    producer = Producer({**kafka.librdkafka(), "compression.type": "lz4"})
    for _ in range(20):
        producer.produce(topic, bytes(size), partition=0)
    assert producer.flush(30) == 0
    unread = {SourcePartition(topic, 0): (0, 20), SourcePartition(topic, 1): (0, 0)}
    found = records_a_poll(mean_row_bytes(kafka, unread))
    assert at_most // 2 < found <= at_most
    nothing = {SourcePartition(topic, 0): (20, 20)}
    assert records_a_poll(mean_row_bytes(kafka, nothing)) == MOST_POLLED
