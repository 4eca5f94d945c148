"""Kafka's record as a Spark column: Python then sends bytes, and never sees a row.

What stands where: `kafka.record_format`. The offset delta counts from 0 in each batch, so the
column is made for batches of a fixed number of rows, a power of two, in the order the rows have.
The timestamp delta counts from a time that is the same for all batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.pipelines.rows.record_timestamps import TIMESTAMP_COLUMN
from sequitur.producer.kafka.record_format import (
    CONTINUED,
    NO_HEADERS,
    NULL,
    ONE_HEADER,
    RECORD_ATTRIBUTES,
    VARINT_BITS,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD_COLUMN: Final = "record"

_ONE_BYTE: Final = 1 << VARINT_BITS
_TWO_BYTES: Final = 1 << 2 * VARINT_BITS
_THREE_BYTES: Final = 1 << 3 * VARINT_BITS
_FOUR_BYTES: Final = 1 << 4 * VARINT_BITS
_BYTES: Final = bytes(range(256))
_PAIRS: Final = b"".join(
    bytes((n & (CONTINUED - 1) | CONTINUED, n >> VARINT_BITS)) for n in range(_TWO_BYTES)
)
"""The two-byte varints, one behind the other."""


def with_records(rows: DataFrame, batch_rows: int, base: Column) -> DataFrame:
    """Return the rows as `RECORD_COLUMN`, numbered within batches, beside their `TIMESTAMP_COLUMN`.

    Args:
        rows: Columns key, value (binary), headers and `TIMESTAMP_COLUMN`, in the order in which
            they are to be sent, and those that `base` needs.
        batch_rows: Rows of a batch: a power of two.
        base: What timestamp deltas count from, epoch ms: no timestamp is older, nor newer by 2^30.
    """
    # One projection after the other: the length of a column needs it twice.
    number = F.monotonically_increasing_id().bitwiseAND(F.lit(batch_rows - 1)).cast("int")
    body = F.concat(
        F.lit(RECORD_ATTRIBUTES),
        _varint(F.col("_delta")),
        _varint(F.col("_number")),
        _sized(F.col("key")),
        _sized(F.col("value")),
        _headers(F.col("headers")),
    )
    return (
        rows.withColumn("_number", number)
        .withColumn("_delta", (F.col(TIMESTAMP_COLUMN) - base).cast("int"))
        .withColumn("_body", body)
        .select(
            F.concat(_varint(F.octet_length("_body")), "_body").alias(RECORD_COLUMN),
            TIMESTAMP_COLUMN,
        )
    )


def _headers(headers: Column) -> Column:
    """Return all headers of a record. Most have none or one, and take no loop."""
    count = F.coalesce(F.size(headers), F.lit(0))
    each = F.transform(headers, _header)
    many = F.aggregate(each, F.lit(b""), lambda so_far, one: F.concat(so_far, one))  # noqa: PLW0108 - it has to have two parameters
    return (
        F.when(count <= 0, F.lit(NO_HEADERS))
        .when(count == 1, F.concat(F.lit(ONE_HEADER), _header(F.get(headers, F.lit(0)))))
        .otherwise(F.concat(_varint(count), many))
    )


def _header(header: Column) -> Column:
    name = header["key"].cast("binary")
    return F.concat(_varint(F.octet_length(name)), name, _sized(header["value"]))


def _sized(data: Column) -> Column:
    """Bytes behind their length; null as the length -1."""
    return F.when(data.isNull(), F.lit(NULL)).otherwise(
        F.concat(_varint(F.octet_length(data)), data)
    )


def _varint(number: Column) -> Column:
    """Return a zigzag varint of a number that is not negative."""
    zigzag = number * 2
    return (
        F.when(zigzag < _ONE_BYTE, F.substring(F.lit(_BYTES), zigzag + 1, F.lit(1)))
        .when(zigzag < _TWO_BYTES, F.substring(F.lit(_PAIRS), zigzag * 2 + 1, F.lit(2)))
        .when(zigzag < _THREE_BYTES, _bytes(zigzag, 3))
        .when(zigzag < _FOUR_BYTES, _bytes(zigzag, 4))
        .otherwise(_bytes(zigzag, 5))
    )


def _bytes(zigzag: Column, length: int) -> Column:
    parts = [
        F.shiftrightunsigned(zigzag, VARINT_BITS * place).bitwiseAND(F.lit(CONTINUED - 1))
        for place in range(length)
    ]
    low = [part.bitwiseOR(F.lit(CONTINUED)) for part in parts[:-1]]
    return F.concat(*(F.substring(F.lit(_BYTES), part + 1, F.lit(1)) for part in (*low, parts[-1])))
