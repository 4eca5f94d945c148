"""Sorted runs: one Parquet folder a batch, where rows wait until the frontier passes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from consumer import (
    BEFORE_ALL_TIME_MS,
    LATE,
    QUARANTINE_REASONS,
    Run,
    SourcePartition,
    Totals,
)
from pipelines._lateness import lateness_counts, read_lateness
from pipelines._rows import RUN_SCHEMA, staged_rows, with_reason_headers
from pipelines._run_reader import rows_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from consumer import EventClock, StepEntry, StepLateness
    from pipelines._checkpoint import Checkpoint

_OBSERVED_PARTITIONS: Final = 64
"""Beyond so many source partitions their maxima are read from the run instead: one expression each
in the code that stages would outgrow what the JVM compiles."""

_RUN_OPTIONS: Final = {
    # Keys and values hardly repeat within a page: dictionaries and checksums cost a third.
    "parquet.enable.dictionary": "false",
    "parquet.enable.dictionary#topic": "true",
    "parquet.page.write-checksum.enabled": "false",
    # Small row groups let a release skip what it does not want.
    "parquet.block.row.count.limit": "20000",
    "compression": "uncompressed",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True, slots=True)
class Staged:
    """What staging saw of a batch.

    Attributes:
        totals: Counts of its rows.
        run: The run they are in.
        max_event_time_ms: Greatest usable event time of each source partition, late rows included.
        lateness: How late the rows of each source partition were, if that was asked for.
    """

    totals: Totals
    run: Run
    max_event_time_ms: Mapping[SourcePartition, int | None]
    lateness: Mapping[SourcePartition, StepLateness]


class SortedRuns:
    """The runs of a checkpoint.

    Args:
        spark: The session.
        checkpoint: Where the runs stand.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint) -> None:
        self._spark = spark
        self._checkpoint = checkpoint

    def stage(
        self,
        rows: DataFrame,
        step: int,
        partitions: Sequence[SourcePartition],
        *,
        frontier_ms: int,
        latest_ms: int,
        learn_from: EventClock | None = None,
    ) -> Staged:
        """Write a batch as the run of a step, and count it in passing.

        Args:
            rows: The batch, as `read_source` gives it.
            step: The step.
            partitions: All source partitions.
            frontier_ms: The frontier before the step: rows behind it are late.
            latest_ms: Rows beyond it come from a wrong clock.
            learn_from: Count how late rows are against these clocks.
        """
        observed = Observation(f"stage-{step}")
        in_passing = len(partitions) <= _OBSERVED_PARTITIONS
        maxima = _maxima(partitions) if in_passing else []
        learned = [] if learn_from is None else [lateness_counts(learn_from, partitions)]
        folder = self._checkpoint.run_folder(step)
        (
            staged_rows(rows, frontier_ms=frontier_ms, latest_ms=latest_ms)
            .observe(
                observed, *_counts(), *maxima, *(column.alias("lateness") for column in learned)
            )
            .sortWithinPartitions("event_time_ms")
            .write.mode("overwrite")
            .options(**_RUN_OPTIONS)
            .parquet(folder)
        )
        seen = observed.get
        quarantined = {reason: seen[reason] for reason in QUARANTINE_REASONS if seen[reason]}
        totals = Totals(read=seen["read"], late=seen[LATE], quarantined=quarantined)
        run = Run(
            step=step,
            rows=totals.held,
            min_event_time_ms=BEFORE_ALL_TIME_MS if seen["first"] is None else seen["first"],
            max_event_time_ms=BEFORE_ALL_TIME_MS if seen["last"] is None else seen["last"],
        )
        if in_passing:
            found = {p: seen[f"max-{number}"] for number, p in enumerate(partitions)}
        else:
            found = self._maxima_of(folder)
        lateness = read_lateness(seen["lateness"], partitions) if learned else {}
        return Staged(totals, run, found, lateness)

    def due(self, entry: StepEntry) -> DataFrame | None:
        """The rows that a step releases; None when there are none for sure."""
        parts: list[DataFrame] = []
        bounds = (entry.previous_frontier_ms, entry.frontier_ms)
        if earlier := entry.releasing_earlier:
            folders = [self._checkpoint.run_folder(run.step) for run in earlier]
            parts.append(rows_between(self._spark, folders, *bounds, with_low=False))
        if own := entry.releasing_own:
            folders = [self._checkpoint.run_folder(own.step)]
            parts.append(rows_between(self._spark, folders, *bounds, with_low=True))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])

    def late(self, entry: StepEntry) -> DataFrame:
        """The rows that a step found late, with the headers that say so."""
        rows = self._read(entry.step).where(F.col("reason") == LATE)
        return with_reason_headers(rows, entry.previous_frontier_ms)

    def quarantined(self, entry: StepEntry) -> DataFrame:
        """The rows of a step without a usable event time, with the headers that say why."""
        rows = self._read(entry.step).where(F.col("reason").isin(*QUARANTINE_REASONS))
        return with_reason_headers(rows, entry.previous_frontier_ms)

    def _read(self, *steps: int) -> DataFrame:
        folders = [self._checkpoint.run_folder(step) for step in steps]
        return self._spark.read.schema(RUN_SCHEMA).parquet(*folders)

    def _maxima_of(self, folder: str) -> dict[SourcePartition, int | None]:
        grouped = self._spark.read.schema(RUN_SCHEMA).parquet(folder).groupBy("topic", "partition")
        rows = grouped.agg(F.max("event_time_ms").alias("last")).collect()
        return {SourcePartition(row["topic"], row["partition"]): row["last"] for row in rows}


def _counts() -> list[Column]:
    on_time = F.col("reason").isNull()
    return [
        F.count(F.lit(1)).alias("read"),
        F.min(F.when(on_time, F.col("event_time_ms"))).alias("first"),
        F.max(F.when(on_time, F.col("event_time_ms"))).alias("last"),
        *(
            F.count(F.when(F.col("reason") == reason, F.lit(1))).alias(reason)
            for reason in (LATE, *QUARANTINE_REASONS)
        ),
    ]


def _maxima(partitions: Sequence[SourcePartition]) -> list[Column]:
    return [
        F.max(
            F.when(
                (F.col("partition") == source.partition) & (F.col("topic") == source.topic),
                F.col("event_time_ms"),
            )
        ).alias(f"max-{number}")
        for number, source in enumerate(partitions)
    ]
