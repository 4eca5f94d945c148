"""How much Spark gives to its Python tasks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_BATCH_BYTES: Final = 16 << 20
UNBOUNDED_BYTES: Final = (1 << 31) - 1
"""What Spark takes for no bound. With any other it measures the whole batch again for each row,
which takes 17 us where there is a column of headers."""


def bound_arrow_batches(spark: SparkSession, rows: int, *, by_size: bool) -> None:
    """Bound what plans made from here on give to Python at once.

    Args:
        spark: The session that the plan belongs to: a query has one of its own.
        rows: Most rows.
        by_size: Stop at 16 MiB, too. The row that reaches it is still among them.
    """
    spark.conf.set(_ROWS, rows)
    spark.conf.set(_BYTES, _BATCH_BYTES if by_size else UNBOUNDED_BYTES)
