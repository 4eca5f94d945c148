"""Keyed bolts in a job's steps: files of keys, timers that kill their process, and replays."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.topology import (
    BasicBolt,
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    bolt,
)
from sequitur.consumer.topology.engine import keyed
from sequitur.consumer.topology.engine.keyed import KeyLog
from sequitur.errors import StateFormatError
from sequitur.pipelines.topology.kept_keys import KeptKeys
from sequitur.pipelines.topology.key_table import KeyTable
from sequitur.pipelines.topology.processed import Processed
from tests.support.step_runs import StepRuns, die, event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator
    from pathlib import Path

    from sequitur.consumer.topology import (
        BasicOutputCollector,
        Event,
        Key,
        Timer,
        Topology,
        Tuple,
    )
    from sequitur.pipelines.topology.kept_keys import KeyFile

_ONCE = ProcessSettings(max_attempts=1)


class Late(KeyedBolt):
    """Emits each event when its timer is called. A timer may kill its process, or raise."""

    fields = ("key", "said")
    state = str

    def process(self, event: Event, key: Key) -> None:
        key.state = (event.value or b"").decode()
        key.timer("late", at=event.event_time_ms + 10)

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        if key.state == "kills":
            raise KeyboardInterrupt  # stands for the death of the process
        if key.state == "raises":
            raise ValueError(timer.name)
        yield key.value, key.state
        key.state = None


def _topology() -> Topology:
    builder = TopologyBuilder("late")
    builder.set_spout("events")
    builder.set_bolt("late", Late()).fields_grouping("events", "key")
    builder.set_output("out", key="key", value="said").local_grouping("late")
    return builder.build()


def _steps(folder: Path) -> StepRuns:
    return StepRuns(_topology(), folder, _ONCE, life="a life", reached_ms=0)


@pytest.mark.promise("keyed-timer-kills")
def test_a_timer_that_kills_its_process_is_found_and_given_up(tmp_path: Path) -> None:
    runs = _steps(tmp_path)
    values = ("good", "kills", "fine")
    runs.step([event(n, value.encode(), key=b"k%d" % n) for n, value in enumerate(values)])
    runs.reached_ms = 100
    runs.step([event(50, b"later", key=b"k1")])
    runs.to_the_end()
    assert runs.records("out") == [(b"k0", b"good"), (b"k2", b"fine"), (b"k1", b"later")]
    (letter,) = runs.dead()
    assert letter[0] == b"k1"
    assert json.loads(letter[1] or b"") == {"bolt": "late", "timer": "late", "at_ms": 11}
    (headers,) = runs.dead_headers()
    assert headers["sequitur-dlq-reason"] == b"crash"
    counts = runs.counts
    assert (counts["made"], counts["made_acked"], counts["made_dead"]) == (4, 3, 1)


@pytest.mark.promise("keyed-timers")
def test_a_dead_timer_is_replayed_with_the_state_of_today(tmp_path: Path) -> None:
    runs = _steps(tmp_path)
    runs.reached_ms = 100
    runs.step([event(1, b"raises", key=b"k")])
    runs.to_the_end()
    assert runs.records("out") == []
    runs.step([event(99, b"today", key=b"k")])
    runs.give_back_dead()
    runs.to_the_end()
    assert runs.records("out") == [(b"k", b"today")]
    assert runs.pending() == []


@pytest.mark.promise("keyed-runners")
def test_a_document_names_the_keys_of_each_task(tmp_path: Path) -> None:
    """Small changes are in it; another process goes on from the others' files."""
    runs = _steps(tmp_path)
    for number in range(3):
        value = b"x" * (10 << 10) if number == 1 else b"v"
        runs.step([event(number, value, key=b"k%d" % number)])
        runs.life = f"another {number}"
        processed = Processed(keys=tuple(runs.keys), next_timer_ms=runs.next_timer_ms)
        read = load(Processed, json.loads(json.dumps(dump(processed, tmp_path))), tmp_path)
        assert (read, read.next_timer_ms) == (processed, 10)
        runs.keys = read.keys
    (kept,) = runs.keys
    assert [isinstance(one.source, bytes) for one in kept.changes] == [True, False, True]
    runs.reached_ms = 100
    runs.step()
    assert [key for key, _ in runs.records("out")] == [b"k0", b"k1", b"k2"]
    assert runs.next_timer_ms is None


