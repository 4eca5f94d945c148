"""Reading a part of a run: the rows asked for, little else, and by the same code each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.pipelines.ordering.runs import _RUN_OPTIONS
from sequitur.pipelines.rows.columns import RUN_COLUMNS
from sequitur.pipelines.rows.run_reader import rows_between

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
_ROWS = 50_000


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> str:
    """A run of one file: 50,000 rows, a millisecond apart, and one without an event time."""
    folder = str(tmp_path / "run")
    rows = spark.range(_ROWS + 1, numPartitions=1).selectExpr(
        "'t' topic",
        "0 partition",
        "id offset",
        "id timestamp_ms",
        "cast(null as binary) key",
        "cast(null as binary) value",
        "cast(null as array<struct<key: string, value: binary>>) headers",
        "0 output_partition",
        f"if(id < {_ROWS}, {T0} + id, null) event_time_ms",
        "cast(null as string) reason",
    )
    rows.select(*RUN_COLUMNS).write.options(**_RUN_OPTIONS).parquet(folder)
    return folder


def _offsets(rows: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in rows.select("offset").collect())


@pytest.mark.parametrize(("low", "high"), [
    (T0 + 100, T0 + 200), (T0 - 1, T0), (T0 + 30_000, T0 + 45_000), (-1, T0 + 5), (-1, 7),
])  # fmt: skip
@pytest.mark.parametrize("with_low", [True, False])
def test_rows_between_two_times_are_found(
    spark: SparkSession, run: str, low: int, high: int, with_low: bool
) -> None:
    """The upper bound is in, the lower where it is asked for, rows without a time are not."""
    first = low if with_low else low + 1
    expected = [n for n in range(_ROWS) if first <= T0 + n <= high]
    assert _offsets(rows_between(spark, [run], low, high, with_low=with_low)) == expected


def test_row_groups_out_of_bounds_are_skipped(spark: SparkSession, run: str) -> None:
    """Of a run that is due in part, Parquet reads that part's row groups alone."""
    rows: Any = rows_between(spark, [run], T0 + 100, T0 + 200, with_low=True)
    execution = rows._jdf.queryExecution()
    execution.executedPlan().executeCollect()
    (scan,) = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(  # type: ignore[union-attr]
        execution.executedPlan().collectLeaves()
    )
    assert 101 <= scan.metrics().apply("numOutputRows").value() <= 20_000


def test_each_step_runs_the_code_of_the_one_before(spark: SparkSession, run: str) -> None:
    """Other bounds, same code: nothing is compiled anew."""

    def code(low: int) -> str:
        rows: Any = rows_between(spark, [run], low, low + 1000, with_low=False)
        debug = spark._jvm.org.apache.spark.sql.execution.debug  # type: ignore[union-attr]
        text: str = debug.package.codegenString(rows._jdf.queryExecution().executedPlan())
        return text[text.index("Generated code:") :]

    assert code(T0 + 1) == code(T0 + 2)
