"""Runs on a file system that Spark's tasks reach by path: staged, judged and read by Arrow.

Spark reads the topics, moves rows to its Python tasks and runs these; what they do with the rows
they do by themselves, a column at a time. A row then costs a third of what Spark's own plans for it
cost, and nothing has to be planned, generated or compiled for a step: docs/adr/0008-arrow-tasks.md
has the figures. Files and answers are those of `SortedRuns` and `KeyHistory`, which do the same on
any other file system, and here for all that is rare.
"""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING, Final

from consumer import (
    BEFORE_ALL_TIME_MS,
    LATE,
    QUARANTINE_REASONS,
    STALE,
    Delivery,
    EventTimeSource,
    LatePolicy,
    Run,
    StepLateness,
    Totals,
)
from pipelines._event_time_columns import with_event_time
from pipelines._part_files import make_anew, show, shown_files
from pipelines._rows import SOURCE_COLUMNS
from pipelines._run_rows import Part
from pipelines._run_writer import SUMMARY_SCHEMA, Clocks, RunWriter, Summary
from pipelines._runs import SortedRuns, Staged
from pipelines._selection import Selection, SideSelection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from consumer import EventClock, ReorderSettings, SourcePartition, StepEntry
    from pipelines._checkpoint import Checkpoint
    from pipelines._sink import Outputs, Rows

_ARROW_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS: Final = 1024
"""Rows that go to Python together: an array holds 2 GiB, and Kafka's records may have some MiB."""


