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


@pytest.mark.parametrize(
    ("size", "rows", "at_most"),
    [(100, 20, MOST_POLLED), (600_000, 20, 112), (900_000, 1_100, 74)],
)
def test_rows_are_polled_by_their_size(
    broker: Broker, make_topic: MakeTopic, size: int, rows: int, at_most: int
) -> None:
    """However well they are packed; what was read already, and partitions without, do not count.

    A thousand that are packed into one answer are a GB, which the look must not wait for.
    """
    topic = make_topic(partitions=2)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    producer = Producer({**kafka.librdkafka(), "compression.type": "zstd"})
    for _ in range(rows):
        producer.produce(topic, bytes(size), partition=0)
        producer.poll(0)
        while len(producer) > 100:
            producer.poll(0.1)
    assert producer.flush(30) == 0
    unread = {SourcePartition(topic, 0): (0, rows), SourcePartition(topic, 1): (0, 0)}
    found = records_a_poll(mean_row_bytes(kafka, unread))
    assert at_most // 2 < found <= at_most
    nothing = {SourcePartition(topic, 0): (rows, rows)}
    assert records_a_poll(mean_row_bytes(kafka, nothing)) == MOST_POLLED
