"""A user's DataFrame as rows for a topic: checked, placed in partitions, and put in order.

Without a jar of Kafka's, and without a change to the session: what needs Kafka's hash is done in
Python.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it
from pyspark.sql import types as T  # noqa: N812 - likewise
from pyspark.sql.pandas.functions import arrow_udf

from sequitur.errors import ColumnsError
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.spark.partition_blocks import blocks_of
from sequitur.pipelines.spark.tasks import parallelism

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


OrderBy: TypeAlias = "str | Column | Sequence[str | Column]"

_PARTITION: Final = "_sequitur_partition"
_PLACE: Final = "_sequitur_place"
_TEXT: Final = ("string", "binary")
_TYPES: Final = {
    "value": _TEXT,
    "key": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""As Spark's own sink for Kafka has them, and the timestamp."""


def columns_in_order(order_by: OrderBy) -> tuple[str | Column, ...]:
    several = [order_by] if isinstance(order_by, str | Column) else [*order_by]
    for one in several:
        if not isinstance(one, str | Column):
            raise ColumnsError(f"order_by: expected columns or their names, not {one!r}")
    return tuple(several)


def check_columns(rows: DataFrame) -> None:
    """Check that a DataFrame has the columns that records are made of, in types that they need.

    Others are passed over, as Spark's own sink does.
    """
    found = {field.name: field.dataType for field in rows.schema.fields}
    twice = [name for name, count in Counter(rows.columns).items() if count > 1 and name in _TYPES]
    if twice:
        raise ColumnsError(f"there are two columns {twice[0]!r}: which one records are made of?")
    if "value" not in found:
        raise ColumnsError(
            f"there is no column 'value', which records are made of, among {sorted(found)}: name "
            "one so, such as to_json(struct('*')).alias('value')"
        )
    wrong = [
        f"column {name!r} is {found[name].simpleString()}, expected {' or '.join(expected)}"
        for name, expected in _TYPES.items()
        if name in found and _is_wrong(found[name], expected)
    ]
    if wrong:
        raise ColumnsError("; ".join(wrong))


def rows_in_order(rows: DataFrame, partitions: int, order_by: Sequence[str | Column]) -> DataFrame:
    """Return the rows for each partition of a topic, in their order, those of one in one task.

    Keys go where Kafka's own clients send them. A row without a key goes where a checksum of its
    value says, which is the same on a repeat. Rows that `order_by` does not tell apart are in the
    order in which Spark has them: by input partition, and within it as they were read.
    """
    has = {*rows.columns}
    blocks = blocks_of(partitions, parallelism(rows.sparkSession))
    placed = rows.withColumns({_PARTITION: _partition(has, partitions), _PLACE: _place()})
    block = (F.col(_PARTITION) / F.lit(len(blocks[0]))).cast("int")
    try:
        sorted_rows = placed.repartitionById(len(blocks), block).sortWithinPartitions(
            _PARTITION, *order_by, _PLACE
        )
    except AnalysisException as error:
        told = str(error).partition("\n")[0]
        raise ColumnsError(f"order_by: the rows cannot be sorted so: {told}") from error
    return sorted_rows.select(
        F.col(_PARTITION).alias("output_partition"),
        _or_null(has, "key", "binary"),
        _or_null(has, "value", "binary"),
        _or_null(has, "headers", _TYPES["headers"][0]),
        (F.unix_millis("timestamp") if "timestamp" in has else F.lit(None).cast("long")).alias(
            "timestamp_ms"
        ),
    )


def _partition(has: set[str], partitions: int) -> Column:
    """Return the partition of a row: the row's own, else by key, else by value."""
    spread = F.crc32(F.col("value").cast("binary")) % F.lit(partitions)
    choices = [F.coalesce(spread, F.lit(0)).cast("int")]
    if "key" in has:
        choices.insert(0, _by_key(partitions)(F.col("key").cast("binary")))
    if "partition" in has:
        choices.insert(0, F.col("partition"))
    return F.coalesce(*choices)


def _place() -> Column:
    """Return a number that grows from row to row, and from one input partition to the next."""
    return F.monotonically_increasing_id()


def _by_key(partitions: int) -> Any:
    partitioner = KeyPartitioner(partitions)

    def placed(keys: pa.Array) -> pa.Array:
        """Place keys as Kafka's own clients do; null without a key."""
        given = keys.to_pylist()
        found = iter(partitioner.each([key for key in given if key is not None]).tolist())
        return pa.array([None if key is None else next(found) for key in given], pa.int32())

    made: Any = arrow_udf  # its stub leaves this form out
    return made(placed, T.IntegerType())


def _or_null(has: set[str], name: str, kind: str) -> Column:
    return (F.col(name) if name in has else F.lit(None)).cast(kind).alias(name)


def _is_wrong(found: T.DataType, expected: tuple[str, ...]) -> bool:
    # A type that may be null is the same type here.
    return found.simpleString() not in expected
