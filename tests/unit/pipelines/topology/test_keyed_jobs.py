"""A whole job with keyed bolts on lists: restarts, silence, merges, and what a start refuses."""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import KeyedBolt, ProcessSettings, TopologyBuilder
from sequitur.errors import TopologyFileError
from sequitur.pipelines.ordering.opening import ProcessStage
from sequitur.testing import ReorderTester
from tests.support.keyed_counts import GAP_MS, MOST_ATTEMPTS, WHERE, counting, expected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event, Key, Topology
    from tests.support.keyed_counts import Given

_T0 = 1_700_000_000_000
_SETTINGS = {
    "input_topics": ["in"],
    "output_topic": "ordered",
    "event_time": "json:at",
    "delay": "0 s",
    "idle_timeout": "10 s",
}
_PROCESS = ProcessSettings.model_validate(
    {"max_attempts": MOST_ATTEMPTS, "retry_delay": "10 ms", "retry_jitter": 0}
)


def _events(count: int, random: Random) -> list[Given]:
    found: list[Given] = []
    at_ms = _T0
    for number in range(count):
        at_ms += random.choice([0, 1, 3, GAP_MS + 1])
        fails = random.choice([0] * 12 + [1, 2, MOST_ATTEMPTS])
        plan = {"n": number, "fails": fails, "where": random.choice(WHERE), "at": at_ms}
        found.append((at_ms, random.choice([b"a", b"b", b"c"]), plan))
    return found


def _row(event: Given) -> dict[str, Any]:
    return {"key": event[1], "value": json.dumps(event[2])}


def _out(tester: ReorderTester) -> dict[bytes, list[Any]]:
    found: dict[bytes, list[Any]] = defaultdict(list)
    for record in tester.records("out"):
        found[record.key or b""].append(json.loads(record.value or b""))
    return dict(found)


@pytest.mark.promise("keyed-state-undone", "keyed-killed")
@pytest.mark.parametrize("stages", [1, 2])
def test_a_job_goes_on_with_state_and_timers_after_each_restart(stages: int) -> None:
    """Steps and restarts fall anywhere. In the silence after the last event timers are called."""
    random = Random(stages)
    events = _events(120, random)
    with ReorderTester(_SETTINGS, counting(stages, "out"), process=_PROCESS, now_ms=_T0) as tester:
        left = list(events)
        while left:
            # A frontier divides no events of one time.
            end = next((n for n in range(7, len(left)) if left[n - 1][0] < left[n][0]), len(left))
            some, left = left[:end], left[end:]
            tester.run([_row(one) for one in some])
            tester.advance(random.choice([0, 0.01, 0.02]))
            if random.random() < 0.4:
                tester.restart(repeats=random.random() < 0.5)
        for _ in range(100):
            tester.advance(0.1)
        tester.advance(5)
        for _ in range(60):
            tester.advance(0.1)
        counts = tester.report().processed or {}
        assert (counts["pending"], counts["made_pending"]) == (0, 0)
        wanted = expected(events, events[-1][0] + 1_000)
        assert _out(tester) == {key: said for key, said in wanted.items() if said}
        assert (tester.folder / "keyed").is_dir()


@pytest.mark.promise("keyed-timers")
def test_a_timer_is_called_by_the_clock_in_silence() -> None:
    """A start and a jump of the clock are no silence: the input is looked at each second."""
    with ReorderTester(_SETTINGS, counting(1, "out"), process=_PROCESS, now_ms=_T0) as tester:
        tester.run([_row((_T0, b"quiet", {"n": 1, "fails": 0, "where": "call", "at": _T0}))])
        tester.advance(1)
        assert ["session", _T0, _T0, 1] not in _out(tester)[b"quiet"]
        tester.restart()
        tester.advance(60)
        assert ["session", _T0, _T0, 1] not in _out(tester)[b"quiet"]
        tester.wait(20)
        assert _out(tester)[b"quiet"][-1][0] == "session"


@pytest.mark.promise("keyed-bounds")
@pytest.mark.parametrize(
    ("reorder", "process", "why"),
    [
        ({"mode": "latest"}, {}, "mode"),
        ({}, {"ordering": "none"}, "ordering"),
        ({}, {"ackers": 0}, "ackers"),
    ],
)
def test_a_job_refuses_settings_with_which_nothing_could_be_undone(
    reorder: dict[str, Any], process: dict[str, Any], why: str
) -> None:
    settings = ProcessSettings.model_validate(process)
    with (
        pytest.raises(TopologyFileError, match=f"{why}.*has keyed bolts"),
        ReorderTester(_SETTINGS | reorder, counting(1, "out"), process=settings) as tester,
    ):
        tester.run()


