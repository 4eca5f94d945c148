"""How many records Spark's consumers take at once, by how large they are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from sequitur.consumer import SourcePartition
from sequitur.pipelines.ordering import row_probe
from sequitur.pipelines.ordering.row_probe import MOST_POLLED, mean_row_bytes, records_a_poll
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


@pytest.mark.promise("order-rows-large-900")
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


def test_transactions_without_a_row_are_not_waited_for(
    broker: Broker, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is unread is aborted, or the end of a transaction: no first row will come."""
    topic = make_topic(partitions=2)
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    producer = Producer({**kafka.librdkafka(), "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, b"{}", partition=partition)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    monkeypatch.setattr(row_probe, "_FIRST_S", 60.0)
    begun_s = time.monotonic()
    unread = {SourcePartition(topic, number): (0, 2) for number in range(2)}
    assert mean_row_bytes(kafka, unread) == 0
    assert time.monotonic() - begun_s < 60
