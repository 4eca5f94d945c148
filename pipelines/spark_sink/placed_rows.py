"""A user's DataFrame as rows for a topic: checked, and put in order where an order is asked for.

Without a jar of Kafka's, and without a change to the session: what needs Kafka's hash is done in
Python. Without an order that is the task that stages the row, so that rows go to Python once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa  # noqa: TC002 - Spark reads the annotations of a function
from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it
from pyspark.sql import types as T  # noqa: N812 - likewise
from pyspark.sql.pandas.functions import arrow_udf

from sequitur.errors import ColumnsError
from sequitur.pipelines.spark.partition_blocks import blocks_of
from sequitur.pipelines.spark.tasks import parallelism
from sequitur.pipelines.spark_sink.staged_rows import placed_by_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame


OrderBy: TypeAlias = "str | Column | Sequence[str | Column]"

_PARTITION: Final = "_sequitur_partition"
_PLACE: Final = "_sequitur_place"
_TEXT: Final = ("string", "binary")
_HEADER: Final = "struct<key:string,value:binary>"
_TYPES: Final = {
    "value": _TEXT,
    "key": _TEXT,
    "headers": (f"array<{_HEADER}>",),
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


def rows_to_stage(rows: DataFrame, partitions: int, order_by: Sequence[str | Column]) -> DataFrame:
    """Return the rows as tasks stage them: in the order of tasks, and within each task's.

    Keys go where Kafka's own clients send them. A row without a key goes where a checksum of its
    value says, which is the same on a repeat. Without `order_by` rows stay where Spark has them,
    and `output_partition` is null where the key decides: a row's task looks at the key. Columns
    that the rows do not have are left out.

    With `order_by` those of a partition are in one task, and in order. Rows that it does not tell
    apart are in the order in which Spark has them: by input partition, and within it as they were
    read.
    """
    has = {*rows.columns}
    partition = _partition(has, partitions)
    if order_by:
        if "key" in has:
            by_key = _by_key(partitions)(F.col("key").cast("binary"))
            partition = F.coalesce(partition, by_key)
        rows = _in_order(rows.withColumn(_PARTITION, partition), partitions, order_by)
        partition = F.col(_PARTITION)
    return rows.select(
        partition.alias("output_partition"),
        *(taken for name, taken in _taken() if name in has),
    )


def _in_order(placed: DataFrame, partitions: int, order_by: Sequence[str | Column]) -> DataFrame:
    blocks = blocks_of(partitions, parallelism(placed.sparkSession))
    block = (F.col(_PARTITION) / F.lit(len(blocks[0]))).cast("int")
    # Grows from row to row, and from one input partition to the next.
    placed = placed.withColumn(_PLACE, F.monotonically_increasing_id())
    try:
        return placed.repartitionById(len(blocks), block).sortWithinPartitions(
            _PARTITION, *order_by, _PLACE
        )
    except AnalysisException as error:
        told = str(error).partition("\n")[0]
        raise ColumnsError(f"order_by: the rows cannot be sorted so: {told}") from error


def _partition(has: set[str], partitions: int) -> Column:
    """Return the partition of a row: its own, else by value if it has no key; null: by its key."""
    spread = F.crc32(F.col("value").cast("binary")) % F.lit(partitions)
    by_value = F.coalesce(spread, F.lit(0)).cast("int")
    if "key" in has:
        by_value = F.when(F.col("key").isNull(), by_value)
    return F.coalesce(F.col("partition"), by_value) if "partition" in has else by_value


def _by_key(partitions: int) -> Any:
    def placed(keys: pa.Array) -> pa.Array:  # Spark reads what kind of function it is from this
        return placed_by_key(partitions, keys)

    made: Any = arrow_udf  # its stub leaves this form out
    return made(placed, T.IntegerType())


def _taken() -> Iterator[tuple[str, Column]]:
    """Yield columns as tasks get them, by their names in the user's rows."""
    yield "key", F.col("key").cast("binary")
    yield "value", F.col("value").cast("binary")
    # For a batch with null lists Spark's writer of Arrow takes time by the square of its rows.
    no_headers = F.array_repeat(F.lit(None).cast(_HEADER), 0)
    yield "headers", F.coalesce("headers", no_headers).alias("headers")
    yield "timestamp", F.unix_millis("timestamp").alias("timestamp_ms")


def _is_wrong(found: T.DataType, expected: tuple[str, ...]) -> bool:
    # A type that may be null is the same type here.
    return found.simpleString() not in expected
