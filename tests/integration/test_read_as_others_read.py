"""Our reader gives what librdkafka's consumer gives, whatever producers have written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sequitur.cli.topic_reader import read_topic
from sequitur.kafka.partition import SourcePartition
from sequitur.kafka.reader import Reader
from sequitur.pipelines.ordering.small_batches import KafkaRanges
from sequitur.producer import KafkaSettings
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.brokers import Broker
    from tests.support.events import Headers

_FAR_MS: Final = 1_700_000_000_000_000_000
"""Nanoseconds, which a broker takes for milliseconds."""
_HEADERS: Final[list[Headers]] = [
    [],
    [("h", None)],
    [("h", b"1"), ("h", b"2"), ("h", None)],
    [("", b""), ("", b"\x00\xff")],
    [("\u00e9\U0001f600", b"x" * 300)],
    [(f"h{number}", b"%d" % number) for number in range(40)],
]
_KEYS: Final = [None, b"", b"k", b"\xff\x00"]
_VALUES: Final = [b"value", None, b"", b"v" * 2_000]


def test_columns_and_rows_are_what_librdkafka_reads(broker: Broker) -> None:
    """Of each codec, of transactions that were committed or aborted, and of times far ahead."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    topic = f"odd-{uuid4().hex[:8]}"
    config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    admin = AdminClient(kafka.librdkafka())
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(PATIENCE_S)
    failures: list[Any] = []
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        for ending in ("plain", "commit", "abort"):
            options = {} if ending == "plain" else {"transactional.id": f"{topic}-{codec}-{ending}"}
            producer = Producer(
                {
                    **kafka.librdkafka(),
                    "compression.type": codec,
                    "linger.ms": 1_000,
                    "on_delivery": lambda error, _: failures.append(error) if error else None,
                    **options,
                }
            )
            if options:
                producer.init_transactions(PATIENCE_S)
                producer.begin_transaction()
            for row in range(48):
                producer.produce(
                    topic,
                    _VALUES[row % 4],
                    _KEYS[row // 4 % 4],
                    0,
                    headers=_HEADERS[row % 6],
                    timestamp=(0, 1, 1_700_000_000_000, _FAR_MS)[(row + number) % 4] + row,
                )
            assert producer.flush(PATIENCE_S) == 0
            if ending == "commit":
                producer.commit_transaction(PATIENCE_S)
            elif ending == "abort":
                producer.abort_transaction(PATIENCE_S)
    assert failures == []
    there = [
        (one.offset, one.timestamp_ms, one.key, one.value, [*one.headers])
        for one in read_topic(kafka, topic)
    ]
    assert len(there) == 5 * 2 * 48
    end = there[-1][0] + 50  # behind it are 48 that were aborted, and markers
    for first, stop in ((0, end), (7, end - 60), (100, 101)):
        found = [
            (
                row["offset"],
                row["timestamp_ms"],
                row["key"],
                row["value"],
                [(one["key"], one["value"]) for one in row["headers"] or ()],
            )
            for some in KafkaRanges(Reader(kafka=kafka)).each(
                {SourcePartition(topic, 0): (first, stop)}, 3
            )
            for row in some.to_pylist()
        ]
        wanted = [one for one in there if first <= one[0] < stop]
        assert found == wanted
        rows = Reader(kafka=kafka).rows({SourcePartition(topic, 0): (first, stop)})
        assert [
            (one.offset, one.timestamp, one.key, one.value, [*one.headers]) for _, one in rows
        ] == wanted