class LocalRuns(SortedRuns):
    """The runs of a checkpoint on a local file system.

    Args:
        spark: The session.
        checkpoint: Where the runs stand.
        settings: The job's settings.
        outputs: The output topics.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        settings: ReorderSettings,
        outputs: Outputs,
    ) -> None:
        super().__init__(spark, checkpoint, settings.event_time, outputs.released.partitions)
        self._outputs = outputs
        self._sends = settings.delivery is Delivery.EXACTLY_ONCE
        spec = settings.event_time
        self._reads_times = spec.source is EventTimeSource.JSON and len(spec.path) == 1

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
        """Write a batch as the run of a step, and count it in passing; see `SortedRuns.stage`."""
        folder = local_folder(self._checkpoint, self._checkpoint.run_folder(step), anew=True)
        rows = rows.withColumn("output_partition", self._output)
        columns = [*SOURCE_COLUMNS, "output_partition"]
        if not self._reads_times:
            rows = with_event_time(rows, self._event_time)
            columns += ["event_time_ms", "reason"]
        writer = RunWriter(
            folder=str(folder),
            event_time=self._event_time if self._reads_times else None,
            frontier_ms=frontier_ms,
            latest_ms=latest_ms,
            clocks=None if learn_from is None else _clocks(learn_from),
        )
        # The query has a session of its own, with settings of its own.
        rows.sparkSession.conf.set(_ARROW_BATCH, _BATCH_ROWS)
        answers = rows.select(*columns).mapInArrow(writer, SUMMARY_SCHEMA).collect()
        found: list[Summary] = [pickle.loads(answer["summary"]) for answer in answers]  # noqa: S301 - our own tasks' answers
        show(folder, [one.file for one in found])
        return _staged(step, found, partitions)

    def due(self, entry: StepEntry) -> Rows | None:
        """The rows that a step writes to the output; None when there are none for sure."""
        emits = entry.staged.late and entry.late_policy is LatePolicy.EMIT
        if not self._sends or emits:
            return super().due(entry)
        parts: list[Part] = []
        first_ms, last_ms = entry.previous_frontier_ms, entry.frontier_ms
        if earlier := entry.releasing_earlier:
            parts.append(Part(self._files(*earlier), first_ms + 1, last_ms))
        if own := entry.releasing_own:
            parts.append(Part(self._files(own), first_ms, last_ms))
        if entry.rescued:
            parts.append(Part(self._judged_files(entry)))
        return Selection(tuple(parts), repeats_files(self._checkpoint, entry)) if parts else None

    def late(self, entry: StepEntry) -> Rows:
        """The rows that a step found late, with the headers that say so."""
        if not self._sends:
            return super().late(entry)
        is_judged = entry.rescued is not None
        if is_judged:
            part = Part(self._judged_files(entry), reasons=(LATE, STALE))
        else:
            last_ms = entry.previous_frontier_ms - 1
            part = Part(self._files(entry.runs[-1]), last_ms=last_ms, reasons=(LATE,))
        return SideSelection(
            part,
            frontier_ms=entry.previous_frontier_ms,
            is_judged=is_judged,
            partitions=self._outputs.late.partitions,
            repeats=() if is_judged else repeats_files(self._checkpoint, entry),
        )

    def quarantined(self, entry: StepEntry) -> Rows:
        """The rows of a step without a usable event time, with the headers that say why."""
        if not self._sends:
            return super().quarantined(entry)
        part = Part(self._files(entry.runs[-1]), reasons=QUARANTINE_REASONS, untimed=True)
        return SideSelection(
            part,
            frontier_ms=entry.previous_frontier_ms,
            is_judged=False,
            partitions=self._outputs.quarantine.partitions,
        )

    def _files(self, *runs: Run) -> tuple[str, ...]:
        checkpoint = self._checkpoint
        return local_files(checkpoint, *(checkpoint.run_folder(run.step) for run in runs))

    def _judged_files(self, entry: StepEntry) -> tuple[str, ...]:
        return local_files(self._checkpoint, self._checkpoint.behind_folder(entry.step))


def local_files(checkpoint: Checkpoint, *folders: str) -> tuple[str, ...]:
    """The Parquet files in folders of a checkpoint on a local file system, as paths.

    Args:
        checkpoint: The checkpoint.
        folders: The folders.
    """
    return tuple(
        path for folder in folders for path in shown_files(local_folder(checkpoint, folder))
    )


def repeats_files(checkpoint: Checkpoint, entry: StepEntry) -> tuple[str, ...]:
    """The files that say which rows a step drops as repeats; none where it drops none."""
    if not entry.duplicates:
        return ()
    return local_files(checkpoint, checkpoint.repeats_folder(entry.step))


def local_folder(checkpoint: Checkpoint, folder: str, *, anew: bool = False) -> Path:
    """A folder of a checkpoint on a local file system.

    Args:
        checkpoint: The checkpoint.
        folder: The folder.
        anew: Make it, and let go of what an earlier attempt left there.
    """
    local = checkpoint.local(folder)
    if local is None:
        raise RuntimeError(f"{folder} is not on a local file system")
    if anew:
        make_anew(local)
    return local


def _clocks(clock: EventClock) -> Clocks:
    seen = {
        source: partition.max_event_time_ms
        for source, partition in clock.partitions.items()
        if partition.max_event_time_ms is not None
    }
    return Clocks(seen, clock.frontier_ms)


def _staged(step: int, found: Sequence[Summary], partitions: Sequence[SourcePartition]) -> Staged:
    """What all tasks together saw."""
    reasons: Counter[str] = Counter()
    for one in found:
        reasons.update(one.reasons)
    quarantined = {reason: reasons[reason] for reason in QUARANTINE_REASONS if reasons[reason]}
    totals = Totals(
        read=sum(one.read for one in found), late=reasons[LATE], quarantined=quarantined
    )
    on_time = [one.on_time_ms for one in found if one.on_time_ms is not None]
    behind = [one.behind_ms for one in found if one.behind_ms is not None]
    run = Run(
        step=step,
        rows=totals.held,
        min_event_time_ms=min((first for first, _ in on_time), default=BEFORE_ALL_TIME_MS),
        max_event_time_ms=max((last for _, last in on_time), default=BEFORE_ALL_TIME_MS),
        behind=totals.late,
        max_behind_ms=max((last for _, last in behind), default=BEFORE_ALL_TIME_MS),
        size_bytes=sum(one.size_bytes for one in found),
    )
    maxima: dict[SourcePartition, int | None] = dict.fromkeys(partitions)
    for one in found:
        for source, time_ms in one.maxima.items():
            maxima[source] = max(time_ms, maxima.get(source) or 0)
    first_behind_ms = min((first for first, _ in behind), default=BEFORE_ALL_TIME_MS)
    return Staged(totals, run, first_behind_ms, maxima, _lateness(found))


def _lateness(found: Sequence[Summary]) -> Mapping[SourcePartition, StepLateness]:
    together: dict[SourcePartition, StepLateness] = {}
    for one in found:
        for source, (rows, late, bins) in one.lateness.items():
            before = together.get(source, StepLateness(0))
            counts = Counter(before.behind)
            counts.update(bins)
            together[source] = StepLateness(before.rows + rows, before.late + late, dict(counts))
    return together
