"""Benchmarks measure what they say, and let nobody win by losing rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import executor as bench
from benchmarks.exactly_once_latency import IN_ORDER
from benchmarks.exactly_once_latency import Contender as SteadyContender
from benchmarks.peers.producer_peers import latency_ms, read_performance
from benchmarks.reorder import Result, check
from benchmarks.reorder_check import Written
from benchmarks.reorder_contenders import Contender, Took
from benchmarks.reorder_input import Workload, columns, key_and_value
from benchmarks.reorder_latency import Faults, behind_a_younger, percentiles
from benchmarks.s3_answers import Answer, answers_in_turn, in_turn
from benchmarks.steady_stream import Schedule, Steady, ideal_release, number_of
from sequitur.consumer.topology.engine.executor import Executor

if TYPE_CHECKING:
    from sequitur.consumer.topology.settling.root import Root

pytestmark = pytest.mark.figures


@pytest.mark.parametrize("is_tracked", [True, False])
def test_every_event_goes_through_the_chain(
    monkeypatch: pytest.MonkeyPatch, *, is_tracked: bool
) -> None:
    """Each round gives out all events, tracked or not, and takes time for each."""
    fed: list[bool] = []
    feed = Executor.feed

    def counted(executor: Executor, root: Root, values: tuple[Any, ...]) -> None:
        fed.append(root.is_tracked)
        feed(executor, root, values)

    monkeypatch.setattr(Executor, "feed", counted)
    assert bench.seconds_an_event(30, is_tracked=is_tracked) > 0
    assert fed
    assert set(fed) == {is_tracked}
    assert len(fed) % 30 == 0


def test_lost_event_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure comes of a chain that does not put out what it is given."""
    monkeypatch.setattr(Executor, "feed", lambda *_: None)
    with pytest.raises(RuntimeError, match="0 acked, 0 written, 30 given"):
        bench.seconds_an_event(30, is_tracked=True)


_WORKLOAD = Workload(events=20_000, late_share=0.01)
_DRAWN = columns(_WORKLOAD)
_SUM = _DRAWN.event_time_sum
_LATE = int(_DRAWN.late.sum())
_NOTHING = Written(0, 0, 0)
_ALL = Written(_WORKLOAD.events, _SUM, 0)
_OURS = Contender("ours", lambda _: [], accounts_for_all=True)
_PEER = Contender("peer", lambda _: [])
_LOOSE = Contender("loose", lambda _: [], keeps_order=False)


def test_the_same_settings_give_the_same_events() -> None:
    """Events are as the issue has them: disorder, a few late by far, about 75 bytes, equal keys."""
    again = columns(_WORKLOAD)
    assert (again.event_time_ms == _DRAWN.event_time_ms).all()
    assert (again.key == _DRAWN.key).all()
    behind = _DRAWN.event_time_ms.max() - _DRAWN.event_time_ms[~_DRAWN.late]
    assert behind.max() < _WORKLOAD.disorder_ms + _WORKLOAD.span_ms
    assert 100 < _LATE < 400
    key, value = key_and_value(4711, 1234, 1_700_000_000_000)
    assert key == b"host-01177|3"
    assert json.loads(value)["usage"] == 12.34
    assert 70 <= len(value) <= 80


def test_event_times_add_up_beyond_64_bits() -> None:
    """Eight million event times do: the whole run came to nothing over it."""
    drawn = columns(Workload())
    assert drawn.event_time_sum == sum(drawn.event_time_ms.tolist()) > 1 << 63


@pytest.mark.parametrize("contender", [_OURS, _PEER, _LOOSE])
def test_all_events_in_order_are_right(contender: Contender) -> None:
    """Who wrote each event once and in order passes."""
    assert check(contender, _DRAWN, _ALL, _NOTHING) == 0


