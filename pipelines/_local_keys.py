"""How far keys have been released, on a local file system: the driver's side of `_key_tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumer import BEFORE_ALL_TIME_MS, LATE, Fold, ReorderMode
from pipelines._key_tasks import FoldTask, JudgeTask
from pipelines._keys import Judged, KeyHistory, having_say
from pipelines._local_runs import local_files, local_folder, repeats_files
from pipelines._part_files import show
from pipelines._run_rows import ALL_TIME, Part
from pipelines._tasks import each_partition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from consumer import Run, StepEntry, Upkeep
    from pipelines._checkpoint import Checkpoint
    from pipelines._key_tasks import Written
    from pipelines._runs import SortedRuns


class LocalKeyHistory(KeyHistory):
    """The last released event time of keys, where rows are held until they are due.

    Args:
        spark: The session.
        checkpoint: Where runs and folds stand.
        runs: The runs.
        output_partitions: Partitions of the output topic.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        runs: SortedRuns,
        output_partitions: int,
    ) -> None:
        super().__init__(spark, checkpoint, ReorderMode.ORDERED, runs)
        self._output_partitions = output_partitions

    def fold(self, upkeep: Upkeep, step: int, *, horizon_ms: int) -> Fold:
        """Put runs and folds into one new fold; see `KeyHistory.fold`."""
        folder = local_folder(self._checkpoint, self._checkpoint.keys_folder(step), anew=True)
        released = self._part(upkeep.runs, upkeep.folds, horizon_ms, ALL_TIME[1])
        written = self._run(FoldTask(str(folder), released), folder)
        return Fold(
            step=step,
            keys=sum(one.rows for one in written),
            size_bytes=sum(one.size_bytes for one in written),
            max_event_time_ms=max(
                (one.last_ms for one in written if one.last_ms is not None),
                default=BEFORE_ALL_TIME_MS,
            ),
        )

    def judge(self, entry: StepEntry, *, first_behind_ms: int, frontier_ms: int) -> Judged:
        """Decide on the rows that a step found behind the frontier; see `KeyHistory.judge`."""
        has_say = having_say(entry, first_behind_ms)
        folder = local_folder(
            self._checkpoint, self._checkpoint.behind_folder(entry.step), anew=True
        )
        own = local_files(self._checkpoint, self._checkpoint.run_folder(entry.step))
        task = JudgeTask(
            folder=str(folder),
            behind=Part(own, last_ms=frontier_ms - 1, reasons=(LATE,)),
            released=self._part(has_say.runs, has_say.folds, has_say.after_ms, frontier_ms),
            horizon_ms=has_say.horizon_ms,
            repeats=repeats_files(self._checkpoint, entry),
        )
        written = self._run(task, folder)
        late = sum(one.late for one in written)
        return Judged(rescued=sum(one.rows for one in written) - late, late=late)

    def _run(self, task: JudgeTask | FoldTask, folder: Path) -> list[Written]:
        written = each_partition(self._spark, task, self._output_partitions)
        show(folder, [one.file for one in written])
        return written

    def _part(
        self, runs: Sequence[Run], folds: Sequence[Fold], first_ms: int, last_ms: int
    ) -> tuple[Part, ...]:
        checkpoint = self._checkpoint
        folders = [
            *(checkpoint.run_folder(run.step) for run in runs),
            *(checkpoint.keys_folder(fold.step) for fold in folds),
        ]
        files = local_files(checkpoint, *folders)
        return (Part(files, first_ms, last_ms, reasons=()),) if files else ()
