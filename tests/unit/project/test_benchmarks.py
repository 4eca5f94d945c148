"""Benchmarks measure what they say, and let nobody win by losing rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import executor as bench
from benchmarks.reorder import check
from benchmarks.reorder_check import Written
from benchmarks.reorder_contenders import Contender
from benchmarks.reorder_input import Workload, columns, key_and_value
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
