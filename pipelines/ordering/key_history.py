"""Which runs and folds a step judges its rows by, and when runs are folded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sequitur.base.units import milliseconds
from sequitur.consumer.reorder import ReorderMode
from sequitur.consumer.reorder.key_state import Fold, KeyState
from sequitur.consumer.reorder.lateness import LateJudge
from sequitur.pipelines.ordering.key_tasks import FoldTask, JudgeTask, files_of
from sequitur.pipelines.ordering.runs import behind_part, duplicates_files
from sequitur.pipelines.rows.run_rows import Part
from sequitur.pipelines.workers import in_blocks, is_small

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.reorder.key_state import Upkeep
    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.consumer.reorder.step_log import StagedStep, StepEntry
    from sequitur.pipelines.ordering.context import JobContext


_KEY_BYTES: Final = 32
"""Of a key and a time, about."""


class KeyHistory:
    def __init__(self, job: JobContext, output_partitions: int) -> None:
        self._job = job
        self._mode = job.settings.mode
        self._partitions = output_partitions

    def begin(
        self, before: StepEntry | None, step: int, name: str
    ) -> tuple[tuple[Run, ...], KeyState | None]:
        """Return the runs and folds that a step begins with, folded if it is time for that."""
        settings = self._job.settings
        keeps_keys = settings.rescue or self._mode is ReorderMode.LATEST
        if before is None:
            return (), KeyState() if keeps_keys else None
        if not keeps_keys:
            return replace(before, keys=None).kept_runs, None
        if before.keys is None:
            # Nothing is known of the rows released so far: all older rows are late.
            return before.kept_runs, KeyState(horizon_ms=before.frontier_ms)
        keys = before.keys.expire(
            frontier_ms=before.frontier_ms, ttl_ms=milliseconds(settings.key_ttl)
        )
        before = replace(before, keys=keys)
        upkeep = keys.upkeep(before.folding_runs, self._job.fold_limits)
        if upkeep is None:
            return before.kept_runs, keys
        fold = self.fold(upkeep, step, name=name, horizon_ms=keys.horizon_ms)
        runs = tuple(run for run in before.kept_runs if run not in upkeep.runs)
        return runs, keys.with_fold(fold, upkeep)

    def fold(self, upkeep: Upkeep, step: int, *, name: str, horizon_ms: int) -> Fold:
        """Combine runs and folds into one new fold, without keys that were last seen long ago."""
        folder = self._job.checkpoint.new_folder(f"keys/{name}")
        files = self._job.checkpoint.files(*upkeep.runs, *upkeep.folds)
        released = Part(files, horizon_ms, reasons=())
        reads = sum(run.size_bytes for run in upkeep.runs) + _size_of(upkeep.folds)
        task = FoldTask(folder, (released,), self._mode, keeps=is_small(reads))
        written = in_blocks(self._job.workers, task, self._partitions, reads=reads)
        return Fold(
            step=step,
            keys=sum(one.rows for one in written),
            size_bytes=sum(one.size_bytes for one in written),
            max_event_time_ms=max(one.last_ms for one in written),
            name=name,
            files=files_of(written),
        )

    def judge(self, entry: StepEntry, staged: StagedStep) -> StepEntry:
        """Judge the rows that a step found behind the frontier, and write the verdicts to files.

        `LateJudge` has the rules. Without folds all of the rows are late.
        """
        if not entry.counts.late or entry.keys is None:
            return entry
        checkpoint, first_ms = self._job.checkpoint, staged.first_behind_ms
        lookup = entry.keys.lookup(entry.runs[:-1], first_behind_ms=first_ms)
        judge = LateJudge(self._mode, lookup.horizon_ms)
        out_ms = judge.behind_ms(entry.previous_frontier_ms)  # all rows up to it are out
        files = checkpoint.files(*lookup.runs, *lookup.folds)
        reads = _KEY_BYTES * _rows_of(entry.runs[-1], *lookup.runs) + _size_of(lookup.folds)
        task = JudgeTask(
            folder=checkpoint.new_folder(f"behind/{entry.name}"),
            behind=behind_part(checkpoint, entry),
            released=(Part(files, lookup.after_ms, out_ms, reasons=()),),
            judge=judge,
            duplicates=duplicates_files(checkpoint, entry),
            keeps=is_small(reads),
        )
        written = in_blocks(self._job.workers, task, self._partitions, reads=reads)
        late, judged = sum(one.late for one in written), files_of(written)
        return replace(
            entry,
            counts=replace(entry.counts, late=late),
            rescued=sum(judged.values()) - late,
            judged=judged,
        )


def _rows_of(*runs: Run) -> int:
    return sum(run.rows + run.behind for run in runs)


def _size_of(folds: Sequence[Fold]) -> int:
    return sum(fold.size_bytes for fold in folds)
