"""When runs are folded, what is merged, and what is forgotten."""

from __future__ import annotations

import json

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder.key_state import FOLD_LIMITS, Fold, KeyState
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.pipelines.workers import is_small


def _runs(count: int, *, rows: int = 10, size_bytes: int = 100) -> list[Run]:
    return [Run(step, rows, 5, 9, size_bytes=size_bytes) for step in range(count)]


@pytest.mark.parametrize(("runs", "folded"), [
    (_runs(FOLD_LIMITS.runs - 1), False),
    (_runs(FOLD_LIMITS.runs), True),
    (_runs(2, rows=FOLD_LIMITS.rows // 2 - 1), False),
    (_runs(2, rows=FOLD_LIMITS.rows // 2), True),
    ([Run(step, FOLD_LIMITS.rows // 2 - 1, 5, 9, behind=1) for step in range(2)], True),
    (_runs(2, size_bytes=FOLD_LIMITS.size_bytes // 2 - 1), False),
    (_runs(2, size_bytes=FOLD_LIMITS.size_bytes // 2), True),
    ([], False),
])  # fmt: skip
def test_runs_wait_until_there_is_enough_to_fold(runs: list[Run], folded: bool) -> None:
    """Many runs, many rows or many bytes make a fold, of all that wait; less makes none."""
    upkeep = KeyState().upkeep(runs)
    assert (upkeep is not None) == folded
    assert upkeep is None or upkeep.runs == tuple(runs)


def test_small_runs_are_folded_while_the_driver_can_do_so_itself() -> None:
    """They are folded once they are so large together; a large run waits for as many as ever."""
    small = FOLD_LIMITS.small_bytes
    waiting = _runs(4, size_bytes=small // 4)
    assert KeyState().upkeep(waiting[:3]) is None
    large = Run(4, 10, 5, 9, size_bytes=small)
    assert KeyState().upkeep([*waiting[:3], large]) is None
    upkeep = KeyState().upkeep([*waiting[:2], large, *waiting[2:]])
    assert upkeep is not None
    assert upkeep.runs == tuple(waiting)
    assert is_small(sum(run.size_bytes for run in _runs(2, size_bytes=small - 1)))


def test_folds_are_merged_while_they_are_not_much_larger() -> None:
    """A small fold is taken up by the next one, a large one is left until there is as much."""
    large, small, smaller = Fold(1, 100_000, 9, 50), Fold(2, 1_200, 9, 60), Fold(3, 600, 9, 70)
    upkeep = KeyState(folds=(large, small, smaller)).upkeep(_runs(FOLD_LIMITS.runs))
    assert upkeep is not None
    assert upkeep.folds == (small, smaller)
    after = KeyState(folds=(large, small, smaller)).with_fold(Fold(9, 1_500, 9, 80), upkeep)
    assert [fold.step for fold in after.folds] == [1, 9]
    assert (after.keys, after.size_bytes) == (101_500, 18)


@pytest.mark.parametrize(("keys", "is_merged"), [(3_680, True), (3_681, False)])
def test_a_fold_is_merged_with_half_as_much(keys: int, *, is_merged: bool) -> None:
    """The runs and the folds after it count together: 640 rows, and 1,200 keys."""
    folds = (Fold(1, keys, 9, 50), Fold(2, 1_200, 9, 60))
    upkeep = KeyState(folds=folds).upkeep(_runs(FOLD_LIMITS.runs))
    assert upkeep is not None
    assert upkeep.folds == (folds if is_merged else folds[1:])


@pytest.mark.parametrize(
    ("first_behind_ms", "horizon_ms", "after_ms", "steps"),
    [
        (40, 0, 40, [2, 3, 5]),
        (41, 0, 41, [3]),
        (10, 40, 40, [2, 3, 5]),
        (10, 0, 10, [1, 2, 3, 4, 5]),
    ],
)
def test_what_is_older_than_all_rows_to_judge_is_not_read(
    first_behind_ms: int, horizon_ms: int, after_ms: int, steps: list[int]
) -> None:
    """Nor what is older than the horizon: rows before it are late whatever their key."""
    runs = [Run(1, 1, 5, 39), Run(2, 1, 5, 40), Run(3, 0, -1, -1, 1, 41)]
    state = KeyState(horizon_ms, folds=(Fold(4, 1, 1, 39), Fold(5, 1, 1, 40)))
    found = state.lookup(runs, first_behind_ms=first_behind_ms)
    read: list[Run | Fold] = [*found.runs, *found.folds]
    assert [one.step for one in read] == steps
    assert (found.after_ms, found.horizon_ms) == (after_ms, horizon_ms)


def test_empty_fold_is_not_kept() -> None:
    """A fold of rows without a key, or of keys long silent, leaves nothing to read."""
    upkeep = KeyState().upkeep(_runs(FOLD_LIMITS.runs))
    assert upkeep is not None
    assert KeyState().with_fold(Fold(9, 0, 300, -1), upkeep) == KeyState()


def test_silent_keys_are_forgotten_and_the_horizon_stays() -> None:
    """A fold goes when its last key is older than the TTL; a longer TTL brings no time back."""
    state = KeyState(folds=(Fold(1, 1, 1, 899), Fold(2, 1, 1, 900)))
    state = state.expire(frontier_ms=1000, ttl_ms=100)
    assert (state.horizon_ms, [fold.step for fold in state.folds]) == (900, [2])
    assert state.expire(frontier_ms=1001, ttl_ms=1000).horizon_ms == 900


def test_state_survives_json() -> None:
    """What is logged with a step reads back the same."""
    state = KeyState(horizon_ms=7, folds=(Fold(1, 2, 3, 4), Fold(5, 6, 7, 8)))
    assert state == load(KeyState, json.loads(json.dumps(dump(state))))
