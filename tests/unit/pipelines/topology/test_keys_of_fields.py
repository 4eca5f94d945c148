"""Keyed bolts by another field: jobs, changed parallelism, calls after failures, and refusals."""

from __future__ import annotations

import json
import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.topology import (
    Bolt,
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.engine import key_groups, keyed_stage
from sequitur.errors import KeyedStateError, TopologyBuildError, TopologyError, TopologyFileError
from sequitur.pipelines.topology import kept_state
from sequitur.pipelines.topology.kept_keys import keys_by_bolt
from sequitur.pipelines.topology.processed import Processed
from sequitur.pipelines.topology.topology_file import check_keys
from sequitur.testing import ReorderTester
from sequitur.windows import Count as CountOf
from sequitur.windows import sliding, tumbling
from tests.support.keyed_fields import MOST_ATTEMPTS, SIZE_MS, WHERE, expected, said_of, windows
from tests.support.step_runs import StepRuns, die, event
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from sequitur.consumer.topology import Key, OutputCollector, Timer, Topology, Tuple
    from tests.support.keyed_fields import Given

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
        at_ms += random.choice([0, 1, 3, SIZE_MS + 1])
        fails = random.choice([0] * 12 + [1, 2, MOST_ATTEMPTS])
        plan = {
            "n": number,
            "fails": fails,
            "where": random.choice(WHERE),
            "users": random.choices("xyz", k=random.randint(1, 2)),
            "at": at_ms,
        }
        found.append((at_ms, random.choice([b"a", b"b", b"c"]), plan))
    return found


@pytest.mark.promise("keyed-by-field", "keyed-killed")
def test_a_job_goes_on_with_windows_by_a_field_after_each_restart() -> None:
    """Steps and restarts fall anywhere. In the silence after the last event timers are called."""
    random = Random(3)
    events = _events(60, random)
    topology = windows(2, "out")
    with ReorderTester(_SETTINGS, topology, process=_PROCESS, now_ms=_T0) as tester:
        left = list(events)
        while left:
            # A frontier divides no events of one time.
            end = next((n for n in range(7, len(left)) if left[n - 1][0] < left[n][0]), len(left))
            some, left = left[:end], left[end:]
            tester.run([{"key": key, "value": json.dumps(plan)} for _, key, plan in some])
            tester.advance(random.choice([0, 0.01, 0.02]))
            if random.random() < 0.4:
                assert tester._stage is not None
                topology = windows(random.randint(1, 4), "out")
                tester._stage = replace(tester._stage, topology=topology)
                tester.restart(repeats=random.random() < 0.5)
        for _ in range(100):
            tester.advance(0.1)
        tester.advance(5)
        for _ in range(60):
            tester.advance(0.1)
        counts = tester.report().processed or {}
        assert (counts["pending"], counts["made_pending"]) == (0, 0)
        said, _ = expected(events, events[-1][0] + 1_000)
        assert said_of((one.key, one.value) for one in tester.records("out")) == said


class Count(KeyedBolt):
    fields = ("key", "number", "count")
    state = int

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        _CALLS["count"] += 1
        key.state = (key.state or 0) + 1
        yield key.value, given["number"], key.state


class LateCount(Count):
    """Puts a key's count out when its timer is called. A timer may kill its process, or raise."""

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        yield from ()
        key.state = (key.state or 0) + 1
        key.timer("late", at=given.event_time_ms + 10)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        if key.value == "kills":
            raise KeyboardInterrupt  # stands for the death of the process
        if key.value == "raises" and key.state == 1:
            raise ValueError(timer.name)
        yield key.value, 0, key.state


_CALLS: Counter[str] = Counter()
_RANDOM = Random(5)


@bolt(fields=("key", "number"))
def read(given: Tuple) -> Iterator[Any]:
    yield given["value"].decode().partition(" ")[0], given["offset"]


@bolt(fields=("key", "count"))
def once(given: Tuple) -> Iterator[Any]:
    if given["number"] % 100 == 7 and given.attempt == 1:
        raise ValueError("not yet")
    yield given["key"], given["count"]


@bolt(fields=("key", "count"))
def by_chance(given: Tuple) -> Iterator[Any]:
    yield given["key"], given["count"]
    if _RANDOM.random() < 0.01:
        raise ValueError("by chance")


def _counting(
    kept: KeyedBolt, behind: Any = once, tasks: int | None = 2, uid: str | None = None
) -> Topology:
    builder = TopologyBuilder("counts")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    builder.set_bolt("count", kept, tasks, uid=uid).fields_grouping("read", "key")
    builder.set_bolt("behind", behind).fields_grouping("count", "number")
    builder.set_output("out", key="key", value="count").local_grouping("behind")
    return builder.build()


@pytest.mark.promise("keyed-by-field-calls")
@pytest.mark.parametrize("behind", [once, by_chance])
def test_one_key_of_all_events_takes_two_calls_an_event_where_one_of_a_hundred_fails(
    behind: Any,
) -> None:
    count, tester = 2_000, TopologyTester(_counting(Count(), behind))
    _CALLS.clear()
    for first in range(0, count, 500):
        tester.run([(f"k{first + one}", "all") for one in range(500)])
        tester.advance(1)
    tester.retry_all()
    assert _CALLS["count"] <= 2.1 * count
    assert sorted(int(said or b"") for _, said in tester.records("out")) == [*range(1, count + 1)]


@pytest.mark.promise("keyed-looked-at")
@pytest.mark.parametrize("uid", [None, "counts"])
def test_a_key_is_tied_where_later_events_run_again_without_a_failed_one(
    tmp_path: Path, uid: str | None
) -> None:
    """Event 7 fails once, and so does 107. Nothing comes behind 107."""
    runs, name = StepRuns(_counting(Count(), uid=uid), tmp_path), uid or "count"
    # What was tied is counted on while the bolt's tasks change.
    for life, (tasks, numbers) in enumerate(((2, range(10)), (3, range(98, 108)), (2, range(9)))):
        runs.life, runs.topology = str(life), _counting(Count(), tasks=tasks, uid=uid)
        said = [b"other x", b"all x"]
        runs.step([event(n, said[n % 2], key=b"k%d" % n) for n in numbers])
        assert keys_by_bolt(runs.keys)[name].tied == 1
        runs.to_the_end()
    runs.step([event(n, b"%d x" % (n // 10), key=b"k%d" % n) for n in range(200, 230)])
    assert keys_by_bolt(runs.keys)[name].tied == 2


@pytest.mark.promise("keyed-by-field")
def test_a_batch_is_divided_where_images_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_stage, "MOST_IMAGES_BYTES", 10_000)
    tester = TopologyTester(_counting(Count()))
    tester.run([(f"k{one}", "all") for one in range(120)])
    assert 30 < len(tester.records("out")) < 60
    assert tester.held
    tester.retry_all()
    assert sorted(int(said or b"") for _, said in tester.records("out")) == [*range(1, 121)]


def _steps(folder: Path, tasks: int = 2) -> StepRuns:
    topology = _counting(LateCount(), tasks=tasks)
    return StepRuns(topology, folder, ProcessSettings(max_attempts=1), life="1", reached_ms=0)


@pytest.mark.promise("keyed-timer-kills")
def test_a_timer_by_a_field_that_kills_its_process_is_given_up(tmp_path: Path) -> None:
    runs = _steps(tmp_path)
    runs.step([event(n, b"%b x" % key, key=b"k") for n, key in enumerate((b"good", b"kills"))])
    runs.reached_ms = 100
    runs.step([event(50, b"kills x", key=b"k1")])
    runs.to_the_end()
    assert runs.records("out") == [(b"good", b"1")]
    letters = runs.dead()
    said = {"bolt": "count", "timer": "late", "at_ms": 11}
    assert (letters[0][0], json.loads(letters[0][1] or b"")) == (b"kills", said)
    assert {one["sequitur-dlq-reason"] for one in runs.dead_headers()} == {b"crash"}


class KillsAgain(KeyedBolt):
    """Its timers fail, and kill the process when they are tried again."""

    fields = ("key", "number", "count")

    def process(self, given: Tuple, key: Key) -> None:
        key.timer("late", at=given.event_time_ms + 10)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        if key.value == "kills" and timer.attempt > 1:
            raise KeyboardInterrupt  # stands for the death of the process
        if key.value == "kills":
            raise ValueError("not yet")
        yield key.value, 0, 1


@pytest.mark.promise("keyed-timer-kills")
def test_a_timer_by_a_field_that_kills_its_process_once_it_waits_is_given_up_once(
    tmp_path: Path,
) -> None:
    runs = StepRuns(_counting(KillsAgain()), tmp_path, _PROCESS, life="1", reached_ms=0)
    runs.step([event(n, b"%b x" % key, key=b"k") for n, key in enumerate((b"good", b"kills"))])
    runs.reached_ms = 100
    runs.step()
    assert len(runs.pending()) == 1
    runs.to_the_end()
    runs.step()
    runs.to_the_end()
    assert [key for key, _ in runs.dead()] == [b"kills"]
    assert runs.records("out") == [(b"good", b"1")]
    assert runs.next_timer_ms is None


class Fails(KeyedBolt):
    """Has timers of one key, which fail."""

    fields = ("key", "count")

    def __init__(self, key: str) -> None:
        self._of_key = key

    def process(self, given: Tuple, key: Key) -> None:
        if key.value == self._of_key:
            key.timer("late", at=given.event_time_ms + 10)

    def on_timer(self, timer: Timer, key: Key) -> None:
        raise ValueError(f"{timer.name} of {key.value}")


@pytest.mark.promise("keyed-timers")
def test_a_silent_job_calls_timers_that_wait_for_no_other(tmp_path: Path) -> None:
    """A timer of the bolt beside waits for its retry, and was due before."""
    builder = TopologyBuilder("silent")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    for name in ("first", "second"):
        builder.set_bolt(name, Fails(name), 1).fields_grouping("read", "key")
    builder.set_output("out", key="key", value="count").local_grouping("first")
    runs = StepRuns(builder.build(), tmp_path, reached_ms=0)
    runs.step([event(0, b"first x", key=b"k"), event(500, b"second x", key=b"k")])
    runs.reached_ms = 100
    runs.step()
    assert [one.event[3] for one in runs.pending()] == [10]
    assert runs.next_timer_ms == 510


@bolt(fields=("key", "count"))
async def dying(given: Tuple) -> AsyncIterator[Any]:
    if given["key"] == "dies":
        await die()
    yield given["key"], given["count"]


class LateCountAside(LateCount):
    """Puts each count out at once, too. A timer takes a while."""

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        yield from super().process(given, key)
        yield key.value, 0, key.state

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        time.sleep(0.3)
        return super().on_timer(timer, key)


@pytest.mark.promise("keyed-timer-kills")
def test_no_timer_by_a_field_is_given_up_for_a_call_that_kills_its_process_beside_it(
    tmp_path: Path,
) -> None:
    builder = TopologyBuilder("aside")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    builder.set_bolt("count", LateCountAside(), 2).fields_grouping("read", "key")
    builder.set_bolt("aside", dying, concurrency=4).local_grouping("count")
    builder.set_output("out", key="key", value="count").local_grouping("aside")
    settings = ProcessSettings(max_attempts=1)
    runs = StepRuns(builder.build(), tmp_path, settings, life="1", reached_ms=0)
    runs.step([event(0, b"good x", key=b"k")])
    runs.reached_ms = 100
    runs.step([event(n, b"dies x" if n == 9 else b"fine x", key=b"k%d" % n) for n in (9, 20)])
    runs.to_the_end()
    assert [value for _, value in runs.dead()] == [b"dies x"]
    assert sorted(runs.records("out")) == [(b"fine", b"1")] * 2 + [(b"good", b"1")] * 2


@pytest.mark.promise("keyed-timers")
def test_a_dead_timer_by_a_field_is_replayed_with_the_state_of_today(tmp_path: Path) -> None:
    runs = _steps(tmp_path)
    runs.reached_ms = 100
    runs.step([event(1, b"raises x", key=b"k")])
    runs.to_the_end()
    assert runs.records("out") == []
    runs.step([event(99, b"raises x", key=b"k")])
    runs.life, runs.topology = "2", _counting(LateCount(), tasks=3)
    runs.give_back_dead()
    runs.to_the_end()
    assert runs.records("out") == [(b"raises", b"2")]
    assert runs.pending() == []


@pytest.mark.promise("keyed-by-field-parallelism")
def test_each_task_has_the_keys_of_its_groups_and_no_others(tmp_path: Path) -> None:
    runs = _steps(tmp_path, tasks=1)
    keys = [f"key-{number}" for number in range(300)]
    for life, tasks in enumerate((1, 3, 256, 2)):
        runs.life, runs.topology = str(life), _counting(LateCount(), tasks=tasks)
        runs.step([event(n, f"{key} x".encode(), key=b"k") for n, key in enumerate(keys)])
        for one in runs.keys:
            assert one.by_field
            document = json.loads(json.dumps(dump(Processed(keys=(one,)), tmp_path)))
            assert load(Processed, document, tmp_path).keys == (one,)
    runs.reached_ms = 1_000
    runs.step()
    runs.to_the_end()
    assert sorted(runs.records("out")) == sorted((key.encode(), b"4") for key in keys)
    assert runs.next_timer_ms is None


@pytest.mark.promise("keyed-by-field-parallelism")
@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 100, 255, 256])
def test_a_group_is_of_one_task(tasks: int) -> None:
    every = [group for task in range(tasks) for group in key_groups.groups_of(task, tasks)]
    assert every == [*range(256)]
    for group in range(256):
        task = key_groups.task_of(bytes((group,)), tasks)
        assert group in key_groups.groups_of(task, tasks)


@pytest.mark.parametrize(
    ("values", "value", "shown"),
    [
        ("word", "word", b"word"),
        (b"\xff", b"\xff", b"\xff"),
        (7, 7, b"7"),
        (["a", 1], ("a", 1), b'["a",1]'),
    ],
)
def test_a_key_is_text_bytes_or_an_int_or_several(values: Any, value: Any, shown: bytes) -> None:
    stored = key_groups.stored_key(values)
    assert (key_groups.key_value(stored), key_groups.shown_key(stored)) == (value, shown)
    assert stored in kept_state._stored_keys(shown)


@pytest.mark.promise("keyed-bounds")
@pytest.mark.parametrize("value", [None, 1.0, True, 1 << 70, "\ud800", [1], {"a": 1}])
def test_a_value_that_may_equal_one_of_another_kind_is_no_key(value: Any) -> None:
    with pytest.raises(KeyedStateError, match="cannot be a key"):
        key_groups.stored_key([value, "other"] if value == [1] else value)


@pytest.mark.promise("keyed-bounds")
def test_windows_take_the_fields_of_events() -> None:
    builder = TopologyBuilder("refused")
    builder.set_spout("events")
    builder.set_bolt("read", Unanchored()).local_grouping("events")
    sizes = tumbling("1 s", late="drop", count=CountOf())
    builder.set_bolt("sizes", sizes).fields_grouping("read", "key")
    with pytest.raises(TopologyBuildError, match=r"'read' has the fields key, .*: let it emit"):
        builder.build()


@pytest.mark.promise("keyed-bounds")
def test_a_bolt_that_needs_events_in_order_is_not_keyed_by_a_field() -> None:
    builder = TopologyBuilder("refused")
    builder.set_spout("events")
    sizes = sliding("1 s", late="drop", count=CountOf())
    builder.set_bolt("sizes", sizes).fields_grouping("events", "value")
    with pytest.raises(TopologyBuildError, match="takes the events of a key in their order"):
        builder.build()


class Unanchored(Bolt):
    fields = ("key", "number")

    def prepare(self, context: Any, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self._collector = collector

    def process(self, given: Tuple) -> None:
        self._collector.emit(("key", 1))
        self._collector.ack(given)


@pytest.mark.promise("keyed-bounds")
def test_a_tuple_without_an_anchor_ends_the_run() -> None:
    builder = TopologyBuilder("refused")
    builder.set_spout("events")
    builder.set_bolt("read", Unanchored()).local_grouping("events")
    builder.set_bolt("count", Count()).fields_grouping("read", "key")
    with pytest.raises(TopologyError, match=r"without an anchor.*Anchor it"):
        TopologyTester(builder.build()).run([("k", "v")])


@pytest.mark.promise("keyed-bounds")
def test_waves_are_refused() -> None:
    settings = ProcessSettings(max_spout_pending=5)
    with pytest.raises(TopologyError, match=r"max_spout_pending = 5.*keyed bolts"):
        TopologyTester(_counting(Count()), settings)
    with (
        pytest.raises(TopologyFileError, match=r"max_spout_pending = 5.*keyed bolts"),
        ReorderTester(_SETTINGS, windows(2, "out"), process=settings) as tester,
    ):
        tester.run()


@pytest.mark.promise("keyed-bounds")
def test_a_start_refuses_state_of_keys_of_another_kind(tmp_path: Path) -> None:
    runs = _steps(tmp_path)
    runs.step([event(1, b"a x", key=b"k")])
    found = Processed(keys=tuple(runs.keys), tasks={"count": 2})
    check_keys("here", found, runs.topology)
    builder = TopologyBuilder("counts")
    builder.set_spout("events")
    builder.set_bolt("count", Count()).fields_grouping("events", "key")
    assert builder.build().keyed_by_event == ("count",)
    with pytest.raises(TopologyFileError, match="by another field, and it is keyed by the events'"):
        check_keys("here", found, builder.build())


class First(KeyedBolt):
    """Lets the first event of a key pass, and only looks at others."""

    fields = ("key", "number", "count")
    state_map = dict[str, int]

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        if key.state_map.get("seen") is None:
            key.state_map.put("seen", given["number"])
            yield key.value, given["number"], given["number"]


@bolt(fields=("key", "count"))
def fail_first(given: Tuple) -> Iterator[Any]:
    if given["number"] == 0:
        raise ValueError("never")
    yield given["key"], given["count"]


@pytest.mark.promise("keyed-by-field")
def test_an_event_that_has_only_looked_is_not_done_by_what_is_undone(tmp_path: Path) -> None:
    """The second event was dropped as a repeat of the first, which is given up."""
    topology = _counting(First(), fail_first)
    runs = StepRuns(topology, tmp_path, ProcessSettings(max_attempts=1), life="1", reached_ms=0)
    runs.step([event(n, b"key x", key=b"k%d" % n, partition=0) for n in range(3)])
    runs.to_the_end()
    assert runs.records("out") == [(b"key", b"1")]
    runs.life, runs.topology = "2", _counting(First(), fail_first, tasks=3)
    runs.step([event(9, b"key x", key=b"k9"), event(10, b"other x", key=b"k9")])
    runs.to_the_end()
    assert runs.records("out") == [(b"key", b"1"), (b"other", b"10")]


class Opens(KeyedBolt):
    """Tells of its key at once, and again when its timer is called."""

    fields = ("key", "number")

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        key.timer("again", at=self._at_ms)
        yield key.value, given["number"]

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        del timer
        yield key.value, 0


class CountsUntil(KeyedBolt):
    """Counts what comes of its key before its timer, which has the time of the first one's."""

    fields = ("key", "count")
    state = int

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def process(self, given: Tuple, key: Key) -> None:
        del given
        if not key.state:
            key.timer("until", at=self._at_ms)
        key.state = (key.state or 0) + 1

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        del timer
        yield key.value, key.state


@pytest.mark.promise("keyed-by-field")
@pytest.mark.parametrize(("at_ms", "count"), [(1_000, b"1"), (0, b"2")])
def test_what_timers_of_an_earlier_bolt_emit_comes_between_those_of_its_time(
    at_ms: int, count: bytes, tmp_path: Path
) -> None:
    """A timer comes before it; if it is set for a time that is over, after all of the present."""
    builder = TopologyBuilder("chain")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    builder.set_bolt("opens", Opens(at_ms), 2).fields_grouping("read", "key")
    builder.set_bolt("counts", CountsUntil(at_ms), 2).fields_grouping("opens", "key")
    builder.set_output("out", key="key", value="count").local_grouping("counts")
    runs = StepRuns(builder.build(), tmp_path, life="1", reached_ms=0)
    runs.step([event(n, b"key-%d x" % n, key=b"k%d" % n) for n in range(20)])
    runs.reached_ms = 2_000
    runs.step()
    runs.to_the_end()
    assert sorted(runs.records("out")) == sorted((b"key-%d" % n, count) for n in range(20))
