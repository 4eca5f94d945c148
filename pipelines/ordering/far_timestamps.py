"""Batches with a Kafka timestamp that Spark cannot hold: read without its source.

Spark counts times in microseconds. Kafka counts its timestamps in milliseconds, and takes any that
its topic allows: brokers before 4.0 take those of a producer that writes nanoseconds. One of them
overflows in Spark's source, which then fails at each try, for good. So the offsets that Spark has
planned are read here, as any consumer reads them.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sequitur.consumer.subscription.partition_reader import PartitionReader
from sequitur.errors import TopicError, UnansweredError, UnreadableHeadersError
from sequitur.kafka.java_headers import JavaHeaders
from sequitur.kafka.records import headers_of
from sequitur.pipelines.rows.run_writer import RUN_ARROW_SCHEMA, spread
from sequitur.pipelines.spark.tasks import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from confluent_kafka import Message

    from sequitur.consumer import SourcePartition
    from sequitur.kafka.records import Headers
    from sequitur.pipelines.ordering.context import JobContext

    Spans = Mapping[SourcePartition, tuple[int, int]]
    """First offset of each partition, and the one behind the last."""

FAR_MS: Final = (2**63 - 1) // 1000
"""The greatest timestamp that Spark can hold."""
_FAILS: Final = re.compile(r"ArithmeticException: long overflow|overflows when converting to Spark")
_SCHEMA: Final = pa.schema(list(RUN_ARROW_SCHEMA)[:-2])
_ROWS: Final = 500
_POLL_S: Final = 0.1
_SILENCE_S: Final = 60.0


def is_far(error: BaseException) -> bool:
    """Tell whether Spark's source has failed of such a timestamp."""
    return _FAILS.search(text_of(error)) is not None


def read_spans(job: JobContext, spans: Spans, partitions: int) -> Iterator[pa.RecordBatch]:
    """Yield the committed rows of some offsets, those of each partition in order."""
    left = {where: stop for where, (first, stop) in spans.items() if first < stop}
    reader = PartitionReader(job.kafka, job.topics, "sequitur-reader")
    java = JavaHeaders(job.spark, job.kafka)
    with contextlib.closing(reader), contextlib.closing(java):
        reader.add({where: spans[where][0] for where in left})
        heard_s = time.monotonic()
        while left:
            found: list[tuple[Message, Headers]] = []
            for one in reader.read(_ROWS, _POLL_S):
                if one.where not in left:
                    continue  # what has come since, and is not waited for
                heard_s, stop = time.monotonic(), left[one.where]
                found += [
                    (message, _headers(message, one.where, offset, java))
                    for offset, message in zip(one.offsets, one.messages, strict=True)
                    if offset < stop
                ]
                # The last offsets may be markers: then its end, or a later record, says so.
                if one.offsets.stop >= stop:
                    del left[one.where]
            if found:
                yield from spread(_table(found), partitions).cast(_SCHEMA).to_batches()
            elif time.monotonic() - heard_s > _SILENCE_S:
                raise UnansweredError(
                    f"no records for {_SILENCE_S:.0f} s of partitions {sorted(left)}"
                )
    # Else they may have been passed over.
    for where, begins in job.topics.low_watermarks(spans).items():
        if begins > spans[where][0]:
            raise TopicError(f"{where} begins at offset {begins}, and not at {spans[where][0]}")


def _headers(message: Message, where: SourcePartition, offset: int, java: JavaHeaders) -> Headers:
    try:
        return headers_of(message)
    except UnreadableHeadersError:
        return java.of(where, offset)


def _table(found: Sequence[tuple[Message, Headers]]) -> pa.Table:
    return pa.table(
        {
            "topic": [one.topic() for one, _ in found],
            "partition": [one.partition() for one, _ in found],
            "offset": [one.offset() for one, _ in found],
            "timestamp_ms": [one.timestamp()[1] for one, _ in found],
            "key": [one.key() for one, _ in found],
            "value": [one.value() for one, _ in found],
            "headers": [
                None if not some else [{"key": name, "value": said} for name, said in some]
                for _, some in found
            ],
            "output_partition": [0] * len(found),
        },
        schema=_SCHEMA,
    )
