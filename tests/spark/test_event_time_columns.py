"""The Spark columns of an event time give what the reference gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer import (
    TOO_FAR_FUTURE,
    EventTime,
    TimeBounds,
    parse_event_time_spec,
    read_event_time,
)
from sequitur.pipelines.rows.columns import RUN_SCHEMA, output_partition, staged_rows
from tests.support.event_time_cases import (
    FORMAT_CASES,
    HEADER_CASES,
    JSON_CASES,
    LATEST_MS,
    TIMESTAMP_CASES,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.event_time_cases import Headers

pytestmark = pytest.mark.spark

_EARLIEST_MS = 946_684_800_000
Records = list[tuple[bytes | None, "Headers | None", int]]

_SCHEMA = RUN_SCHEMA.partition(", output_partition")[0]


def _columns(spark: SparkSession, spec: str, records: Records) -> list[EventTime]:
    rows = [
        (
            "t",
            0,
            offset,
            timestamp_ms,
            None,
            None if value is None else bytearray(value),
            None if headers is None else [(n, v and bytearray(v)) for n, v in headers],
        )
        for offset, (value, headers, timestamp_ms) in enumerate(records)
    ]
    frame = staged_rows(
        spark.createDataFrame(rows, _SCHEMA),
        parse_event_time_spec(spec),
        output_partition(spark, 4),
        frontier_ms=-1,
        bounds=_bounds(spec),
        limit=None,
    )
    staged = frame.orderBy("offset").collect()
    return [EventTime(row["event_time_ms"], row["reason"]) for row in staged]


def _bounds(spec: str) -> TimeBounds:
    # The tables have times of 1970 for their smallness.
    earliest_ms = _EARLIEST_MS if spec.startswith("json:at") else 0
    unit = parse_event_time_spec(spec).format.unit
    return TimeBounds(earliest_ms=earliest_ms, latest_ms=LATEST_MS, unit=unit)


def _reference(spec: str, records: Records) -> list[EventTime]:
    return [
        read_event_time(
            parse_event_time_spec(spec),
            value=value,
            headers=headers,
            kafka_timestamp_ms=timestamp_ms,
            bounds=_bounds(spec),
        )
        for value, headers, timestamp_ms in records
    ]


def test_json_columns_agree_with_the_reference(spark: SparkSession) -> None:
    """Every value of the table gives the same time or the same reason in Spark."""
    records: Records = [(value, None, -1) for value, _ in JSON_CASES]
    expected = _reference("json:occurred_at", records)
    actual = _columns(spark, "json:occurred_at", records)
    differing = [
        (record[0], e, a) for record, e, a in zip(records, expected, actual, strict=True) if e != a
    ]
    assert differing == []


def test_nested_json_columns_agree_with_the_reference(spark: SparkSession) -> None:
    """A dotted path goes down into objects in Spark as in the reference."""
    values = [
        b'{"a b":{"c":5}}',
        b'{"c":5}',
        b'{"a b":5}',
        b'{"a b":[{"c":5}]}',
        b'{"a b":{},"a b":{"c":6}}',
        b'{"a b":{"c":null}}',
    ]
    records: Records = [(v, None, -1) for v in values]
    assert _reference("json:a b.c", records) == _columns(spark, "json:a b.c", records)


def test_header_columns_agree_with_the_reference(spark: SparkSession) -> None:
    """The last header of the name counts in Spark, too."""
    records: Records = [(None, headers, -1) for headers, _ in HEADER_CASES]
    assert _reference("header:at", records) == _columns(spark, "header:at", records)


def test_kafka_timestamp_column_agrees_with_the_reference(spark: SparkSession) -> None:
    """Kafka's timestamp is taken as it is."""
    records: Records = [(None, None, timestamp_ms) for timestamp_ms, _ in TIMESTAMP_CASES]
    actual = _columns(spark, "kafka-timestamp", records)
    assert _reference("kafka-timestamp", records) == actual
    assert actual[-1] == EventTime(reason=TOO_FAR_FUTURE)


@pytest.mark.parametrize("written", sorted({written for written, _, _ in FORMAT_CASES}))
def test_units_and_forms_agree_with_the_reference(spark: SparkSession, written: str) -> None:
    """However the time is written."""
    texts = [text for one, text, _ in FORMAT_CASES if one == written]
    records: Records = [(None, [("at", text.encode())], -1) for text in texts]
    spec = f"header:at as {written}"
    found = dict(zip(texts, _columns(spark, spec, records), strict=True))
    assert found == dict(zip(texts, _reference(spec, records), strict=True))


@pytest.mark.parametrize("unit", ["ms", "s", "ns"])
def test_times_that_are_not_believed_agree_with_the_reference(
    spark: SparkSession, unit: str
) -> None:
    """Numbers around each bound, and of each likely unit."""
    edges = [_EARLIEST_MS, LATEST_MS, 1_000]
    numbers = {
        edge * 1_000**power // 1_000**3 + more
        for edge in edges
        for power in range(6)
        for more in (-1, 0, 1)
    }
    records: Records = [(b'{"at":%d}' % number, None, -1) for number in sorted(numbers)]
    spec = f"json:at as {unit}"
    found = dict(zip(sorted(numbers), _columns(spark, spec, records), strict=True))
    assert found == dict(zip(sorted(numbers), _reference(spec, records), strict=True))
    assert len({one.reason for one in found.values()}) >= 5


def test_kafka_timestamps_in_seconds(spark: SparkSession) -> None:
    """A producer that sets seconds is understood, too."""
    records: Records = [(None, None, number) for number in (-1, 0, 1_700_000_000, 2**62)]
    spec = "kafka-timestamp as s"
    assert _reference(spec, records) == _columns(spark, spec, records)