def test_a_document_without_keys_is_one_of_the_format_before() -> None:
    assert dump(Processed())["format"] == 5
    assert dump(Processed(keys=(KeptKeys("bolt", 0, None, ()),)))["format"] == 6


_KEPT = {
    "component": "bolt",
    "task": 1,
    "base": {"file": "keyed/a/base", "bytes": 7},
    "changes": [{"file": "keyed/b/changes", "bytes": 5}, {"inline": "AAH/"}],
}


def test_keys_are_named_in_the_form_of_before(tmp_path: Path) -> None:
    """A file by its name and size, and small changes by what is in them."""
    document = {**dump(Processed()), "format": 6, "keys": [_KEPT], "next_timer_ms": 3}
    read = load(Processed, document, tmp_path)
    counted = {**_KEPT, "keys": 0, "timers": 0, "blocked": 0, "by_field": False, "tied": 0}
    written = {**document, "keys": [counted], "late_for_window": {}, "closed_ms": {}}
    assert json.loads(json.dumps(dump(read, tmp_path))) == json.loads(json.dumps(written))
    (kept,) = read.keys
    assert [one.source for one in (kept.base, *kept.changes) if one is not None] == [
        tmp_path / "keyed/a/base",
        tmp_path / "keyed/b/changes",
        b"\0\1\xff",
    ]
    assert [one.size_bytes for one in kept.changes] == [5, 3]
    assert kept.folders == {"a", "b"}


@pytest.mark.parametrize(
    "damage",
    [
        {"base": {"file": "keyed/a"}},
        {"base": {"bytes": 7}},
        {"changes": [{}]},
        {"changes": [{"inline": "?"}]},
        {"changes": None},
        {"task": "one"},
    ],
)
def test_damaged_names_of_keys_are_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    document = {**dump(Processed()), "format": 6, "keys": [{**_KEPT, **damage}]}
    with pytest.raises(StateFormatError, match=r"^processed step: ") as error:
        load(Processed, {**document, "next_timer_ms": None}, tmp_path)
    assert error.value.__cause__ is not None


@pytest.mark.promise("keyed-timers")
def test_a_timer_is_due_once_its_time_is_reached_and_not_before(tmp_path: Path) -> None:
    runs = _steps(tmp_path)
    runs.step([event(0, b"v", key=b"k")])
    processed = Processed(next_timer_ms=runs.next_timer_ms)
    reached = [processed.has_timers(one) for one in (None, 9, 10)]
    assert reached == [False, False, True]


class Visits(KeyedBolt):
    fields = ("key", "said")
    state_map = dict[bytes, bytes]

    def process(self, event: Event, key: Key) -> None:
        for name in (event.value or b"").split():
            key.state_map.put(name, b"x" * 100)


@pytest.mark.promise("keyed-kinds")
def test_a_step_stores_only_the_entries_that_it_touches(tmp_path: Path) -> None:
    runs = StepRuns(_keyed(Visits()), tmp_path, _ONCE, reached_ms=0)
    names = b" ".join(b"%03d" % number for number in range(500))
    runs.step([event(1, names, key=b"k")])
    runs.step([event(2, b"007", key=b"k")])
    runs.step([event(3, b"007 500", key=b"k")])
    rows = {one.component: _rows(one.changes) for one in runs.keys}
    assert rows == {"keyed": [1, 1], "keyed/entries": [500, 1]}


def _rows(changes: Iterable[KeyFile]) -> list[int]:
    return [KeyTable(one.source).rows for one in changes]


def _keyed(bolt: KeyedBolt, name: str = "keyed", **more: Any) -> Topology:
    builder = TopologyBuilder("versions")
    builder.set_spout("events")
    builder.set_bolt(name, bolt, **more).fields_grouping("events", "key")
    builder.set_output("out", key="key", value="said").local_grouping(name)
    return builder.build()


class One(KeyedBolt):
    """Counts the events of a key in all three kinds."""

    fields = ("key", "said")
    state: ClassVar[Any] = int
    state_map = dict[str, int]
    state_list = list[int]

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        key.state = (key.state or 0) + 1
        key.state_map.put("n", key.state)
        key.state_list.append(key.state)
        key.timer("late", at=event.event_time_ms + 10)
        yield key.value, key.state

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        yield key.value, [timer.name, key.state]


