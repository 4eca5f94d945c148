"""Sorted runs: one Parquet folder a batch, where rows wait until the frontier passes them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.consumer import (
    BEFORE_ALL_TIME_MS,
    LATE,
    QUARANTINE_REASONS,
    STALE,
    LatePolicy,
    Run,
    SourcePartition,
    Totals,
)
from sequitur.pipelines.ordering.lateness import lateness_counts, read_lateness
from sequitur.pipelines.rows.columns import (
    BEHIND_SCHEMA,
    DUPLICATES_SCHEMA,
    RUN_COLUMNS,
    RUN_SCHEMA,
    SOURCE_ORDER,
    output_partition,
    payload_bytes,
    staged_rows,
    with_reason_headers,
)
from sequitur.pipelines.rows.oversized import MOST_ADDED, MOST_KEY_BYTES, OVERSIZED_FOLDER
from sequitur.pipelines.rows.run_reader import rows_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from sequitur.consumer import EventClock, ReorderSettings, StepEntry, StepLateness, TimeBounds
    from sequitur.pipelines.sink.sink import Outputs, Rows
    from sequitur.pipelines.sink.topic_limits import TopicLimits
    from sequitur.pipelines.store.checkpoint import Checkpoint

_OBSERVED_PARTITIONS: Final = 64
"""Beyond so many source partitions their maxima are read from the run instead: one expression each
in the code that stages would outgrow what the JVM compiles."""

_FEW_DUPLICATES: Final = 500_000
"""Up to so many, their places are sent to all tasks, and the rows need not be moved."""

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
        totals: Counts of its rows; those behind the frontier count as late until they are judged.
        run: The run they are in.
        first_behind_ms: Smallest event time of the rows behind the frontier, if there are any.
        max_event_time_ms: Greatest usable event time of each source partition, late rows included.
        lateness: How late the rows of each source partition were, if that was asked for.
    """

    totals: Totals
    run: Run
    first_behind_ms: int
    max_event_time_ms: Mapping[SourcePartition, int | None]
    lateness: Mapping[SourcePartition, StepLateness]


