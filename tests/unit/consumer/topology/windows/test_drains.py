"""A drain closes all windows, once; without one they stay open; what comes later is late."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import ProcessSettings
from sequitur.testing import ReorderTester
from sequitur.windows import (
    Count,
    deduplicate,
    hopping,
    join,
    on_silence,
    rate_limit,
    session,
    sliding,
    tumbling,
)
from tests.support.window_topologies import (
    OneKey,
    results_of,
    windows_tester,
    windows_topology,
)

if TYPE_CHECKING:
    from sequitur.consumer.topology import BaseBolt, Event, KeyedBolt, TopologyTester

_T0 = 1_700_000_040_000  # the begin of a minute
_SETTINGS = {
    "input_topics": ["in"],
    "output_topic": "ordered",
    "event_time": "json:at",
    "delay": "0 s",
    "idle_timeout": "10 s",
}


def _side(event: Event) -> str:
    return "left" if event.value == b"l" else "right"


def _drain(tester: TopologyTester) -> None:
    """Drain as a job does: until nothing is to be tried again."""
    tester.drain()
    while tester.next_retry_s is not None:
        tester.advance(max(0.0, tester.next_retry_s - tester.now_s))
        tester.drain()


def _ends(tester: TopologyTester) -> list[Any]:
    return [one["end_ms"] for one in results_of(tester).get(b"a", [])]


@pytest.mark.promise("windows-drained")
@pytest.mark.parametrize("keyed", [None, OneKey()])
@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize(
    ("bolt", "ends", "closed_ms"),
    [
        (tumbling("1 s", n=Count()), [2_000, 6_000], 6_000),
        (tumbling("1 s", allow_late="9 s", n=Count()), [2_000, 6_000], 15_000),
        (hopping("2 s", "1 s", n=Count()), [2_000, 3_000, 6_000, 7_000], 7_000),
        (session("3 s", n=Count()), [4_500, 8_010], 8_010),
    ],
)
def test_a_drain_closes_windows_once(
    bolt: KeyedBolt, ends: list[int], closed_ms: int, every: int, keyed: BaseBolt | None
) -> None:
    """Whatever fails. A later event is late until the end of the last window."""
    tester = windows_tester(bolt, "late", every=every, keyed=keyed)
    tester.run([("a", "", 1_100), ("a", "", 1_500), ("a", "", 5_010)])
    tester.retry_all()
    assert len(_ends(tester)) < len(ends)
    _drain(tester)
    assert _ends(tester) == ends
    assert not any(list(store.all()) for store in tester._keys.values())
    tester.drain()
    tester.run(watermark_ms=closed_ms - 1)
    assert _ends(tester) == ends
    tester.run([("a", "1", 5_000), ("a", "2", closed_ms)])
    assert [value for _, value in tester.records("late")] == [b"1"]
    assert tester.late_for_window == {"tested": 1}


@pytest.mark.promise("windows-drained")
@pytest.mark.parametrize("every", [0, 1])
def test_a_drain_counts_on_where_early_results_are(every: int) -> None:
    bolt = tumbling("1 s", early="200 ms", late="drop", n=Count())
    tester = windows_tester(bolt, every=every)
    tester.run([("a", "", 1_100), ("a", "", 1_500), ("a", "", 5_010)])
    tester.retry_all()
    _drain(tester)
    assert _ends(tester) == [2_000] * 3 + [6_000] * 2


@pytest.mark.promise("windows-drained")
@pytest.mark.parametrize(
    "bolt",
    [
        sliding("1 s", late="drop", n=Count()),
        on_silence("1 s"),
        deduplicate("1 s"),
        rate_limit(1, "1 s", over="drop"),
        join(_side, within="1 s", late="drop"),
    ],
)
def test_a_drain_leaves_what_has_nothing_to_close(bolt: KeyedBolt) -> None:
    """A silence is not known, and events that come later are joined and looked for as before."""
    tester = windows_tester(bolt)
    tester.run([("a", "l", 1_000)])
    kept = [list(store.all()) for store in tester._keys.values()]
    found = tester.records("results")
    tester.drain()
    assert tester.records("results") == found
    assert [list(store.all()) for store in tester._keys.values()] == kept


@pytest.mark.promise("windows-drained")
def test_a_drain_puts_out_what_a_join_has_left_alone() -> None:
    tester = windows_tester(join(_side, within="1 s", late="drop", kind="outer"))
    tester.run([("a", "l", 1_000), ("b", "r", 1_500)])
    tester.drain()
    found = results_of(tester)
    assert [one["left"] for one in found[b"a"]] == ["l"]
    assert [one["right"] for one in found[b"b"]] == ["r"]
    tester.run([("a", "r", 1_200)])
    assert results_of(tester) == found


def _row(key: str, at_ms: int) -> dict[str, Any]:
    return {"key": key, "value": json.dumps({"at": _T0 + at_ms})}


@pytest.mark.promise("windows-drained")
@pytest.mark.parametrize("fails", [0, 1])
def test_a_job_leaves_windows_open_until_it_drains(fails: int) -> None:
    """Each end of the job is followed by a start; a second drain puts nothing out again."""
    bolt = tumbling("1 min", n=Count())
    topology = windows_topology(bolt, "late", every=fails)
    retry = {"retry_delay": "1 ms", "retry_jitter": 0}
    with ReorderTester(
        _SETTINGS, topology, process=_process(retry), now_ms=_T0 + 600_000
    ) as tester:

        def ends() -> list[tuple[int, int, int]]:
            values = [json.loads(one.value or b"") for one in tester.records("results")]
            return [(one["begin_ms"] - _T0, one["end_ms"] - _T0, one["n"]) for one in values]

        tester.run([_row("a", 1_000), _row("a", 59_000), _row("a", 61_000)])
        for _ in range(3):
            tester.advance(0.01)
        tester.restart()
        assert ends() == [(0, 60_000, 2)]
        tester.run([_row("a", 62_000)])
        for repeats in (False, True, False):
            for _ in range(4):
                tester.drain()
                tester.advance(0.01)
            assert ends() == [(0, 60_000, 2), (60_000, 120_000, 2)]
            tester.restart(repeats=repeats)
        tester.run([_row("a", 63_000), _row("b", 64_000)])
        tester.run([_row("a", 121_000), _row("a", 180_000)])
        for _ in range(3):
            tester.advance(0.01)
        assert [json.loads(one.value or b"")["at"] - _T0 for one in tester.records("late")] == [
            63_000,
            64_000,
        ]
        assert ends() == [(0, 60_000, 2), (60_000, 120_000, 2), (120_000, 180_000, 1)]
        assert tester.report().late_for_window == {"tested": 2}
        assert tester.report().as_json()["late_for_window"] == {"tested": 2}
        times_ms = [one.timestamp_ms - _T0 for one in tester.records("results")]
        assert times_ms == [59_999, 119_999, 179_999]


def _process(settings: dict[str, Any]) -> Any:
    return ProcessSettings.model_validate(settings | {"max_attempts": 0, "retry_factor": 1})
