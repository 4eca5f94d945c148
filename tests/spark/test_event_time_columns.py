"""The Spark columns of an event time give what the reference gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consumer import TOO_FAR_FUTURE, EventTime, parse_event_time_spec, read_event_time
from pipelines._rows import RUN_SCHEMA, output_partition, staged_rows
from tests.event_time_cases import HEADER_CASES, JSON_CASES, LATEST_MS, TIMESTAMP_CASES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.event_time_cases import Headers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

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
        latest_ms=LATEST_MS,
    )
    staged = frame.orderBy("offset").collect()
    return [EventTime(row["event_time_ms"], row["reason"]) for row in staged]


def _reference(spec: str, records: Records) -> list[EventTime]:
    return [
        read_event_time(
            parse_event_time_spec(spec),
            value=value,
            headers=headers,
            kafka_timestamp_ms=timestamp_ms,
            latest_ms=LATEST_MS,
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