class SortedRuns:
    """The runs of a checkpoint.

    Args:
        spark: The session.
        checkpoint: Where the runs stand.
        settings: The job's settings.
        outputs: The output topics.
        limits: What the output topics take of one record.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        settings: ReorderSettings,
        outputs: Outputs,
        limits: TopicLimits,
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._event_time = settings.event_time
        self._outputs = outputs
        self._limits = limits
        self._output = output_partition(spark, outputs.released.partitions)

    def stage(
        self,
        rows: DataFrame,
        step: int,
        partitions: Sequence[SourcePartition],
        *,
        name: str,
        frontier_ms: int,
        bounds: TimeBounds,
        learn_from: EventClock | None = None,
    ) -> Staged:
        """Write a batch as the run of a step, and count it in passing.

        Args:
            rows: The batch, as `read_source` gives it.
            step: The step.
            partitions: All source partitions.
            name: The run's folder.
            frontier_ms: The frontier before the step: rows behind it are marked.
            bounds: Rows of other times go to quarantine.
            learn_from: Count how late rows are against these clocks.
        """
        observed = Observation(f"stage-{step}")
        in_passing = len(partitions) <= _OBSERVED_PARTITIONS
        maxima = _maxima(partitions) if in_passing else []
        learned = [] if learn_from is None else [lateness_counts(learn_from, partitions)]
        folder = self._checkpoint.run_folder(name)
        (
            staged_rows(
                rows,
                self._event_time,
                self._output,
                frontier_ms=frontier_ms,
                bounds=bounds,
                limit=self._limits.released(),
            )
            .observe(
                observed, *_counts(), *maxima, *(column.alias("lateness") for column in learned)
            )
            .sortWithinPartitions("event_time_ms")
            .write.options(**_RUN_OPTIONS)
            .parquet(folder)
        )
        seen = observed.get
        quarantined = {reason: seen[reason] for reason in QUARANTINE_REASONS if seen[reason]}
        totals = Totals(read=seen["read"], late=seen[LATE], quarantined=quarantined)
        run = Run(
            step=step,
            rows=totals.held,
            min_event_time_ms=_time(seen["first"]),
            max_event_time_ms=_time(seen["last"]),
            behind=totals.late,
            max_behind_ms=_time(seen["last-behind"]),
            size_bytes=self._checkpoint.size_bytes(folder),
            name=name,
            files=self._checkpoint.held.written_files(folder, seen["read"]),
        )
        if in_passing:
            found = {p: seen[f"max-{number}"] for number, p in enumerate(partitions)}
        else:
            found = self._maxima_of(folder)
        lateness = read_lateness(seen["lateness"], partitions) if learned else {}
        return Staged(totals, run, _time(seen["first-behind"]), found, lateness)

    def reached(self, entry: StepEntry) -> DataFrame | None:
        """Return the rows on time that a step comes to; None when there are none for sure."""
        parts: list[DataFrame] = []
        bounds = (entry.previous_frontier_ms, entry.frontier_ms)
        if earlier := entry.releasing_earlier:
            folders = [self._checkpoint.held.whole_run(run) for run in earlier]
            parts.append(rows_between(self._spark, folders, *bounds, with_low=False))
        if own := entry.releasing_own:
            folders = [self._checkpoint.held.whole_run(own)]
            parts.append(rows_between(self._spark, folders, *bounds, with_low=True))
        return _all_of(parts)

    def behind(self, entry: StepEntry) -> DataFrame:
        """Return the rows that a step found behind the frontier, without duplicates, not judged."""
        rows = self.read(entry.runs[-1]).where(F.col("reason") == LATE)
        return self._without_duplicates(rows, entry)

    def due(self, entry: StepEntry) -> Rows | None:
        """Return the rows that a step writes to the output; None when there are none for sure."""
        parts: list[DataFrame] = []
        on_time = self.reached(entry)
        if on_time is not None:
            parts.append(self._without_duplicates(on_time, entry))
        if entry.rescued:
            rows = self._judged(entry).where(F.col("reason").isNull())
            parts.append(rows.select(*RUN_COLUMNS))
        if entry.staged.late and entry.late_policy is LatePolicy.EMIT:
            late = self._with_reasons(self._late(entry), entry, None)
            parts.append(late.select(*RUN_COLUMNS))
        return _all_of(parts)

    def late(self, entry: StepEntry) -> Rows:
        """Return the rows that a step found late, with the headers that say so."""
        return self._with_reasons(self._late(entry), entry, self._outputs.late.name)

    def _late(self, entry: StepEntry) -> DataFrame:
        if entry.rescued is not None:
            rows = self._judged(entry).where(F.col("reason").isNotNull())
        else:
            unknown = F.lit(None).cast("bigint")
            rows = self.behind(entry).withColumn("last_released_ms", unknown)
        return rows

    def _with_reasons(self, rows: DataFrame, entry: StepEntry, topic: str | None) -> DataFrame:
        """Add the headers that say why rows are here; rows are then as a topic takes them.

        Of one that is too large only what is added is left, and the whole row in a file.
        """
        file = F.lit(None).cast("string")
        if topic is not None:
            room = self._limits.of(topic).surely_bytes - MOST_ADDED
            rows = rows.withColumn("is_large", payload_bytes() > room)
            large = rows.where("is_large")
            if not large.isEmpty():
                # Each attempt has a file of its own: what another's records name stays.
                name = f"{OVERSIZED_FOLDER}/{topic}-{self._checkpoint.new_name(entry.step)}"
                whole = large.select(*RUN_COLUMNS).coalesce(1)
                whole.write.parquet(f"{self._checkpoint.root}/{name}")
                self._checkpoint.sync(name)
                file = F.when(F.col("is_large"), F.lit(name))
                has_key = ~F.col("is_large") | (F.octet_length("key") <= MOST_KEY_BYTES)
                rows = rows.withColumn("key", F.when(has_key, F.col("key")))
                for column in ("value", "headers"):
                    fits = F.when(~F.col("is_large"), F.col(column))
                    rows = rows.withColumn(column, fits)
        return with_reason_headers(rows, entry.previous_frontier_ms, file)

    def describe_late(self, entry: StepEntry) -> str:
        """Return the first of the rows that a step found late, in words."""
        (row,) = self._late(entry).orderBy(*SOURCE_ORDER).take(1)
        if row["reason"] == STALE:
            compared = f"not newer than {row['last_released_ms']}, the last released of its key"
        else:
            late_by_ms = entry.previous_frontier_ms - row["event_time_ms"]
            compared = f"{late_by_ms} ms behind the frontier, {entry.previous_frontier_ms}"
        return (
            f"topic {row['topic']!r}, partition {row['partition']}, offset {row['offset']}, "
            f"key {row['key'] and bytes(row['key'])!r}: event time {row['event_time_ms']} is "
            f"{compared}; {row['reason']} rows in this batch: {entry.staged.late} "
            "(late_policy = fail)"
        )

    def quarantined(self, entry: StepEntry) -> Rows:
        """Return the rows of a step without a usable event time, with the headers that say why."""
        rows = self.read(entry.runs[-1]).where(F.col("reason").isin(*QUARANTINE_REASONS))
        unknown = F.lit(None).cast("bigint")
        rows = rows.withColumn("last_released_ms", unknown)
        return self._with_reasons(rows, entry, self._outputs.quarantine.name)

    def _judged(self, entry: StepEntry) -> DataFrame:
        folder = self._checkpoint.behind_folder(entry.name)
        return self._spark.read.schema(BEHIND_SCHEMA).parquet(folder)

    def read(self, *runs: Run) -> DataFrame:
        """Read all rows of some runs."""
        folders = [self._checkpoint.held.whole_run(run) for run in runs]
        return self._spark.read.schema(RUN_SCHEMA).parquet(*folders)

    def _without_duplicates(self, rows: DataFrame, entry: StepEntry) -> DataFrame:
        if not entry.duplicates:
            return rows
        folder = self._checkpoint.duplicates_folder(entry.name)
        duplicates = self._spark.read.schema(DUPLICATES_SCHEMA).parquet(folder)
        few = entry.duplicates <= _FEW_DUPLICATES
        return rows.join(
            F.broadcast(duplicates) if few else duplicates, [*SOURCE_ORDER], "left_anti"
        )

    def _maxima_of(self, folder: str) -> dict[SourcePartition, int | None]:
        grouped = self._spark.read.schema(RUN_SCHEMA).parquet(folder).groupBy("topic", "partition")
        rows = grouped.agg(F.max("event_time_ms").alias("last")).collect()
        return {SourcePartition(row["topic"], row["partition"]): row["last"] for row in rows}


def _all_of(parts: Sequence[DataFrame]) -> DataFrame | None:
    return functools.reduce(lambda one, other: one.unionAll(other), parts) if parts else None


def _time(observed_ms: int | None) -> int:
    return BEFORE_ALL_TIME_MS if observed_ms is None else observed_ms


def _counts() -> list[Column]:
    on_time, behind = F.col("reason").isNull(), F.col("reason") == LATE
    return [
        F.count(F.lit(1)).alias("read"),
        F.min(F.when(on_time, F.col("event_time_ms"))).alias("first"),
        F.max(F.when(on_time, F.col("event_time_ms"))).alias("last"),
        F.min(F.when(behind, F.col("event_time_ms"))).alias("first-behind"),
        F.max(F.when(behind, F.col("event_time_ms"))).alias("last-behind"),
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
