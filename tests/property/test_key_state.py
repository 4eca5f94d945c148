"""How far keys have been released, under random histories: what is kept of it loses nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer import (
    BEFORE_ALL_TIME_MS,
    Fold,
    FoldLimits,
    KeyState,
    Run,
    SourcePartition,
    StepEntry,
    StepKind,
    Totals,
)
from tests.support.reorder_model import ReorderModel, Row

_A = SourcePartition("readings", 0)
_rows = st.tuples(st.integers(0, 80), st.sampled_from(["a", "b", "c", None]))
_batches = st.lists(st.lists(_rows, max_size=6), max_size=25)


def _numbered(batches: list[list[tuple[int, str | None]]]) -> list[list[Row]]:
    offset, numbered = 0, []
    for batch in batches:
        numbered.append(
            [Row(time, _A, offset + number, key) for number, (time, key) in enumerate(batch)]
        )
        offset += len(batch)
    return numbered


def _model(*, delay_ms: int, ttl_ms: int) -> ReorderModel:
    ends = {_A: 1 << 40}  # never idle
    return ReorderModel(
        delay_ms=delay_ms, idle_timeout_ms=0, ends=ends, rescue=True, key_ttl_ms=ttl_ms
    )


@pytest.mark.promise("order-event-arrives-later")
@given(_batches, st.integers(0, 30), st.integers(1, 60))
def test_rescue_keeps_the_order_of_each_key(
    batches: list[list[tuple[int, str | None]]], delay_ms: int, ttl_ms: int
) -> None:
    """No key goes back in time, and a late row has something newer of its key before it."""
    model = _model(delay_ms=delay_ms, ttl_ms=ttl_ms)
    for batch in _numbered(batches):
        frontier_ms, released, late = model.clock.frontier_ms, len(model.released), len(model.late)
        model.batch(batch, now_ms=0)
        out = model.released[:released]
        for row in model.late[late:]:
            assert row.event_time_ms < frontier_ms
            newer = [r for r in out if r.key == row.key and r.event_time_ms > row.event_time_ms]
            assert newer or row.key is None or row.event_time_ms < frontier_ms - ttl_ms
    model.drain()
    for key in "abc":
        times = [row.event_time_ms for row in model.released if row.key == key]
        assert sorted(times) == times
    read = [row for batch in _numbered(batches) for row in batch]
    assert sorted(read) == sorted(model.released + model.late)


@dataclass(slots=True)
class _Kept:
    """Runs and folds in memory, kept as `StepEntry` and `KeyState` say."""

    ttl_ms: int
    limits: FoldLimits
    keys: KeyState = field(default_factory=KeyState)
    runs: tuple[Run, ...] = ()
    rows: dict[int, list[Row]] = field(default_factory=dict)
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
            seen = [(row.key, row.event_time_ms) for r in upkeep.runs for row in self.rows[r.step]]
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
        seen = [row for rows in self.rows.values() for row in rows if row.key == key]
        times = [row.event_time_ms for row in seen if row.event_time_ms <= frontier_ms]
        times += [fold[key] for fold in self.folds.values() if key in fold]
        return max(times, default=BEFORE_ALL_TIME_MS)


def _entry(model: ReorderModel, runs: tuple[Run, ...]) -> StepEntry:
    return StepEntry(
        step=0,
        kind=StepKind.BATCH,
        batch_id=0,
        previous_frontier_ms=0,
        clock=model.clock,
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
    limits = FoldLimits(runs=folded_runs)
    model, kept, entry = _model(delay_ms=delay_ms, ttl_ms=ttl_ms), _Kept(ttl_ms, limits), None
    for step, batch in enumerate(_numbered(batches)):
        kept.begin(step, entry)
        frontier_ms, late_before = model.clock.frontier_ms, len(model.late)
        behind = [row for row in batch if row.event_time_ms < frontier_ms]
        rescued = [
            row
            for row in behind
            if row.key is not None
            and row.event_time_ms >= kept.keys.horizon_ms
            and row.event_time_ms >= kept.last_released(row.key, frontier_ms)
        ]
        model.batch(batch, now_ms=0)
        late = model.late[late_before:]
        assert sorted(set(behind) - set(late)) == sorted(rescued)
        on_time = [row.event_time_ms for row in batch if row.event_time_ms >= frontier_ms]
        run = Run(
            step,
            len(on_time),
            min(on_time, default=-1),
            max(on_time, default=-1),
            behind=len(behind),
            max_behind_ms=max((row.event_time_ms for row in behind), default=-1),
        )
        kept.rows[step] = batch
        kept.runs = (*kept.runs, run)
        entry = _entry(model, kept.runs)
        assert len(entry.folding_runs) <= folded_runs
