"""What a step does about rows behind the frontier, once they are staged, before it is logged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sequitur.consumer import (
    BEFORE_ALL_TIME_MS,
    FOLD_LIMITS,
    KeyState,
    LateJudge,
    LatePolicy,
    ReorderMode,
)
from sequitur.pipelines._errors import LateRowError
from sequitur.producer.settings import milliseconds

if TYPE_CHECKING:
    from sequitur.consumer import FoldLimits, ReorderSettings, Run, StepEntry
    from sequitur.pipelines.ordering.duplicates import DuplicateFinder
    from sequitur.pipelines.ordering.keys import KeyHistory
    from sequitur.pipelines.ordering.runs import SortedRuns, Staged


class BehindRows:
    """Duplicates, rescue, late policy and latest mode.

    Args:
        settings: The job's settings.
        runs: The runs in the job's folder.
        history: How far keys have been released.
        duplicates: Finds duplicates.
        fold_limits: When runs are folded.
    """

    def __init__(
        self,
        settings: ReorderSettings,
        runs: SortedRuns,
        history: KeyHistory,
        duplicates: DuplicateFinder,
        fold_limits: FoldLimits = FOLD_LIMITS,
    ) -> None:
        self._fold_limits = fold_limits
        self._settings = settings
        self._runs = runs
        self._is_latest = settings.mode is ReorderMode.LATEST
        self._history = history
        self._duplicates = duplicates

    def behind_ms(self, frontier_ms: int) -> int:
        """Return the event time that rows are behind of, see `LateJudge.behind_ms`."""
        return LateJudge(self._settings.mode).behind_ms(frontier_ms)

    def begin(
        self, before: StepEntry | None, step: int, name: str
    ) -> tuple[tuple[Run, ...], KeyState | None]:
        """Return the runs and folds that a step begins with, folded where it is time for that.

        Args:
            before: The step before, which is done.
            step: The step that begins.
            name: Of the folders that this attempt at it writes.
        """
        keeps_keys = self._settings.rescue or self._is_latest
        if before is None:
            return (), KeyState() if keeps_keys else None
        if not keeps_keys:
            return replace(before, keys=None).kept_runs, None
        if before.keys is None:
            # Of what is out so far nothing is known: whatever is older than that is late.
            return before.kept_runs, KeyState(horizon_ms=before.frontier_ms)
        keys = before.keys.expire(
            frontier_ms=before.frontier_ms, ttl_ms=milliseconds(self._settings.key_ttl)
        )
        before = replace(before, keys=keys)
        upkeep = keys.upkeep(before.folding_runs, self._fold_limits)
        if upkeep is None:
            return before.kept_runs, keys
        fold = self._history.fold(upkeep, step, name=name, horizon_ms=keys.horizon_ms)
        runs = tuple(run for run in before.kept_runs if run not in upkeep.runs)
        return runs, keys.with_fold(fold, upkeep)

    def deduplicated_ms(self, frontier_ms: int) -> int | None:
        """Return how far back originals of duplicates are looked for, None when they are not."""
        if self._settings.event_id_header is None:
            return None
        return max(BEFORE_ALL_TIME_MS, frontier_ms - milliseconds(self._settings.duplicate_window))

    def deduplicate(self, entry: StepEntry, staged: Staged | None = None) -> StepEntry:
        """Settle which rows are duplicates, of those that are due and those behind the frontier.

        Args:
            entry: The step, not logged yet.
            staged: What it staged, as the last of its runs; None for a step without new rows.
        """
        if entry.deduplicated_ms is None:
            return entry
        found = self._duplicates.find(
            entry,
            first_behind_ms=staged.first_behind_ms if staged and staged.run.behind else None,
            frontier_ms=self.behind_ms(entry.previous_frontier_ms),
        )
        late = entry.staged.late - found.behind
        return replace(
            entry,
            staged=replace(entry.staged, late=late),
            duplicates=found.count,
            repeats=found.files if found.count else {},
        )

    def judge(self, entry: StepEntry, staged: Staged) -> StepEntry:
        """Settle what becomes of the rows behind the frontier.

        Args:
            entry: The step, not logged yet; its own run is the last of its runs.
            staged: What it staged.

        Raises:
            LateRowError: One of them is late, and that is to end the job.
        """
        if not entry.staged.late:
            return entry
        if entry.keys is not None:
            judged = self._history.judge(
                entry,
                first_behind_ms=staged.first_behind_ms,
                frontier_ms=self.behind_ms(entry.previous_frontier_ms),
            )
            entry = replace(
                entry,
                staged=replace(entry.staged, late=judged.late),
                rescued=judged.rescued,
                judged=judged.files,
            )
        if entry.staged.late and entry.late_policy is LatePolicy.FAIL:
            raise LateRowError(self._runs.describe_late(entry))
        return entry
