"""Steps that have too little memory for the keys of bolts to finish anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.engine import keyed, keyed_stage
from sequitur.consumer.topology.step.room import Room
from sequitur.consumer.topology.step.run import StepResult
from sequitur.testing import ReorderTester

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.topology import Event, Key, Timer, Tuple

_FAILS = set[bytes | None]()


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(keyed_stage, "MOST_IMAGES_BYTES", 3_000)
    yield
    _FAILS.clear()


@bolt(fields=("user", "said"))
def read(event: Event) -> Iterator[Any]:
    if event.key in _FAILS and event.attempt == 1:
        raise ValueError("not yet")
    for number in range(int(event.value or b"1")):
        yield (event.key or b"").decode(), f"{number}"


@bolt(fields=("user", "said"))
def often(event: Event) -> Iterator[Any]:
    for number in range(100):
        yield (event.key or b"").decode(), f"{number}"


@bolt(fields=("user", "said"))
def database(given: Tuple) -> Iterator[Any]:
    if b"database" in _FAILS:
        raise ValueError("is down")
    yield given.values


class Counts(KeyedBolt):
    """Counts its calls."""

    fields = ("user", "said")
    state = int

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        key.state = (key.state or 0) + 1
        yield given["user"], f"{key.state}"


class Windows(KeyedBolt):
    """Passes on what it gets, and tells of each 20 ms that are over, as of their begin."""

    fields = ("user", "said")
    lag_ms = 20

    def process(self, given: Tuple, key: Key) -> Iterator[Any]:
        begin_ms = given.event_time_ms // 20 * 20
        key.timer(f"{begin_ms}", at=begin_ms + 20)
        yield given.values

    def on_timer(self, timer: Timer, key: Key) -> None:
        key.emit((key.value, "0"), event_time_ms=int(timer.name))


class PerTime(KeyedBolt):
    """Counts what comes at each event time."""

    fields = ("user", "said")
    state = dict[int, int]

    def process(self, given: Tuple, key: Key) -> None:
        at_ms = given.event_time_ms
        key.state = {**(key.state or {}), at_ms: (key.state or {}).get(at_ms, 0) + 1}
        key.timer(f"{at_ms}", at=at_ms + 1)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        yield key.value, f"{timer.name}: {key.state[int(timer.name)]}"


class Silence(KeyedBolt):
    """Tells once of a silence."""

    fields = ("user", "said")

    def process(self, given: Tuple, key: Key) -> None:
        if given.event_time_ms < 2_000:
            key.timer("silence", at=2_000)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        yield key.value, timer.name


class Pauses(KeyedBolt):
    """Tells of 5 ms after each event."""

    fields = ("user", "said")

    def process(self, given: Tuple, key: Key) -> None:
        key.timer("pause", at=given.event_time_ms + 5)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        yield key.value, timer.name


def _tester(*bolts: KeyedBolt, by: str = "user", also: KeyedBolt | None = None) -> TopologyTester:
    builder = TopologyBuilder("room")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    before = "read"
    for number, one in enumerate(bolts):
        field = by if number else "user"
        builder.set_bolt(f"keyed{number}", one, 1).fields_grouping(before, field)
        before = f"keyed{number}"
    out = builder.set_output("out", key="user", value="said").local_grouping(before)
    if also is not None:
        builder.set_bolt("also", also).fields_grouping("events", "key")
        out.local_grouping("also")
    waits = {"retry_delay": "10 min", "retry_maximum": "10 min", "retry_jitter": 0}
    return TopologyTester(builder.build(), ProcessSettings.model_validate(waits))


def _steps(tester: TopologyTester, most: int = 60) -> int:
    """Run what is due at once; return how many steps that took."""
    for step in range(most):
        if tester.next_retry_s is None or tester.next_retry_s > tester.now_s:
            return step
        tester.run()
    raise AssertionError(f"{len(tester.held)} are held for ever")


@pytest.mark.promise("keyed-by-field")
def test_an_event_with_more_calls_than_a_step_has_memory_for_is_finished() -> None:
    tester = _tester(Counts())
    tester.run([("small", "1"), ("large", "100"), ("small", "1")])
    assert [event.key for event in tester.held] == [b"large", b"small"]
    _steps(tester)
    assert tester.held == []
    numbers = [int(said or b"") for user, said in tester.records("out") if user == b"large"]
    assert numbers == [*range(1, 101)]


@pytest.mark.promise("keyed-by-field")
def test_a_job_finishes_an_event_with_more_calls_than_a_step_has_memory_for() -> None:
    builder = TopologyBuilder("room")
    builder.set_spout("events")
    builder.set_bolt("read", often).local_grouping("events")
    builder.set_bolt("counts", Counts(), 1).fields_grouping("read", "user")
    builder.set_output("out", key="user", value="said").local_grouping("counts")
    settings = {"input_topics": ["in"], "output_topic": "ordered", "event_time": "json:at"}
    with ReorderTester(settings, builder.build()) as tester:
        tester.run([{"key": "large", "value": '{"at": 1700000000000}'}])
        tester.drain()
        said = [one.value for one in tester.records("ordered")]
    assert said == [b"%d" % number for number in range(1, 101)]


@pytest.mark.promise("keyed-by-field")
def test_an_event_is_finished_that_timers_come_before_and_wait_for() -> None:
    """A window tells of its begin: before the events in it, which it waits for, in a later bolt."""
    users = [f"user{number}" for number in range(20)]
    tester = _tester(Windows(), Counts())
    tester.run([(user, "1", 1_000) for user in users])
    tester.run([("late", "1", 1_010), ("last", "1", 9_000)])
    assert b"late" in {event.key for event in tester.held}
    _steps(tester)
    said = sorted(tester.records("out"))
    both = [(user.encode(), count) for user in [*users, "late"] for count in (b"1", b"2")]
    assert said == sorted([*both, (b"last", b"1")])


@pytest.mark.promise("keyed-by-field")
def test_a_count_waits_for_all_timers_of_an_earlier_bolt_where_a_step_is_cut() -> None:
    """The step has no memory for an event, which timers of the first bolt have to wait for."""
    tester = _tester(Windows(), PerTime(), by="said")
    tester.run([(f"user{number}", "1", 1_080) for number in range(9)])
    times_ms = [1_091, 1_094, 1_094, 1_094, 1_094, 1_105, 1_105]
    tester.run([(f"more{number}", "1", at_ms) for number, at_ms in enumerate(times_ms)])
    assert tester.held
    _steps(tester)
    tester.run(watermark_ms=9_000)
    _steps(tester)
    counts = [(1_080, 9 + 9 + 5), (1_091, 1), (1_094, 4), (1_100, 2), (1_105, 2)]
    assert tester.records("out") == [(b"0", f"{at_ms}: {n}".encode()) for at_ms, n in counts]


@pytest.mark.promise("keyed-by-field")
def test_what_waits_for_a_retry_gets_no_more_memory(caplog: pytest.LogCaptureFixture) -> None:
    _FAILS.add(b"fails")
    tester = _tester(Windows(), Counts())
    tester.run([("fails", "1", 1_000), *((f"user{number}", "1", 1_001) for number in range(50))])
    assert len(tester.failed) == 1
    assert len(tester.held) > 20, "or no step was cut"
    for at_ms in range(1_002, 1_010):
        tester.run([(f"{at_ms} {number}", "1", at_ms) for number in range(50)])
    _steps(tester)
    assert (len(tester.failed), tester.held) == (1, [])
    assert caplog.messages == []


@pytest.mark.promise("keyed-by-field")
@pytest.mark.parametrize("by_field", [False, True])
def test_timers_that_fail_later_on_get_no_more_memory(
    by_field: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All have an attempt, a few in each step: that is how the job goes on."""
    monkeypatch.setattr(keyed, "_MOST_TIMERS_BYTES", 20_000)
    _FAILS.add(b"database")
    builder = TopologyBuilder("room")
    builder.set_spout("events")
    builder.set_bolt("read", read).local_grouping("events")
    if by_field:
        builder.set_bolt("silence", Silence(), 1).fields_grouping("read", "user")
    else:
        builder.set_bolt("silence", Silence()).fields_grouping("events", "key")
    builder.set_bolt("database", database, 2).fields_grouping("silence", "said")
    builder.set_output("out", key="user", value="said").local_grouping("database")
    waits = {"retry_delay": "10 min", "retry_maximum": "10 min", "retry_jitter": 0}
    tester = TopologyTester(builder.build(), ProcessSettings.model_validate(waits))
    users = [f"user{number}" for number in range(100)]
    tester.run([(user, "1", 1_000) for user in users])
    tester.run([("last", "1", 5_000)])
    assert len(tester.failed) < len(users), "or no step was cut"
    _steps(tester)
    assert (len(tester.failed), tester.held) == (len(users), [])
    assert caplog.messages == []
    _FAILS.clear()
    tester.retry_all()
    assert sorted(tester.records("out")) == sorted((one.encode(), b"silence") for one in users)


