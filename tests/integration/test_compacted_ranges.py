"""The driver's way to read a batch, on a topic that a broker has compacted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.cli.topic_reader import read_topic
from sequitur.consumer import SourcePartition
from sequitur.kafka.reader import Reader
from sequitur.pipelines.ordering.small_batches import KafkaRanges
from sequitur.producer import KafkaSettings
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "1048576",
    "segment.ms": "200",
}


@pytest.mark.test_all
@pytest.mark.promise("order-small-batches")
def test_ranges_of_a_compacted_topic_are_read_to_their_ends(make_broker: MakeBroker) -> None:
    """Wherever they begin and end: in holes, too, and where nothing is left."""
    broker = make_broker({"log.cleaner.backoff.ms": "100"})
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topic, admin = "compacted", AdminClient(kafka.librdkafka())
    admin.create_topics([NewTopic(topic, 1, 1, config=_CONFIG)])[topic].result(PATIENCE_S)
    client = Producer(kafka.librdkafka())

    def left() -> list[int]:
        """Write one more, which ends an old segment, and read all."""
        client.produce(topic, b"", b"%d" % time.monotonic_ns(), 0)
        client.flush(PATIENCE_S)
        time.sleep(0.3)
        return [record.offset for record in read_topic(kafka, topic)]

    for number in range(60):
        client.produce(topic, b"%d" % number, b"once" if number == 30 else b"same", 0)
        client.flush(PATIENCE_S)
    wait_until(lambda: len([one for one in left() if one < 60]) == 2)
    there = [(record.offset, record.value) for record in read_topic(kafka, topic)]
    assert [offset for offset, _ in there][:2] == [30, 59]
    end, where = there[-1][0] + 1, SourcePartition(topic, 0)
    ranges = KafkaRanges(Reader(kafka=kafka, patience_s=60.0))
    for first, stop in ((0, end), (0, 1), (0, 31), (30, 59), (31, 60), (45, end), (59, 60)):
        found = [
            (row["offset"], row["value"])
            for some in ranges.read({where: (first, stop)}, 3, 32 << 20).rows
            for row in some.to_pylist()
        ]
        assert found == [one for one in there if first <= one[0] < stop]
