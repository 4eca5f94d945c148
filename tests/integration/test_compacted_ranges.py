"""The way to read a batch, on a topic that a broker has compacted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.cli.topic_reader import read_topic
from sequitur.kafka.partition import SourcePartition
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
    """As librdkafka reads them, wherever they begin and end: in holes, and where none is left."""
    broker = make_broker({"log.cleaner.backoff.ms": "100"})
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topic, admin = "compacted", AdminClient(kafka.librdkafka())
    admin.create_topics([NewTopic(topic, 1, 1, config=_CONFIG)])[topic].result(PATIENCE_S)
    # Batches of several, which compaction leaves with holes, and packs again.
    options = {"linger.ms": 1_000, "compression.type": "lz4"}
    client = Producer({**kafka.librdkafka(), **options})

    def left() -> list[int]:
        """Write one more, which ends an old segment, and read all."""
        client.produce(topic, b"", b"%d" % time.monotonic_ns(), 0)
        client.flush(PATIENCE_S)
        time.sleep(0.3)
        return [record.offset for record in read_topic(kafka, topic)]

    for number in range(60):
        key = {30: b"once", 45: b"deleted"}.get(number, b"same")
        value = None if number == 45 else b"%d" % number
        client.produce(topic, value, key, 0, headers=[("n", value)])
        if number % 6 == 5:
            client.flush(PATIENCE_S)
    wait_until(lambda: len([one for one in left() if one < 60]) == 3)
    there = [
        (record.offset, record.timestamp_ms, record.key, record.value, [*record.headers])
        for record in read_topic(kafka, topic)
    ]
    assert [(offset, key, value) for offset, _, key, value, _ in there][:3] == [
        (30, b"once", b"30"),
        (45, b"deleted", None),
        (59, b"same", b"59"),
    ]
    end, where = there[-1][0] + 1, SourcePartition(topic, 0)
    ranges = KafkaRanges(Reader(kafka=kafka, patience_s=60.0))
    for first, stop in ((0, end), (0, 1), (0, 31), (30, 59), (31, 60), (45, end), (59, 60)):
        found = [
            (
                row["offset"],
                row["timestamp_ms"],
                row["key"],
                row["value"],
                [(one["key"], one["value"]) for one in row["headers"] or ()],
            )
            for some in ranges.read({where: (first, stop)}, 3, 32 << 20).rows
            for row in some.to_pylist()
        ]
        assert found == [one for one in there if first <= one[0] < stop]