@pytest.mark.promise("keyed-by-field")
@pytest.mark.parametrize("at_ms", [1_000, 990, 1_010])
def test_an_event_gets_its_memory_also_while_others_are_finished(at_ms: int) -> None:
    """Those come before it, with it, or behind it, and give nothing to a keyed bolt."""
    tester = _tester(Windows(), Counts())
    tester.run([("large", "60", 1_000)])
    assert tester.held
    for step in range(15):
        tester.run([(f"none{step}", "0", at_ms)])
    assert tester.held == []
    assert len(tester.acked) == 16


@pytest.mark.promise("keyed-by-field")
def test_an_event_gets_its_memory_also_while_timers_of_others_are_called() -> None:
    """Those are of a bolt beside it, which waits for no event that a later stage holds."""
    tester = _tester(Counts(), also=Pauses())
    tester.run([("large", "60", 1_000)])
    assert tester.held
    for step in range(140):
        tester.run([(f"none{step}", "0", 900)])
        if not tester.held:
            break
    assert tester.held == []
    assert sum(said == b"pause" for _, said in tester.records("out")) > 60


@pytest.mark.promise("keyed-by-field")
def test_windows_get_their_memory_also_while_others_are_finished() -> None:
    tester = _tester(Windows(), Counts())
    for first in (0, 10):
        tester.run([(f"user{number}", "1", 1_000) for number in range(first, first + 10)])
    assert tester.held == []
    tester.run([("none", "0", 1_021), ("late", "1", 1_010), ("last", "1", 1_022)])
    assert tester.held
    for step in range(20):
        tester.run([(f"none{step}", "0", 1_022)])
    assert tester.held == []


def _times(held_at: list[tuple[int, int] | None], *, called_timers: bool = False) -> list[int]:
    room, times = Room(), []
    for one in held_at:
        room.take_in(StepResult(held_at=one, called_timers=called_timers))
        times.append(room.times)
    return times


def test_a_step_gets_more_memory_while_the_oldest_that_is_held_stays() -> None:
    """Of many with its time, one less does; one that is older comes before it."""
    stays = [(7, -2), (7, -2), (7, -2)]
    assert _times([None, *stays, None, None, None, None]) == [1, 1, 2, 4, 4, 2, 1, 1]
    assert _times([*stays, (7, -1), (7, -3), (6, -1)]) == [1, 2, 4, 4, 8, 16]


def test_an_event_gets_its_memory_also_if_older_ones_come_in_between() -> None:
    assert _times([(7, -1), (6, -1)] * 3) == [1, 2, 2, 4, 4, 8]


def test_a_step_gets_more_memory_later_where_timers_are_called() -> None:
    assert _times([(7, -1)] * 131, called_timers=True) == [1] * 65 + [2] * 65 + [4]
