"""The late judge: which rows are on time, late, stale, rescued or quarantined, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest

from sequitur.consumer.reorder import ReorderMode
from sequitur.consumer.reorder.lateness import LateJudge, is_behind, late_against, staging_rules
from sequitur.consumer.reorder.reasons import LATE, NO_KEY, STALE, TOO_EARLY, TOO_LARGE

_NOTHING = 0
"""The last of a key of which nothing is released; a mask says so."""


def _reason(
    time_ms: int, *, disbelieved: bool = False, too_large: bool = False, keyless: bool = False
) -> str | None:
    rules = staging_rules(
        np.array([time_ms]),
        np.array([100]),
        is_disbelieved=np.array([disbelieved]),
        disbelief=TOO_EARLY,
        is_too_large=np.array([too_large]),
        is_keyless=np.array([keyless]),
    )
    return next((reason for holds, reason in rules if holds.all()), None)


@pytest.mark.parametrize(("time_ms", "reason"), [(99, LATE), (100, None), (101, None)])
def test_a_row_at_the_frontier_is_on_time(time_ms: int, reason: str | None) -> None:
    assert _reason(time_ms) == reason
    assert bool(is_behind(np.array([time_ms]), 100).all()) is (reason is not None)


def test_a_row_that_is_quarantined_is_not_late() -> None:
    """Of several reasons the first counts: its time, its size, its key, and then the frontier."""
    assert _reason(5, disbelieved=True, too_large=True, keyless=True) == TOO_EARLY
    assert _reason(5, too_large=True, keyless=True) == TOO_LARGE
    assert _reason(5, keyless=True) == NO_KEY
    assert _reason(5) == LATE


def _is_late(mode: ReorderMode, time_ms: int, last_ms: int | None, *, has_key: bool = True) -> bool:
    judged = LateJudge(mode, horizon_ms=50).is_late(
        event_time_ms=np.array([time_ms]),
        has_key=np.array([has_key]),
        place=np.array([time_ms]),
        last=np.array([_NOTHING if last_ms is None else last_ms]),
        has_last=np.array([last_ms is not None]),
    )
    return bool(judged[0])


@pytest.mark.parametrize(
    ("time_ms", "last_ms", "ordered", "latest"),
    [
        (60, None, False, False),
        (60, 59, False, False),
        (60, 60, False, True),  # as old as the last of its key: in place, but nothing new
        (60, 61, True, True),
        (50, None, False, False),
        (49, None, True, True),  # behind the horizon: its key may have been forgotten
    ],
)
def test_a_row_passes_by_the_last_of_its_key(
    time_ms: int, last_ms: int | None, ordered: bool, latest: bool
) -> None:
    """Not older than that, in latest mode newer; and not behind the horizon."""
    assert _is_late(ReorderMode.ORDERED, time_ms, last_ms) is ordered
    assert _is_late(ReorderMode.LATEST, time_ms, last_ms) is latest


def test_a_row_without_a_key_has_no_order_to_keep() -> None:
    """Ordered, it is late; in latest mode it replaces nothing, and passes."""
    for time_ms in (49, 60):
        assert _is_late(ReorderMode.ORDERED, time_ms, None, has_key=False)
        assert not _is_late(ReorderMode.LATEST, time_ms, None, has_key=False)


def test_in_latest_mode_all_rows_are_judged_and_are_stale() -> None:
    """Ordered, those behind the frontier are, and are late."""
    ordered, latest = LateJudge(), LateJudge(ReorderMode.LATEST)
    assert ordered.behind_ms(100) == 100
    assert latest.behind_ms(100) > 1 << 62
    assert (ordered.reason, latest.reason) == (LATE, STALE)


def test_only_rows_from_the_horizon_on_need_their_keys_looked_up() -> None:
    """The others are late whatever was released."""
    assert LateJudge(horizon_ms=50).asks_key(np.array([49, 50, 51])).tolist() == [False, True, True]


def test_late_rows_are_late_against_the_frontier_and_stale_ones_against_their_key() -> None:
    """The headers of the late topic say by how much."""
    assert late_against(100, 70) == {LATE: 100, STALE: 70}