@pytest.mark.parametrize(
    ("written", "late"),
    [
        (Written(_WORKLOAD.events - 1, _SUM, 0), _NOTHING),  # one lost
        (Written(_WORKLOAD.events, _SUM - 1, 0), _NOTHING),  # another row in its place
        (Written(_WORKLOAD.events - _LATE - 1, _SUM, 0), Written(_LATE + 1, 0, 0)),  # late for ease
        (Written(_WORKLOAD.events, _SUM, 1), _NOTHING),  # not in order
    ],
)
def test_ours_must_account_for_each_event(written: Written, late: Written) -> None:
    """One row lost, changed, called late without need, or out of order fails the run."""
    with pytest.raises(RuntimeError, match="ours"):
        check(_OURS, _DRAWN, written, late)


def test_a_peer_may_lose_late_events_only() -> None:
    """Peers drop late rows by design, and no others, and double none."""
    assert check(_PEER, _DRAWN, Written(_WORKLOAD.events - _LATE, 0, 0), _NOTHING) == 0
    for rows in (_WORKLOAD.events - _LATE - 1, _WORKLOAD.events + 1):
        with pytest.raises(RuntimeError, match="peer"):
            check(_PEER, _DRAWN, Written(rows, 0, 0), _NOTHING)


def test_what_is_missing_is_counted() -> None:
    """Of a contender without promises what is missing is told, beyond what it may hold back."""
    rows = _WORKLOAD.events - _LATE - 30
    assert check(_LOOSE, _DRAWN, Written(rows, 0, 5), _NOTHING) == 30
    held = Contender("held", lambda _: [], held_back_s=1, keeps_order=False)
    assert check(held, _DRAWN, Written(rows, 0, 5), _NOTHING) == 0


def test_ratios_are_of_pairs() -> None:
    """A slow round is slow for both: its pair says what the others do."""
    ours, theirs = (
        Result(name, 100, [Took(seconds, 0, ()) for seconds in rounds])
        for name, rounds in {"ours": (1, 10, 3), "theirs": (2, 20, 3)}.items()
    )
    assert ours.times(theirs) == 2
    assert theirs.times(ours) == 0.5
    assert ours.times(ours) == 1


_STREAM = Steady(rate_hz=200, seconds=8, warm_up_s=2)


def test_ideal_release_is_that_of_a_job_that_takes_no_time() -> None:
    """It has each event when it is due, and the frontier is behind the slowest partition."""
    schedule, delay_ms = Schedule.of(_STREAM), 3_000
    assert set(schedule.partition) == {0, 1, 2, 3}
    found = ideal_release(schedule.due_ms, schedule.event_ms, schedule.partition, delay_ms)
    newest: dict[int, int] = {}
    frontier = -(1 << 60)
    waiting: set[int] = set()
    for number, due_ms in enumerate(schedule.due_ms.tolist()):
        event_ms, partition = int(schedule.event_ms[number]), int(schedule.partition[number])
        assert found.is_late[number] == (event_ms < frontier)
        waiting.add(number)
        newest[partition] = max(event_ms, newest.get(partition, event_ms))
        if len(newest) == 4:
            frontier = min(newest.values()) - delay_ms
        for out in [one for one in waiting if schedule.event_ms[one] <= frontier]:
            waiting.remove(out)
            assert found.release_ms[out] == due_ms
    assert waiting
    assert np.isinf(found.release_ms[sorted(waiting)]).all()
    assert found.is_late.any()


def test_times_of_a_stream_are_fixed_before_it() -> None:
    """An event is due by its number alone, and says which it is."""
    schedule = Schedule.of(_STREAM)
    assert schedule.due_ms.tolist() == [5 * number for number in range(2_000)]
    assert schedule.is_measured.sum() == 1_600
    _, value = key_and_value(4711, 1234, 1_700_000_000_000)
    assert number_of(value[:-1] + b',"number":1999}') == 1_999