class Two(One):
    """Has text where `One` has numbers."""

    state = str
    state_map = dict[str, str]
    state_list = list[str]
    version = 2

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        yield key.value, [key.state, key.state_map.get("n"), list(key.state_list)]
        key.state_list.append(f"at {event.event_time_ms}")
        key.state = "new"

    def migrate(self, old: Any, version: int, kind: str) -> Any:
        return f"{kind} {old} of {version}"


class TwoWithout(Two):
    def migrate(self, *given: Any) -> Any:
        return KeyedBolt.migrate(self, *given)


class Wrong(Two):
    def migrate(self, old: Any, *_: Any) -> Any:
        return old


class Unversioned(Two):
    version = 1


@pytest.mark.promise("keyed-versions")
def test_what_another_version_has_stored_is_migrated_on_each_read(tmp_path: Path) -> None:
    runs = StepRuns(_keyed(One()), tmp_path, _ONCE, reached_ms=0)
    runs.step([event(1, key=b"k"), event(2, key=b"k")])
    runs.topology = _keyed(Two())
    runs.step([event(3, key=b"k"), event(4, key=b"k")])
    runs.step([event(5, key=b"k")])
    said = [json.loads(value or b"") for _, value in runs.records("out")][2:]
    once = ["list 1 of 1", "list 2 of 1"]
    assert said == [
        ["state 2 of 1", "map 2 of 1", once],
        ["new", "map 2 of 1", [*once, "at 3"]],
        ["new", "map 2 of 1", [*once, "at 3", "at 4"]],
    ]


@pytest.mark.promise("keyed-versions")
@pytest.mark.parametrize(
    ("bolt", "why"),
    [
        (
            TwoWithout(),
            b"its state is of version 1, the bolt of version 2: give the bolt a migrate",
        ),
        (Wrong(), b"1 is not a <class 'str'>: Expected `str`, got `int`"),
        (Unversioned(), b"the state of a key is not a <class 'str'>.*raise the bolt's `version`"),
    ],
)
def test_what_cannot_be_migrated_fails_its_event(
    tmp_path: Path, bolt: KeyedBolt, why: bytes
) -> None:
    runs = StepRuns(_keyed(One()), tmp_path, _ONCE, reached_ms=0)
    runs.step([event(1, key=b"k")])
    runs.topology = _keyed(bolt)
    runs.step([event(2, key=b"k")])
    (headers,) = runs.dead_headers()
    assert re.search(why, headers["sequitur-dlq-traceback"], re.DOTALL)


class FailsOnce(One):
    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        if timer.attempt == 1:
            raise ValueError(timer.name)
        return super().on_timer(timer, key)


@pytest.mark.promise("keyed-versions")
def test_a_renamed_bolt_keeps_state_and_timers_by_its_uid(tmp_path: Path) -> None:
    """Also a timer that failed, and waits in the form of an event."""
    runs = StepRuns(_keyed(FailsOnce()), tmp_path, reached_ms=0)
    runs.step([event(1, key=b"k"), event(2, key=b"l")])
    runs.reached_ms = 11
    runs.step()
    assert [one.event[0] for one in runs.pending()] == [b"k"]
    runs.topology = _keyed(FailsOnce(), "renamed", uid="keyed")
    runs.reached_ms = 100
    runs.step([event(101, key=b"k")])
    runs.to_the_end()
    said = [b"1", b"1", b'["late",1]', b"2", b'["late",1]']
    assert sorted(value or b"" for _, value in runs.records("out")) == sorted(said)
    assert {one.component for one in runs.keys} == {"keyed", "keyed/entries"}
    assert runs.dead() == []


@bolt(fields=("key", "said"))
def echo(event: Event) -> Iterator[Any]:
    yield event.key, 0


def _without_keyed() -> Topology:
    builder = TopologyBuilder("versions")
    builder.set_spout("events")
    builder.set_bolt("echo", echo).shuffle_grouping("events")
    builder.set_output("out", key="key", value="said").local_grouping("echo")
    return builder.build()


