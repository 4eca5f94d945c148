"""How far keys have been released, under random histories: what is kept of it loses nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.key_state import Fold, FoldLimits, KeyState
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StepEntry, StepKind, Totals
from tests.support.events import T0
from tests.support.reorder_reference import Record, Reference
from tests.support.values import replace

_PLACE = ("readings", 0)
_rows = st.tuples(st.integers(T0, T0 + 80), st.sampled_from(["a", "b", "c", None]))
_batches = st.lists(st.lists(_rows, max_size=6), max_size=25)


@dataclass(slots=True)
class _Kept:
    """Runs and folds in memory, kept as `StepEntry` and `KeyState` say."""

    ttl_ms: int
    limits: FoldLimits
    keys: KeyState = field(default_factory=KeyState)
    runs: tuple[Run, ...] = ()
    rows: dict[int, list[tuple[int, str | None]]] = field(default_factory=dict)
    folds: dict[int, dict[str | None, int]] = field(default_factory=dict)

    def begin(self, step: int, entry: StepEntry | None) -> None:
        if entry is None:
            return
        before = replace(
            entry,
            runs=self.runs,
            keys=self.keys.expire(frontier_ms=entry.frontier_ms, ttl_ms=self.ttl_ms),
        )
        assert before.keys is not None
        self.runs, self.keys = before.kept_runs, before.keys
        upkeep = before.keys.upkeep(before.folding_runs, self.limits)
        if upkeep is not None:
            seen = [(key, time) for run in upkeep.runs for time, key in self.rows[run.step]]
            seen += [pair for fold in upkeep.folds for pair in self.folds[fold.step].items()]
            last = {
                key: max(time for other, time in seen if other == key)
                for key, time in seen
                if time >= self.keys.horizon_ms
            }
            fold = Fold(step, len(last), 0, max(last.values(), default=BEFORE_ALL_TIME_MS))
            self.folds[step] = last
            self.runs, self.keys = before.live_runs, before.keys.with_fold(fold, upkeep)
        # As on disk: what is not named is gone.
        self.rows = {run.step: self.rows[run.step] for run in self.runs}
        self.folds = {fold.step: self.folds[fold.step] for fold in self.keys.folds}

    def last_released(self, key: str | None, frontier_ms: int) -> int:
        seen = [time for rows in self.rows.values() for time, other in rows if other == key]
        times = [time for time in seen if time <= frontier_ms]
        times += [fold[key] for fold in self.folds.values() if key in fold]
        return max(times, default=BEFORE_ALL_TIME_MS)


def _entry(frontier_ms: int, runs: tuple[Run, ...]) -> StepEntry:
    return StepEntry(
        step=0,
        kind=StepKind.BATCH,
        batch_id=0,
        previous_frontier_ms=0,
        clock=EventClock(frontier_ms=frontier_ms),
        runs=runs,
        before=Totals(),
        logged_ms=0,
    )


@pytest.mark.promise("order-key-silent-longer")
@given(_batches, st.integers(0, 30), st.integers(1, 60), st.integers(1, 4))
def test_what_is_kept_decides_as_if_all_were_kept(
    batches: list[list[tuple[int, str | None]]], delay_ms: int, ttl_ms: int, folded_runs: int
) -> None:
    """Folds, merges and forgetting change no decision, and old runs and folds are let go."""
    reference = Reference(
        delay_ms=delay_ms,
        idle_timeout_ms=1,
        max_future_skew_ms=0,
        rescue=True,
        key_ttl_ms=ttl_ms,
    )
    kept, entry = _Kept(ttl_ms, FoldLimits(runs=folded_runs)), None
    for step, batch in enumerate(batches):
        kept.begin(step, entry)
        frontier_ms, late_before = reference.frontier_ms, len(reference.late)
        behind = [row for row in batch if row[0] < frontier_ms]
        late = [
            key
            for time, key in behind
            if key is None
            or time < kept.keys.horizon_ms
            or time < kept.last_released(key, frontier_ms)
        ]
        values = [(key, b'{"at":%d}' % time) for time, key in batch]
        records = [Record(*_PLACE, n, key, value) for n, (key, value) in enumerate(values)]
        reference.step(records, [_PLACE], now_ms=T0 + 80, unread=[_PLACE])
        assert [record.key for record in reference.late[late_before:]] == late
        on_time = [time for time, _ in batch if time >= frontier_ms]
        run = Run(
            step,
            len(on_time),
            min(on_time, default=-1),
            max(on_time, default=-1),
            behind=len(behind),
            max_behind_ms=max((time for time, _ in behind), default=-1),
        )
        kept.rows[step] = batch
        kept.runs = (*kept.runs, run)
        entry = _entry(reference.frontier_ms, kept.runs)
        assert len(entry.folding_runs) <= folded_runs
