"""A drain closes all windows, once; without one they stay open; what comes later is late."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.engine import keyed
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
    from collections.abc import Iterator

    from sequitur.consumer.topology import BaseBolt, Event, Key, Timer, Tuple

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
    tester.drain()
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
    tester.drain()
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


class Remembers(KeyedBolt):
    fields = ("key", "said")
    state = int
    ttl = "10 ms"
    drains = True

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        yield key.value, ["event", key.state]
        key.state = event.event_time_ms
        if event.value == b"timer":
            key.timer("late", at=event.event_time_ms + 100)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        yield key.value, [timer.name, key.state]


@pytest.mark.promise("windows-drained")
def test_a_drain_calls_timers_and_leaves_state_that_has_time_to_live() -> None:
    builder = TopologyBuilder("remembers")
    builder.set_spout("events")
    builder.set_bolt("remembers", Remembers()).fields_grouping("events", "key")
    builder.set_output("out", key="key", value="said").local_grouping("remembers")
    tester = TopologyTester(builder.build())
    tester.run([("a", "", 1), ("b", "timer", 2)])
    tester.drain()
    assert tester.next_retry_s is None
    tester.run([("a", "", 5), ("b", "", 6)])
    tester.run(watermark_ms=1_000)
    tester.run([("a", "", 1_001)])
    assert [json.loads(value or b"") for _, value in tester.records("out")] == [
        ["event", None],
        ["event", None],
        ["late", 2],
        ["event", 1],
        ["event", 2],
        ["event", None],
    ]


@pytest.mark.promise("windows-drained")
def test_a_drain_ends_whatever_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """State that has time to live takes no room of it."""
    monkeypatch.setattr(keyed, "_MOST_TIMERS_BYTES", 2_500)
    builder = TopologyBuilder("remembers")
    builder.set_spout("events")
    builder.set_bolt("remembers", Remembers()).fields_grouping("events", "key")
    builder.set_output("out", key="key", value="said").local_grouping("remembers")
    tester = TopologyTester(builder.build())
    tester.run([(f"{n:02}", "", n // 10) for n in range(50)])
    tester.run([(f"timer {n:02}", "timer", 5) for n in range(10)])
    before = tester._batches
    tester.drain()
    assert tester._batches - before == 4
    late = [key or b"" for key, said in tester.records("out") if b"late" in (said or b"")]
    assert sorted(late) == [b"timer %02d" % n for n in range(10)]


class TwoTimers(Remembers):
    """Sets two timers. The first one fails."""

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        key.state = 1
        if event.value == b"timers":
            key.timer("first", at=500)
            key.timer("last", at=600)
        return iter(())

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        if timer.name == "first":
            raise ValueError("fails")
        yield key.value, timer.name


@pytest.mark.promise("windows-drained")
def test_a_drain_calls_what_an_event_sets_in_its_step_behind_a_timer_that_fails() -> None:
    """The key had only a time to live before, which a drain does not reach."""
    builder = TopologyBuilder("two")
    builder.set_spout("events")
    builder.set_bolt("timers", TwoTimers()).fields_grouping("events", "key")
    builder.set_output("out", key="key", value="said").local_grouping("timers")
    tester = TopologyTester(builder.build(), ProcessSettings(max_attempts=1))
    tester.run([("a", "", 10)])
    tester._closes = True
    tester.run([("a", "timers", 15)])
    tester.retry_all()
    assert tester.records("out") == [(b"a", b"last")]
    assert len(tester.dead_letters) == 1


class FailsFirst(OneKey):
    """Fails the first two attempts at an event that says so."""

    def process(self, tuple: Tuple, _: Any) -> Any:  # noqa: A002
        if tuple["key"] == b"fails" and tuple.attempt < 3:
            raise ValueError("an event fails")
        yield tuple.values


@pytest.mark.promise("windows-drained")
def test_a_drain_tries_an_event_that_fails_before_it_closes_its_window() -> None:
    """Windows of other keys close later, and the event is late for none."""
    bolt = tumbling("1 s", n=Count())
    tester = windows_tester(bolt, "late", keyed=FailsFirst())
    tester.run([("fails", "", 1_100), ("a", "", 5_010)])
    tester.drain()
    assert {key: [one["n"] for one in found] for key, found in results_of(tester).items()} == {
        b"fails": [1],
        b"a": [1],
    }
    assert tester.late_for_window == {}


@pytest.mark.promise("windows-drained")
@pytest.mark.parametrize("repeats", [False, True])
def test_a_drain_of_a_job_takes_what_it_was_given_and_what_fails(*, repeats: bool) -> None:
    """Also the batch that was through before the job had taken note of it."""
    topology = windows_topology(tumbling("1 s", n=Count()), "late", keyed=FailsFirst())
    with ReorderTester(_SETTINGS, topology, process=_process({}), now_ms=_T0 + 9_000) as tester:
        tester.run([_row("fails", 1_100), _row("a", 5_010)])
        tester.restart(repeats=repeats)
        tester.produce([_row("a", 6_000)])
        tester.drain()
        found = [(one.key, json.loads(one.value or b"")["n"]) for one in tester.records("results")]
        assert sorted(found) == [(b"a", 1), (b"a", 1), (b"fails", 1)]
        assert tester.report().late_for_window == {}


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
            tester.drain()
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


_CALLED = set[str]()


@bolt(fields=("key", "said"))
def begins(event: Event) -> Iterator[Any]:
    assert event.key is not None
    yield event.key.decode(), "begins"


class Ends(KeyedBolt):
    """Says when the time of a key is over, also in a drain."""

    fields = ("key", "said")
    drains = True

    def __init__(self, ends_ms: dict[str, int], fails_for: str = "") -> None:
        self._ends_ms, self._fails_for = ends_ms, fails_for

    def process(self, given: Tuple, key: Key) -> None:
        at_ms = self._ends_ms.get(key.value)
        if given["said"] == "begins" and at_ms is not None:
            key.timer("end", at=at_ms)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        del timer
        if key.value == self._fails_for and key.value not in _CALLED:
            _CALLED.add(key.value)
            raise ValueError("fails at its first call, and not when that is repeated")
        yield key.value, "is over"


@pytest.mark.promise("windows-drained")
def test_a_drain_goes_on_where_what_failed_passes_when_the_step_repeats_it() -> None:
    """Later timers in other tasks, and what comes behind them, make these tasks run once more."""
    _CALLED.clear()
    builder = TopologyBuilder("drains")
    builder.set_spout("events")
    builder.set_bolt("begins", begins).local_grouping("events")
    first = Ends(dict.fromkeys("abcdef", 1_000))
    builder.set_bolt("first", first, 1).fields_grouping("begins", "key")
    second = builder.set_bolt("second", Ends({**dict.fromkeys("bcdef", 950), "a": 900}, "a"), 4)
    second.fields_grouping("begins", "key").fields_grouping("first", "key")
    builder.set_output("out", key="key", value="said").local_grouping("second")
    tester = TopologyTester(builder.build())
    tester.run([(key, "", 100) for key in "abcdef"])
    tester.drain()
    assert {"a"} == _CALLED
    assert sorted(tester.records("out")) == [(key.encode(), b"is over") for key in "abcdef"]
