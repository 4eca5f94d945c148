"""How large the rows are that a query is about to read: a look at some of them before Spark reads.

Kafka's consumer hands out records by number and never by size: 10,000 a poll, which small rows need
to be read quickly, are 9 GB of rows of 900 KB, if these came packed so well that the limits on
fetches, which count packed bytes, do not hold them up.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sequitur.errors import UnreadableHeadersError
from sequitur.kafka.records import headers_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer import SourcePartition
    from sequitur.kafka.settings import KafkaSettings

MOST_POLLED: Final = 10_000
"""Records a poll; the consumer's default of 500 costs two thirds of the source's speed."""
_FEWEST_POLLED: Final = 16
_POLL_BYTES: Final = 64 << 20
_LOOKED_AT: Final = 500
_LOOK_S: Final = 0.5
_FIRST_S: Final = 10.0
"""So long a first row is waited for: a broker may be slow, and without any nothing is known."""
_MOST_PARTITIONS: Final = 64
_FETCH_BYTES: Final = 16 << 10
"""Little, since the client unpacks all of an answer before it hands out its first row."""


def records_a_poll(row_bytes: float) -> int:
    """Return how many records Spark's consumers may take at once, some dozen MiB."""
    return max(_FEWEST_POLLED, min(MOST_POLLED, int(_POLL_BYTES / max(1.0, row_bytes))))


def mean_row_bytes(
    kafka: KafkaSettings, unread: Mapping[SourcePartition, tuple[int, int]]
) -> float:
    """Return the mean size of some rows; 0 where there are none."""
    left = [(where, span) for where, span in sorted(unread.items()) if span[0] < span[1]]
    row_bytes = 0.0
    if left:
        settings = {
            **kafka.librdkafka(),
            "group.id": "sequitur-row-probe",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": _FETCH_BYTES,
            "fetch.max.bytes": _MOST_PARTITIONS * _FETCH_BYTES,
        }
        consumer = Consumer(settings)
        with contextlib.suppress(KafkaException), contextlib.closing(consumer):
            # Rows at the beginning, and rows in the middle: they may be of two kinds.
            for share in (0.0, 0.5):
                places = [
                    TopicPartition(
                        where.topic, where.partition, int(first + share * (last - first))
                    )
                    for where, (first, last) in left[:_MOST_PARTITIONS]
                ]
                row_bytes = max(row_bytes, _mean_bytes(consumer, places))
    return row_bytes


def _mean_bytes(consumer: Consumer, places: list[TopicPartition]) -> float:
    """Mean size of some rows from there on; what is left may be ends of transactions alone."""
    consumer.assign(places)
    count = size = 0
    left = {(place.topic, place.partition) for place in places}
    begun_s = time.monotonic()
    while (
        left
        and count < _LOOKED_AT
        and time.monotonic() < begun_s + (_LOOK_S if count else _FIRST_S)
    ):
        found = consumer.consume(_LOOKED_AT, timeout=0.05)
        if count and not found:
            break
        for record in found:
            if (error := record.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its documented name
                    left.discard((record.topic(), record.partition()))
            else:
                parts = [record.key(), record.value()]
                with contextlib.suppress(UnreadableHeadersError):  # Spark's client reads them
                    parts += [value for _, value in headers_of(record)]
                count += 1
                size += sum(len(part) for part in parts if part)
    return size / max(1, count)