@pytest.mark.promise("keyed-versions")
@pytest.mark.parametrize("topology", [_keyed(One(), uid="new"), _without_keyed()])
def test_a_waiting_timer_of_a_bolt_whose_state_is_dropped_fails_by_name(
    tmp_path: Path, topology: Topology
) -> None:
    """Be the bolt removed, or another one under its name."""
    runs = StepRuns(_keyed(FailsOnce()), tmp_path, reached_ms=0)
    runs.step([event(1, key=b"k")])
    runs.reached_ms = 11
    runs.step()
    assert [one.event[0] for one in runs.pending()] == [b"k"]
    runs.topology, runs.keys = topology, ()  # as `--drop-state keyed` leaves it
    runs.step([event(20, key=b"l")])
    runs.to_the_end()
    (headers,) = runs.dead_headers()
    assert headers["sequitur-dlq-traceback"] == b"no keyed bolt 'keyed'"
    assert [key for key, _ in runs.records("out")] == [b"k", b"l"]


class Lasting(KeyedBolt):
    fields = ("key", "said")
    state = int
    ttl = "10 ms"

    def process(self, event: Event, key: Key) -> None:
        key.state = event.event_time_ms


class LastingMap(Lasting):
    state_map = dict[str, int]

    def process(self, event: Event, key: Key) -> None:
        key.state_map.put("n", event.event_time_ms)


@pytest.mark.promise("keyed-ttl")
def test_a_key_whose_map_was_dropped_expires(tmp_path: Path) -> None:
    runs = StepRuns(_keyed(LastingMap()), tmp_path, _ONCE, reached_ms=0)
    runs.step([event(1, key=b"k")])
    runs.topology = _keyed(Lasting())
    runs.keys = [one for one in runs.keys if one.component == "keyed"]
    runs.reached_ms = 100
    runs.step()
    assert runs.kept() == []
    assert runs.next_timer_ms is None


class CountsAside(KeyedBolt):
    """Counts beside other calls."""

    fields = ("key", "said")
    state = int

    async def process(self, event: Event, key: Key) -> AsyncIterator[Any]:
        key.state = (key.state or 0) + 1
        yield key.value, [key.state, event.attempt]


class Refuses(BasicBolt):
    """Fails the first attempt for a key of this name."""

    fields = ("key", "said")

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        if tuple["key"] == b"fails" and tuple.attempt == 1:
            raise ValueError("fails")
        collector.emit(tuple.values)