def test_percentiles_are_of_all_rows() -> None:
    """The slowest row is the last of them; a millisecond is told."""
    seconds = np.arange(1_001) / 1000
    found = percentiles(seconds)
    assert found == {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p100": 1.0}


def test_rows_behind_a_younger_one_are_counted_by_key() -> None:
    """Keys do not wait for each other."""
    keys = np.array([1, 2, 1, 2, 1])
    assert behind_a_younger(keys, np.array([5, 1, 6, 1, 6])) == 0
    assert behind_a_younger(keys, np.array([5, 1, 4, 0, 6])) == 2


def test_answers_that_a_step_waits_for_in_turn() -> None:
    """Those side by side count once; nobody waits for deletions, or for what others write."""
    told = [
        Answer("GET", "/bucket?list-type=2&prefix=job%2Fowners%2F", 0.0, 0.5),
        Answer("PUT", "/bucket/job/spark/offsets/4", 1.0, 2.0),
        Answer("PUT", "/bucket/job/runs/000000000007-ab/a", 2.0, 3.0),
        Answer("PUT", "/bucket/job/runs/000000000007-ab/b", 2.5, 3.5),
        Answer("PUT", "/bucket/job/heartbeats/000000000001", 3.0, 3.1),
        Answer("PUT", "/bucket/job/staged/000000000007", 3.5, 4.5),
        Answer("GET", "/bucket?list-type=2&prefix=job%2Fruns%2F000000000001-ab%2F", 4.5, 4.5),
        Answer("DELETE", "/bucket/job/staged/000000000006", 4.5, 4.6),
        Answer("PUT", "/bucket/job/spark/commits/4", 4.5, 5.5),
        Answer("GET", "/bucket?list-type=2&prefix=job%2Fowners%2F", 5.5, 6.0),
        Answer("PUT", "/bucket/job/spark/offsets/5", 6.0, 6.5),
        Answer("PUT", "/bucket/job/done/000000000007", 6.5, 7.0),
        Answer("PUT", "/bucket/job/staged/000000000008", 7.0, 7.5),
        Answer("PUT", "/bucket/job/done/000000000008", 7.5, 8.0),
        Answer("PUT", "/bucket/job/staged/000000000009", 8.5, 9.0),
    ]
    assert in_turn(told[2:4]) == 1
    # 7: plan, a file, staged, commit, the look behind it, done. 8: look, plan, staged, done.
    assert answers_in_turn(told) == {7: 6, 8: 4}


_RATE = "records sent, 1996.4 records/sec (0.23 MB/sec), 5.04 ms avg latency, 401.00 ms max latency"
_PERFORMANCE = (
    f"50000 {_RATE}.",
    f"60000 {_RATE}, 4 ms 50th, 9 ms 95th, 30 ms 99th, 300 ms 99.9th.",
    f"15971 steady state {_RATE}, 3 ms 50th, 8 ms 95th, 20 ms 99th, 40 ms 99.9th.",
)


def test_figures_of_a_peer_are_those_that_it_tells_last() -> None:
    """Those of a window have no percentiles, and those behind the warm-up come last."""
    warm = read_performance([*_PERFORMANCE])
    assert warm == {"seconds": pytest.approx(15_971 / 1996.4), "p50_ms": 3.0, "p99_ms": 20.0}
    whole = read_performance([*_PERFORMANCE[:2]])
    assert whole["seconds"] == pytest.approx(60_000 / 1996.4)
    with pytest.raises(RuntimeError, match="told no figures"):
        read_performance([*_PERFORMANCE[:1]])


def test_latency_of_a_producer_is_of_a_share_of_its_records() -> None:
    """The order in which they were confirmed changes nothing; none has none."""
    latencies_s = [0.003, 0.001, 0.002, 0.010]
    assert latency_ms(latencies_s, 0.5) == 3.0
    assert latency_ms(latencies_s, 0.99) == 10.0
    assert latency_ms([], 0.5) == 0.0


@pytest.mark.parametrize(
    ("faults", "of_strict", "of_loose"),
    [
        (Faults(0, 0, 0), "", ""),
        (Faults(1, 0, 0), "1 rows lost", "1 rows lost"),
        (Faults(0, 2000, 0), "2,000 rows doubled", ""),
        (Faults(0, 0, 3), "3 rows out of order", ""),
    ],
)
def test_who_breaks_a_promise_is_named(faults: Faults, of_strict: str, of_loose: str) -> None:
    """A job is held to what it promises: at least once without order may double and misplace."""
    strict = SteadyContender("strict", IN_ORDER, lambda _: [])
    loose = SteadyContender("loose", "", lambda _: [], is_once=False, keeps_order=False)
    assert strict.broken(faults) == of_strict
    assert loose.broken(faults) == of_loose
