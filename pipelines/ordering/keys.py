"""How far each key has been released: folds of the runs, and the rows judged by them.

What is kept, and why that suffices, stands in `sequitur.consumer.lateness.key_state`; what the
tasks do, in `ordering.key_tasks`. One kind folds runs that are through into one row a key; one
looks up the keys of the few rows behind the frontier. Either reads two columns, in latest mode
four, and of the rows only those that can matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sequitur.consumer import BEFORE_ALL_TIME_MS, Fold, LateJudge
from sequitur.pipelines.ordering.key_tasks import FoldTask, JudgeTask, files_of
from sequitur.pipelines.ordering.runs import (
    behind_part,
    duplicates_files,
    logged_files,
    new_folder,
)
from sequitur.pipelines.rows.footers import ALL_TIME
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.spark.tasks import in_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from sequitur.consumer import ReorderMode, Run, StepEntry, Upkeep
    from sequitur.pipelines.store.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of the rows behind the frontier.

    Attributes:
        rescued: Rows that go out after all.
        late: Rows that don't.
        files: Files of both, and the rows of each.
    """

    rescued: int
    late: int
    files: Mapping[str, int]


class KeyHistory:
    """The last released event time of keys.

    Args:
        spark: The session.
        checkpoint: Where runs and folds stand.
        mode: Which rows pass: those not older than the last of their key, or those after it.
        output_partitions: Partitions of the output topic.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        mode: ReorderMode,
        output_partitions: int,
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._mode = mode
        self._partitions = output_partitions

    def fold(self, upkeep: Upkeep, step: int, *, name: str, horizon_ms: int) -> Fold:
        """Put runs and folds into one new fold, without keys that were last seen long ago.

        Args:
            upkeep: What to read. It stays where it is: until the step is logged, it counts.
            step: The step that does it.
            name: The fold's folder.
            horizon_ms: Keys last released behind it are left out.
        """
        folder = new_folder(self._checkpoint, self._checkpoint.keys_folder(name))
        released = self._part(upkeep.runs, upkeep.folds, horizon_ms, ALL_TIME[1])
        task = FoldTask(folder, released, self._mode)
        written = in_blocks(self._spark, task, self._partitions)
        return Fold(
            step=step,
            keys=sum(one.rows for one in written),
            size_bytes=sum(one.size_bytes for one in written),
            max_event_time_ms=max(
                (one.last_ms for one in written if one.last_ms is not None),
                default=BEFORE_ALL_TIME_MS,
            ),
            name=name,
            files=files_of((one.file, one.rows) for one in written),
        )

    def judge(self, entry: StepEntry, *, first_behind_ms: int, frontier_ms: int) -> Judged:
        """Decide on the rows that a step found behind the frontier, and write that to a file.

        What is decided, and by what, says `LateJudge`.

        Args:
            entry: The step, not logged yet; the run with these rows is the last of its runs.
            first_behind_ms: The smallest event time of these rows.
            frontier_ms: All rows of earlier steps up to it are out.
        """
        if entry.keys is None:
            raise RuntimeError(f"step {entry.step} keeps nothing of its keys")
        lookup = entry.keys.lookup(entry.runs[:-1], first_behind_ms=first_behind_ms)
        folder = new_folder(self._checkpoint, self._checkpoint.behind_folder(entry.name))
        task = JudgeTask(
            folder=folder,
            behind=behind_part(self._checkpoint, entry),
            released=self._part(lookup.runs, lookup.folds, lookup.after_ms, frontier_ms),
            judge=LateJudge(self._mode, lookup.horizon_ms),
            duplicates=duplicates_files(self._checkpoint, entry),
        )
        written = in_blocks(self._spark, task, self._partitions)
        late = sum(one.late for one in written)
        files = files_of((one.file, one.rows) for one in written)
        return Judged(rescued=sum(files.values()) - late, late=late, files=files)

    def _part(
        self, runs: Sequence[Run], folds: Sequence[Fold], first_ms: int, last_ms: int
    ) -> tuple[Part, ...]:
        files = logged_files(self._checkpoint, *runs, *folds)
        return (Part(files, first_ms, last_ms, reasons=()),) if files else ()
