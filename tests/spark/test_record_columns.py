"""Kafka's records as a Spark column are the records of the reference, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.pipelines.rows.record_timestamps import TIMESTAMP_COLUMN
from sequitur.pipelines.sink.record_columns import RECORD_COLUMN, with_records
from tests.support.record_bytes import Header, record_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_SCHEMA = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, "
    f"{TIMESTAMP_COLUMN} bigint"
)
_BASE_MS = 1_700_000_000_000
_SIZES = (0, 1, 63, 64, 8191, 8192, 1 << 20, (1 << 20) - 1)
"""Around where a varint takes a byte more."""

_ROWS: list[tuple[bytes | None, bytes | None, list[Header] | None]] = [
    (None, None, None),
    (b"", b"", []),
    (b"\x80\xff", b"\x00", [("a", b"1")]),
    (b"k", None, [("", None)]),
    (None, b"v", [("\u00e9", b"\xff"), ("a", None), ("a", b"")]),
    (b"k", b"v", [("n" * 100, b"v" * 9000)] * 70),
]
_ROWS += [(b"k" * size, b"v" * size, [("h", b"h" * size)]) for size in _SIZES]


def _delta_ms(number: int) -> int:
    """Timestamp deltas of each length, up to that of the deepest floor."""
    return (0, 1, 63, 64, 9_000, 1 << 21, 7 * 86_400_000)[number % 7]


def _buffer(data: bytes | None) -> bytearray | None:
    """What Spark takes for binary data."""
    return None if data is None else bytearray(data)


def test_records_agree_with_the_reference(spark: SparkSession) -> None:
    """Null, empty, short and long keys, values and headers; numbers begin anew in each batch."""
    rows = [
        (
            _buffer(key),
            _buffer(value),
            [(name, _buffer(data)) for name, data in headers or ()],
            _BASE_MS + _delta_ms(number),
        )
        for number, (key, value, headers) in enumerate(_ROWS)
    ]
    frame = spark.createDataFrame(rows, _SCHEMA).coalesce(1)
    found = [bytes(row[RECORD_COLUMN]) for row in with_records(frame, 4, F.lit(_BASE_MS)).collect()]
    expected = [
        record_bytes(number % 4, key, value, headers or (), delta_ms=_delta_ms(number))
        for number, (key, value, headers) in enumerate(_ROWS)
    ]
    assert found == expected


def test_numbers_follow_the_order_of_a_sorted_partition(spark: SparkSession) -> None:
    """The order in which rows are sent is the order in which they are numbered."""
    frame = spark.range(300).selectExpr(
        "cast(null as binary) key",
        "cast(lpad(299 - id, 3, '0') as binary) value",
        "cast(null as array<struct<key: string, value: binary>>) headers",
        f"0L {TIMESTAMP_COLUMN}",
    )
    ordered = frame.repartition(1).sortWithinPartitions("value")
    found = [bytes(row[RECORD_COLUMN]) for row in with_records(ordered, 128, F.lit(0)).collect()]
    assert found == [record_bytes(n % 128, None, b"%03d" % n) for n in range(300)]
