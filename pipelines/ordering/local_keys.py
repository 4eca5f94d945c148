"""How far keys are released, on a local file system: the driver's half of `ordering.key_tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import BEFORE_ALL_TIME_MS, Fold, LateJudge
from sequitur.pipelines.ordering.key_tasks import FoldTask, JudgeTask
from sequitur.pipelines.ordering.keys import Judged, KeyHistory, key_lookup
from sequitur.pipelines.ordering.local_runs import (
    behind_part,
    duplicates_files,
    local_folder,
    logged_files,
)
from sequitur.pipelines.rows.run_rows import ALL_TIME, Part
from sequitur.pipelines.spark.tasks import each_partition
from sequitur.pipelines.store.part_files import publish, publish_with_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from sequitur.consumer import ReorderMode, Run, StepEntry, Upkeep
    from sequitur.pipelines.ordering.runs import SortedRuns
    from sequitur.pipelines.store.checkpoint import Checkpoint


class LocalKeyHistory(KeyHistory):
    """The last released event time of keys.

    Args:
        spark: The session.
        checkpoint: Where runs and folds stand.
        mode: Which rows pass: those not older than the last of their key, or those after it.
        runs: The runs.
        output_partitions: Partitions of the output topic.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        mode: ReorderMode,
        runs: SortedRuns,
        output_partitions: int,
    ) -> None:
        super().__init__(spark, checkpoint, mode, runs)
        self._tasks = output_partitions

    def fold(self, upkeep: Upkeep, step: int, *, name: str, horizon_ms: int) -> Fold:
        """Put runs and folds into one new fold; see `KeyHistory.fold`."""
        folder = local_folder(self._checkpoint, self._checkpoint.keys_folder(name), new=True)
        released = self._part(upkeep.runs, upkeep.folds, horizon_ms, ALL_TIME[1])
        task = FoldTask(str(folder), released, self._mode)
        written = each_partition(self._spark, task, self._tasks)
        files = publish_with_rows(folder, ((one.file, one.rows) for one in written))
        return Fold(
            step=step,
            keys=sum(one.rows for one in written),
            size_bytes=sum(one.size_bytes for one in written),
            max_event_time_ms=max(
                (one.last_ms for one in written if one.last_ms is not None),
                default=BEFORE_ALL_TIME_MS,
            ),
            name=name,
            files=files,
        )

    def judge(self, entry: StepEntry, *, first_behind_ms: int, frontier_ms: int) -> Judged:
        """Decide on the rows that a step found behind the frontier; see `KeyHistory.judge`."""
        lookup = key_lookup(entry, first_behind_ms)
        folder = local_folder(
            self._checkpoint, self._checkpoint.behind_folder(entry.name), new=True
        )
        task = JudgeTask(
            folder=str(folder),
            behind=behind_part(self._checkpoint, entry),
            released=self._part(lookup.runs, lookup.folds, lookup.after_ms, frontier_ms),
            judge=LateJudge(self._mode, lookup.horizon_ms),
            duplicates=duplicates_files(self._checkpoint, entry),
        )
        written = each_partition(self._spark, task, self._tasks)
        publish(folder, [one.file for one in written])
        late = sum(one.late for one in written)
        return Judged(rescued=sum(one.rows for one in written) - late, late=late)

    def _part(
        self, runs: Sequence[Run], folds: Sequence[Fold], first_ms: int, last_ms: int
    ) -> tuple[Part, ...]:
        files = logged_files(self._checkpoint, *runs, *folds)
        return (Part(files, first_ms, last_ms, reasons=()),) if files else ()
