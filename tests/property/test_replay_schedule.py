"""A replay's order is disturbed as far as was asked for, and the same each time."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.producer.sources._replay_schedule import NO_TIME, Disorder, astray, replay_schedule

_TIMES = st.lists(st.one_of(st.integers(-10_000, 10_000), st.just(NO_TIME)), max_size=80)
_DISORDERS = st.builds(
    Disorder,
    up_to_ms=st.integers(0, 3_000),
    late_share=st.floats(0, 1),
    late_by_ms=st.integers(0, 5_000),
    seed=st.integers(0, 2**32),
)


@given(times=_TIMES, disorder=_DISORDERS)
def test_each_event_is_sent_once(times: list[int], disorder: Disorder) -> None:
    """The order holds each place once, and never goes back in time."""
    schedule = replay_schedule(times, disorder)
    assert sorted(schedule.order.tolist()) == list(range(len(times)))
    assert schedule.due_ms.tolist() == sorted(schedule.due_ms.tolist())


@given(times=_TIMES, disorder=_DISORDERS)
def test_the_same_seed_gives_the_same_plan(times: list[int], disorder: Disorder) -> None:
    """Else a replay could not go on after a restart."""
    first, second = replay_schedule(times, disorder), replay_schedule(times, disorder)
    assert first.order.tolist() == second.order.tolist()
    assert first.due_ms.tolist() == second.due_ms.tolist()


@given(times=_TIMES)
def test_without_disorder_the_recording_keeps_its_order(times: list[int]) -> None:
    assert replay_schedule(times, Disorder()).order.tolist() == list(range(len(times)))


@given(times=_TIMES, disorder=_DISORDERS)
def test_no_event_is_delayed_by_more_than_asked_for(times: list[int], disorder: Disorder) -> None:
    """Nor sent before the recording had reached its time."""
    schedule = replay_schedule(times, disorder)
    known = [time for time in times if time != NO_TIME]
    reached = [max(time, known[0]) if known else 0 for time in accumulate(times, max)]
    most = disorder.up_to_ms + disorder.late_by_ms
    for index, due in zip(schedule.order.tolist(), schedule.due_ms.tolist(), strict=True):
        delay = due - (reached[index] - (known[0] if known else 0))
        assert 0 <= delay <= (0 if times[index] == NO_TIME else most)


def test_the_plan_of_a_seed_does_not_change_between_versions() -> None:
    """A position in a replay is only good while its order can be computed again."""
    disorder = Disorder(up_to_ms=1_000, late_share=0.25, late_by_ms=5_000, seed=7)
    schedule = replay_schedule([100 * second for second in range(8)], disorder)
    assert schedule.order.tolist() == _PINNED_ORDER
    assert schedule.due_ms.tolist() == _PINNED_DUE_MS


def test_the_late_share_is_about_what_was_asked_for() -> None:
    disorder = Disorder(late_share=0.1, late_by_ms=10**6, seed=1)
    late = (replay_schedule([0] * 10_000, disorder).due_ms >= 10**6).sum()
    assert 900 < late < 1_100


_PINNED_ORDER = [3, 2, 0, 5, 6, 4, 7, 1]
_PINNED_DUE_MS = [305, 500, 625, 803, 854, 1197, 1204, 5875]


_DAY_MS = 86_400_000
_T = 1_764_000_000_000
_YEAR_1, _YEAR_9999 = -62_135_596_800_000, 253_402_300_799_000


@pytest.mark.promise("in-recording-bad-clock")
@pytest.mark.parametrize(
    ("times", "strays"),
    [
        ([], []),
        ([NO_TIME], []),
        ([_T], []),
        ([_YEAR_1], []),
        ([_YEAR_1, _T, _T + 1, _T + 2], [0]),
        ([_T, _T + 1, _YEAR_9999, _T + 2], [2]),
        ([_T, 0, _T + 1], [1]),
        ([_T // 1000, _T, _T], [0]),  # seconds among milliseconds
        ([_T * 1000, _T, _T], [0]),
        ([4_294_967_295_000, _T, _T], [0]),  # 2106, where seconds of 32 bits end
        ([2**63 - 1, -(2**63) + 1, _T], [0, 1]),
        ([_YEAR_1, _T], [0]),
        ([_YEAR_1, _YEAR_9999, _T], [0, 1]),
        ([0] * 60 + [_T + one for one in range(40)], list(range(60))),  # until the clock is set
        ([NO_TIME, _YEAR_1, _T], [1]),
        (list(range(0, 10_000, 100)), []),  # a simulation that begins at 0
        ([*range(0, 10_000, 100), _T], [100]),
        ([_T, _T + 300 * _DAY_MS], []),
        ([_T + _DAY_MS * day for day in range(0, 20_000, 7)], []),  # half a century, by weeks
        ([1_600_000_000_000 + 3_600_000 * hour for hour in range(100)] + [_T], [100]),
    ],
)
def test_times_far_from_all_others_are_not_believed(times: list[int], strays: list[int]) -> None:
    assert [place for place, one in enumerate(astray(times)) if one] == strays


@given(times=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_a_time_is_astray_or_a_time(times: list[int]) -> None:
    """Never one that is none, and never all of them, unless one is beyond any clock."""
    found = astray(times)
    assert not any(one for one, time in zip(found, times, strict=True) if time == NO_TIME)
    assert not times or not all(found) or any(abs(time) > 2**61 for time in times)