@pytest.mark.promise("keyed-async")
def test_an_event_that_fails_beside_others_is_undone_after_a_part_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images are kept of it alone."""
    images, undo = list[int](), KeyLog.undo

    def noted(log: KeyLog, unfinished: Collection[int]) -> set[tuple[str, bytes]]:
        images.append(len(log.images))
        return undo(log, unfinished)

    monkeypatch.setattr(KeyLog, "undo", noted)
    builder = TopologyBuilder("aside")
    builder.set_spout("events")
    builder.set_bolt("counts", CountsAside(), concurrency=4).fields_grouping("events", "key")
    builder.set_bolt("refuses", Refuses()).local_grouping("counts")
    builder.set_output("out", key="key", value="said").local_grouping("refuses")
    settings = ProcessSettings(max_spout_pending=2)
    runs = StepRuns(builder.build(), tmp_path, settings, reached_ms=0)
    keys = [b"fails", *(b"%d" % number for number in range(20)), b"fails"]
    runs.step([event(number, key=key) for number, key in enumerate(keys)])
    assert images == [1]
    runs.to_the_end()
    found = [json.loads(value or b"") for key, value in runs.records("out") if key == b"fails"]
    assert found == [[1, 2], [2, 2]]


class KillsAside(KeyedBolt):
    """Is called beside other calls. A call may kill the process."""

    fields = ("key", "said")
    state = str

    async def process(self, event: Event, key: Key) -> None:
        key.state = (event.value or b"").decode()
        key.timer("late", at=event.event_time_ms + 10)
        if key.state == "dies":
            await die()

    async def on_timer(self, timer: Timer, key: Key) -> AsyncIterator[Any]:
        if key.state == "kills":
            await die()
        yield key.value, timer.name


@pytest.mark.promise("keyed-timer-kills")
def test_a_timer_that_kills_its_process_beside_other_calls_is_found(tmp_path: Path) -> None:
    runs = StepRuns(_keyed(KillsAside(), concurrency=4), tmp_path, _ONCE, reached_ms=0)
    values = ("good", "kills", "fine")
    runs.step([event(n, value.encode(), key=b"k%d" % n) for n, value in enumerate(values)])
    runs.reached_ms = 100
    runs.step()
    runs.to_the_end()
    assert runs.records("out") == [(b"k0", b"late"), (b"k2", b"late")]
    assert [key for key, _ in runs.dead()] == [b"k1"]
    assert runs.next_timer_ms is None


@pytest.mark.promise("keyed-timer-kills")
def test_no_timer_is_given_up_for_an_event_that_kills_its_process_beside_it(tmp_path: Path) -> None:
    runs = StepRuns(_keyed(KillsAside(), concurrency=4), tmp_path, _ONCE, reached_ms=0)
    runs.step([event(0, b"good", key=b"k0")])
    runs.reached_ms = 100
    given = ((9, b"dies"), (20, b"fine"))
    runs.step([event(at_ms, value, key=b"k%d" % at_ms) for at_ms, value in given])
    runs.to_the_end()
    assert [(key, value) for key, value in runs.dead()] == [(b"k9", b"dies")]
    assert runs.records("out") == [(b"k0", b"late"), (b"k20", b"late")]


class Ends(BasicBolt):
    """Its batch ends in a failure if the timer of a key is in it."""

    fields = ("key", "said")

    def __init__(self) -> None:
        self.is_to_fail = False

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        self.is_to_fail |= tuple["key"] == b"fails"
        collector.emit(tuple.values)

    def finish_batch(self) -> None:
        is_to_fail, self.is_to_fail = self.is_to_fail, False
        if is_to_fail:
            raise ValueError("fails")


@pytest.mark.promise("keyed-timers")
@pytest.mark.parametrize("kind", ["local", "far", "by a field"])
def test_a_timer_to_blame_for_the_end_of_a_batch_is_not_called_again(
    tmp_path: Path, kind: str
) -> None:
    builder = TopologyBuilder("ends")
    builder.set_spout("events")
    _set_late(builder, kind)
    builder.set_bolt("ends", Ends()).local_grouping("late")
    last = "far" if kind == "far" else "ends"
    if kind == "far":
        builder.set_bolt("far", Refuses(), parallelism=2).shuffle_grouping("ends")
    builder.set_output("out", key="key", value="said").local_grouping(last)
    runs = StepRuns(builder.build(), tmp_path, ProcessSettings(max_attempts=2), reached_ms=0)
    runs.step([event(n, b"x", key=key) for n, key in enumerate((b"good", b"fails", b"fine"))])
    runs.reached_ms = 100
    runs.step()
    assert len(runs.pending()) == 3
    runs.to_the_end()
    runs.step()
    runs.to_the_end()
    assert [key for key, _ in runs.dead()] == [b"fails"]
    assert [one["sequitur-dlq-attempts"] for one in runs.dead_headers()] == [b"2"]
    assert runs.next_timer_ms is None
    assert sorted(key for key, _ in runs.records("out") if key) == [b"fine", b"good"]


@bolt(fields=("name", "said"))
def told(given: Tuple) -> Iterator[Any]:
    yield given["key"], given["value"].decode()


class LateByField(Late):
    """Its timers are due together."""

    def process(self, event: Tuple, key: Key) -> None:
        key.state = event["said"]
        key.timer("late", at=(event.event_time_ms // 100 + 1) * 100)


def _set_late(builder: TopologyBuilder, kind: str) -> None:
    if kind == "by a field":
        builder.set_bolt("told", told).local_grouping("events")
        builder.set_bolt("late", LateByField(), 1).fields_grouping("told", "name")
    else:
        builder.set_bolt("late", Late()).fields_grouping("events", "key")


@pytest.mark.promise("keyed-memory")
@pytest.mark.parametrize("kind", ["local", "far", "by a field"])
def test_timers_that_memory_has_no_room_for_are_left_to_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With the events after them. All come in the order of a step without that bound."""
    found = []
    for name, most_bytes in (("bound", 10_000), ("free", 1 << 30)):
        monkeypatch.setattr(keyed, "_MOST_TIMERS_BYTES", most_bytes)
        builder = TopologyBuilder("room")
        builder.set_spout("events")
        _set_late(builder, kind)
        last = "far" if kind == "far" else "late"
        if kind == "far":
            builder.set_bolt("far", Refuses(), parallelism=2).shuffle_grouping("late")
        builder.set_output("out", key="key", value="said").local_grouping(last)
        runs = StepRuns(builder.build(), tmp_path / name, reached_ms=0)
        runs.step([event(number, b"old", key=b"%03d" % number) for number in range(100)])
        runs.reached_ms = 200
        new = range(0, 100, 3)
        runs.step([event(200 + number, b"new", key=b"%03d" % number) for number in new])
        runs.to_the_end()
        runs.reached_ms = 500
        runs.step()
        runs.to_the_end()
        found.append(runs.records("out"))
        called = [result.counts["made"] for result in runs.results]
        assert (max(called) <= 11) == (name == "bound")
        assert sum(called) == len(found[-1]) == 134
        assert [said for _, said in found[-1]] == [b"old"] * 100 + [b"new"] * 34
    if kind == "by a field":  # those of one time have no order
        found = [sorted(one) for one in found]
    assert found[0] == found[1]


