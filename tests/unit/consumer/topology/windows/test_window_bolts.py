"""Windows in a topology: what they are given and refuse, and what they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import KeySpecError, TopologyBuildError
from sequitur.windows import (
    Count,
    Mean,
    deduplicate,
    hopping,
    join,
    join_table,
    on_silence,
    rate_limit,
    session,
    sliding,
    tumbling,
)
from tests.support.window_topologies import OneKey, results_of, run, windows_tester

if TYPE_CHECKING:
    from sequitur.consumer.topology import BaseBolt, Event, KeyedBolt


def _side(_: Event) -> str:
    return "left"


@pytest.mark.promise("windows-late")
@pytest.mark.parametrize(
    ("bolt", "stream"),
    [
        (tumbling("1 min", n=Count()), "late"),
        (hopping("1 min", "10 s", n=Count()), "late"),
        (sliding("1 min", n=Count()), "late"),
        (session("1 min", n=Count()), "late"),
        (join(_side, within="1 min"), "late"),
        (join_table(_side), "late"),
        (rate_limit(1, "1 min"), "over"),
    ],
)
def test_events_that_nobody_would_read_are_refused(bolt: KeyedBolt, stream: str) -> None:
    with pytest.raises(TopologyBuildError, match=f"nothing reads its stream '{stream}'.*=\"drop\""):
        windows_tester(bolt)
    windows_tester(bolt, stream)


def test_what_is_late_is_dropped_if_that_is_said() -> None:
    tester = windows_tester(tumbling("1 s", late="drop", n=Count()))
    tester.run([("a", 1, 5_000)])
    tester.run([("a", 1, 100)])
    assert len(tester.acked) == 2
    run(tester, [], until_ms=99_000)
    assert results_of(tester) == {b"a": [{"begin_ms": 5_000, "end_ms": 6_000, "n": 1}]}


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: windows_tester(tumbling("1 min")), "tumbling: name what it computes"),
        (lambda: tumbling("0 s", n=Count()), "size = '0 s': expected 1 ms or more"),
        (lambda: tumbling("soon", n=Count()), "expected a duration"),
        (lambda: tumbling("1 s", n=1), "n = 1: it is not an Aggregate"),  # type: ignore[arg-type]
        (lambda: tumbling("1 s", key=Count()), "cannot be named 'key'"),
        (lambda: tumbling("1 s", early="1 s", version=Count()), "cannot be named 'version'"),
        (lambda: tumbling("1 s", late="keep", n=Count()), 'expected "stream" or "drop"'),
        (lambda: hopping("1 s", "2 s", n=Count()), "is more than size"),
        (lambda: hopping("1 s", "0 s", n=Count()), "advance = '0 s'"),
        (lambda: session("1 s", early="0 s", n=Count()), "early = '0 s'"),
        (lambda: sliding("1 s", allow_late="-1 s", n=Count()), "allow_late"),
        (lambda: on_silence("0 s"), "after = '0 s'"),
        (lambda: deduplicate("0 s"), "within = '0 s'"),
        (lambda: rate_limit(0, "1 s"), "n = 0"),
        (lambda: rate_limit(1, "1 s", over="keep"), 'expected "stream" or "drop"'),
    ],
)
def test_wrong_arguments_are_refused(make: Any, wrong: str) -> None:
    with pytest.raises(TopologyBuildError, match=wrong):
        make()


def test_a_wrong_name_of_a_field_is_refused() -> None:
    with pytest.raises(KeySpecError):
        tumbling("1 s", n=Mean("a..b"))
    with pytest.raises(KeySpecError):
        deduplicate("1 s", of="a..b")


def test_an_event_without_the_field_is_left_out() -> None:
    bolt = tumbling("1 s", late="drop", n=Count(), of=Count("x.y"), mean=Mean("x.y"))
    tester = windows_tester(bolt)
    several = [{"x": {"y": 4}}, {"x.y": 6}, {"x": 1}, {}, None, {"x": {"y": None}}]
    run(tester, [[("a", one, 0) for one in several]], until_ms=9_000)
    (found,) = results_of(tester)[b"a"]
    assert (found["n"], found["of"], found["mean"]) == (6, 2, 5.0)


def test_an_event_that_is_no_json_fails() -> None:
    tester = windows_tester(tumbling("1 s", late="drop", mean=Mean("x")))
    tester.run([("a", "no json", 0)])
    assert len(tester.failed) == 1


def test_a_key_is_forgotten_when_its_windows_are_closed() -> None:
    events = [("a", {"id": at}, 1_000 + at) for at in range(20)]
    bolts = [
        tumbling("1 s", late="drop", early="1 s", n=Count()),
        hopping("1 s", "10 ms", late="drop", n=Count()),
        session("1 s", late="drop", early="1 s", n=Count()),
        sliding("1 s", late="drop", n=Count()),
        on_silence("1 s"),
        deduplicate("1 s", of="id"),
        rate_limit(3, "1 s", over="drop"),
    ]
    for bolt in bolts:
        tester = windows_tester(bolt)
        tester.run(events)
        ((kept,),) = [list(store.all()) for store in tester._keys.values()]
        assert kept.key == b"a"
        assert kept.timer_ms is not None
        tester.run(watermark_ms=9_000)
        assert [list(store.all()) for store in tester._keys.values()] == [[]]


@pytest.mark.promise("windows-late")
@pytest.mark.parametrize("keyed", [None, OneKey()])
def test_events_before_1970_are_late_only_behind_the_watermark(keyed: BaseBolt | None) -> None:
    tester = windows_tester(tumbling("10 ms", late="drop", n=Count()), keyed=keyed)
    tester.run([("a", "1", -1_000)])
    tester.run([("a", "2", -995), ("a", "3", -985)])
    tester.run(watermark_ms=-900)
    assert [one["n"] for one in results_of(tester)[b"a"]] == [2, 1]
    assert not tester.late_for_window