class Numbers(KeyedBolt):
    """Counts the events of a key, in a map."""

    fields = ("key", "value")
    state_map = dict[str, int]

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        count = key.state_map.get("n", 0) + 1
        key.state_map.put("n", count)
        yield event.key, count


def _numbering(name: str, **more: Any) -> Topology:
    builder = TopologyBuilder("numbers")
    builder.set_spout("events")
    builder.set_bolt(name, Numbers(), **more).fields_grouping("events", "key")
    builder.set_output("out", "out").local_grouping(name)
    return builder.build()


@pytest.mark.promise("keyed-versions")
def test_a_start_refuses_state_of_a_bolt_that_is_gone_unless_it_is_dropped() -> None:
    """A bolt that is there is not dropped: each restart would drop it again."""

    def restart(name: str, *dropped: str, **more: Any) -> None:
        tester._stage = ProcessStage(_numbering(name, **more), _PROCESS, dropped)
        tester.restart()

    def run() -> bytes | None:
        tester.now_ms += 1
        tester.run([{"key": b"k", "value": json.dumps({"at": tester.now_ms})}])
        return tester.records("out")[-1].value

    first = _numbering("first")
    with ReorderTester(_SETTINGS, first, process=_PROCESS, now_ms=_T0) as tester:
        assert [run(), run()] == [b"1", b"2"]
        with pytest.raises(TopologyFileError, match=r"keyed bolt 'first'.*--drop-state first"):
            restart("second")
        with pytest.raises(TopologyFileError, match=r"set_bolt\(..., uid='first'\)"):
            restart("second", "another")
        restart("second", uid="first")
        assert run() == b"3"
        with pytest.raises(TopologyFileError, match="--drop-state first: the topology has this"):
            restart("second", "first", uid="first")
        restart("second", "first")
        assert run() == b"1"
        restart("second", "first")  # as a service does that starts again
        assert run() == b"2"
        restart("second")
        assert run() == b"3"


class Sum(KeyedBolt):
    """Counts the events of a key, in its state."""

    fields = ("key", "value")
    state = int

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        key.state = (key.state or 0) + 1
        yield event.key, key.state


def _summing(field: str, uid: str | None) -> Topology:
    builder = TopologyBuilder("sums")
    builder.set_spout("events")
    builder.set_bolt("sum", Sum(), uid=uid).fields_grouping("events", field)
    builder.set_output("out", "out").local_grouping("sum")
    return builder.build()


@pytest.mark.promise("keyed-versions")
@pytest.mark.parametrize("field", ["key", "topic"])
def test_a_bolt_with_another_uid_does_not_take_what_is_kept_under_its_name(field: str) -> None:
    row = {"key": b"k", "value": json.dumps({"at": _T0})}
    with ReorderTester(_SETTINGS, _summing(field, None), process=_PROCESS, now_ms=_T0) as tester:
        tester.run([row])
        tester._stage = ProcessStage(_summing(field, "new"), _PROCESS)
        with pytest.raises(TopologyFileError, match=r"keeps the state of .*--drop-state sum$"):
            tester.restart()
        tester._stage = ProcessStage(_summing(field, "new"), _PROCESS, ("sum",))
        tester.restart()
        tester.run([row])
        assert [one.value for one in tester.records("out")] == [b"1", b"1"]


class Mapped(Sum):
    state_map = dict[str, int]

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        key.state_map.put("n", 1)
        yield from super().process(event, key)


@pytest.mark.promise("keyed-versions")
def test_a_start_names_the_map_that_a_bolt_has_not_any_more() -> None:
    def mapped(made: type[Sum]) -> Topology:
        builder = TopologyBuilder("sums")
        builder.set_spout("events")
        builder.set_bolt("sum", made()).fields_grouping("events", "key")
        return builder.build()

    with ReorderTester(_SETTINGS, mapped(Mapped), process=_PROCESS, now_ms=_T0) as tester:
        tester.run([{"key": b"k", "value": json.dumps({"at": _T0})}])
        tester._stage = ProcessStage(mapped(Sum), _PROCESS)
        with pytest.raises(TopologyFileError, match=r"keeps a map or list.*sum/entries$"):
            tester.restart()