class Forgets(KeyedBolt):
    """Keeps much in the map of a key, until its timer is called."""

    fields = ("key", "said")
    state_map = dict[str, bytes]

    def process(self, event: Event, key: Key) -> None:
        if event.value:
            key.state_map.put("much", event.value)
        if self.ttl is None:
            key.timer("late", at=100)

    def on_timer(self, timer: Timer, key: Key) -> None:
        del timer
        key.state_map.clear()


class ForgetsByTtl(Forgets):
    ttl = "50 ms"


@pytest.mark.promise("keyed-memory")
@pytest.mark.parametrize(
    ("kept", "last"), [(Forgets(), None), (ForgetsByTtl(), None), (ForgetsByTtl(), 1_000)]
)
def test_values_of_maps_count_for_the_memory_of_timers(
    kept: KeyedBolt, last: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of keys that have an event in the step in which they are forgotten."""
    monkeypatch.setattr(keyed, "_MOST_TIMERS_BYTES", 10_000)
    runs = StepRuns(_keyed(kept), tmp_path, reached_ms=0)
    runs.step([event(number, bytes(4_000), key=b"%02d" % number) for number in range(20)])
    forgotten, close = list[int](), keyed.StepKeys.close

    def noted(keys: keyed.StepKeys) -> None:
        forgotten.append(len(keys.log.found_entries))
        close(keys)

    monkeypatch.setattr(keyed.StepKeys, "close", noted)
    runs.reached_ms = 1_000
    of_keys = [event(30, b"", key=b"%02d" % number) for number in range(20 if last else 0)]
    runs.step([*of_keys, *(event(at_ms, b"", key=b"last") for at_ms in [last] if at_ms)])
    runs.to_the_end()
    assert sum(forgotten) == 20
    assert max(forgotten) <= 3
    assert runs.next_timer_ms is None


class SetsKiller(KeyedBolt):
    fields = ("key", "said")
    state = int

    def process(self, event: Event, key: Key) -> Iterator[Any]:
        key.state = (key.state or 0) + 1
        said = (event.value or b"").decode()
        if said == "sets":
            key.timer("late", at=100)
        yield key.value, said

    def on_timer(self, timer: Timer, key: Key) -> None:
        del timer, key
        raise KeyboardInterrupt  # stands for the death of the process


@bolt(fields=("key", "said"))
def refuses_once(given: Tuple) -> Iterator[Any]:
    if given["said"] == "fails" and given.attempt == 1:
        raise ValueError("not yet")
    yield given.values


@pytest.mark.promise("keyed-timer-kills")
def test_a_timer_that_kills_its_process_is_given_up_once_where_an_earlier_event_is_undone(
    tmp_path: Path,
) -> None:
    builder = TopologyBuilder("undone")
    builder.set_spout("events")
    builder.set_bolt("sets", SetsKiller()).fields_grouping("events", "key")
    builder.set_bolt("refuses", refuses_once, 2).fields_grouping("sets", "key")
    builder.set_output("out", key="key", value="said").local_grouping("refuses")
    runs = StepRuns(builder.build(), tmp_path, life="1", reached_ms=0)
    runs.step([event(1, b"sets", key=b"k")])
    runs.reached_ms = 200
    runs.step([event(50, b"fails", key=b"k")])
    assert len(runs.pending()) == 1
    runs.to_the_end()
    runs.step()
    assert len(runs.dead()) == 1
    assert runs.records("out") == [(b"k", b"sets"), (b"k", b"fails")]
    assert runs.next_timer_ms is None
