"""Rows of runs between two event times, without new code for each step.

A filter by two literals would have Parquet skip what it does not want, but the literals would stand
in the code that Spark generates: each step would be compiled anew, by Spark and then by the JVM,
and run uncompiled meanwhile. So the filter that decides has its numbers from outside
(`varying_number`), and Parquet's own filter, which only skips, is given to its reader as the
setting that Spark would otherwise make of the literals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.pipelines.rows.columns import RUN_SCHEMA, varying_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

_FILTER: Final = "parquet.private.read.filter.predicate"
_COLUMN: Final = "event_time_ms"
_LEAST_LONG: Final = 1 << 31
"""Smaller numbers reach Java as ints, and a column of longs cannot be compared with them."""


def rows_between(
    spark: SparkSession, folders: Sequence[str], low_ms: int, high_ms: int, *, with_low: bool
) -> DataFrame:
    """Return the rows with low < event time <= high, of the runs in these folders.

    Args:
        spark: The session.
        folders: The runs.
        low_ms: Lower bound.
        high_ms: Upper bound, itself included.
        with_low: Whether rows at the lower bound are wanted, too.
    """
    reader = spark.read.schema(RUN_SCHEMA)
    if (skipping := _skipping(spark, low_ms, high_ms)) is not None:
        reader = reader.option(_FILTER, skipping)
    event_time = F.col(_COLUMN)
    low, high = varying_number(low_ms), varying_number(high_ms)
    above = event_time >= low if with_low else event_time > low
    # Coalesced: of a bare comparison Spark concludes "is not null", and would have Parquet filter
    # by that instead of by ours.
    return reader.parquet(*folders).where(F.coalesce(above & (event_time <= high), F.lit(False)))


def _skipping(spark: SparkSession, low_ms: int, high_ms: int) -> str | None:
    """Parquet's filter, as the text that its reader takes; None where none is worth it."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no other way to it
    api = jvm.org.apache.parquet.filter2.predicate.FilterApi
    column = api.longColumn(_COLUMN)
    bounds = []
    if low_ms >= _LEAST_LONG:
        bounds.append(api.gtEq(column, low_ms))
    if high_ms >= _LEAST_LONG:
        bounds.append(api.ltEq(column, high_ms))
    if not bounds:
        return None
    predicate = bounds[0] if len(bounds) == 1 else api.__getattr__("and")(*bounds)
    settings = jvm.org.apache.hadoop.conf.Configuration(False)
    jvm.org.apache.parquet.hadoop.ParquetInputFormat.setFilterPredicate(settings, predicate)
    return str(settings.get(_FILTER))
