"""`sequitur state`: what keyed bolts keep, read beside the job; and what metrics show of it."""

from __future__ import annotations

import gc
import json
from collections import Counter
from random import Random
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from sequitur.cli.main import app
from sequitur.consumer.topology import KeyedBolt, ProcessSettings, TopologyBuilder
from sequitur.consumer.topology.engine.key_store import KeyChange, KeyChanges
from sequitur.consumer.topology.engine.keyed import StepKeys
from sequitur.errors import CheckpointError, KeyedStateError
from sequitur.pipelines.ordering.job_metrics import JobMetrics
from sequitur.pipelines.topology import kept_keys
from sequitur.pipelines.topology.batch import _stores
from sequitur.pipelines.topology.kept_keys import BoltKeys, KeptKeys, KeyFile, KeyMerges
from sequitur.pipelines.topology.kept_state import KeptState
from sequitur.testing import ReorderTester
from tests.support.done_step import done_step
from tests.support.keyed_counts import MOST_ATTEMPTS, WHERE, counting
from tests.support.step_runs import StepRuns, event
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import Event, Key, Timer, Topology

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


class Texts(KeyedBolt):
    """Keeps the last text of each key, with a timer; `fails` fails, `gone` forgets the key."""

    fields = ("timer", "key")
    state = dict[str, str]

    def process(self, event: Event, key: Key) -> None:
        said = json.loads(event.value or b"")["said"]
        key.state = {"said": said}
        key.timer("later", at=event.event_time_ms + 3_600_000)
        if said == "fails":
            raise ValueError(said)
        if said == "gone":
            key.state = None
            key.cancel("later")

    def on_timer(self, timer: Timer, key: Key) -> Iterator[Any]:
        yield timer.name, key.value


def _texts() -> Topology:
    builder = TopologyBuilder("texts")
    builder.set_spout("events")
    builder.set_bolt("texts", Texts()).fields_grouping("events", "key")
    builder.set_output("out", topic="out", key="key", value="timer").local_grouping("texts")
    return builder.build()


def _tester(**more: Any) -> ReorderTester:
    return ReorderTester(_SETTINGS, _texts(), process=_PROCESS, now_ms=_T0, **more)


def _row(key: bytes, said: str, at_ms: int = _T0) -> dict[str, Any]:
    return {"key": key, "value": json.dumps({"said": said, "at": at_ms})}


def _said(folder: Path, *words: str) -> str:
    command = ["state", words[0], str(folder), *words[1:]]
    run = CliRunner().invoke(app, command, env={"COLUMNS": "120"}, catch_exceptions=False)
    assert run.exit_code == 0
    return run.output


@pytest.mark.promise("keyed-looked-at")
def test_commands_show_what_is_kept_of_a_job_that_runs() -> None:
    with _tester(partitions=2) as tester:
        tester.run([_row(b"ann", "hello"), _row(b"bob", "gone"), _row(b"\xff", "x")])
        tester.run([_row(b"ann", "good day", _T0 + 5), _row(b"eve", "hi", _T0 + 6)])
        tester.drain()
        folder = tester.folder
        step, _ = KeptState.at(str(folder)).bolts()
        ann = {
            "step": step,
            "key": "ann",
            "state": {"said": "good day"},
            "timers": {"later": _T0 + 3_600_005},
        }
        assert json.loads(_said(folder, "get", "texts", "ann")) == {"bolt": "texts", **ann}
        exported = [json.loads(line) for line in _said(folder, "export", "texts").splitlines()]
        assert [one["key"] for one in exported] == ["ann", "eve", {"base64": "/w=="}]
        assert exported[0] == ann
        listed = json.loads(_said(folder, "list", "texts", "--json", "-n", "2"))
        assert listed["has_more"]
        assert [(one["key"], one["timers"]) for one in listed["keys"]] == [("ann", 1), ("eve", 1)]
        (only,) = json.loads(_said(folder, "list", "texts", "--json", "--prefix", "e"))["keys"]
        assert (only["key"], only["next_timer_ms"]) == ("eve", _T0 + 3_600_006)
        table = _said(folder, "list", "texts", "--limit", "1")
        assert f"Keys of texts after step {step}" in table
        assert "There are more than 1 keys" in table
        bolts = json.loads(_said(folder, "list", "--json"))
        assert (bolts["step"], bolts["bolts"]["texts"]["keys"]) == (step, 3)
        assert "texts" in _said(folder, "list")


class Lists(KeyedBolt):
    """Keeps the texts of a key in a list, and their lengths by text in a map."""

    fields = ("key", "value")
    state_map = dict[bytes, int]
    state_list = list[str]

    def process(self, event: Event, key: Key) -> None:
        said = json.loads(event.value or b"")["said"]
        key.state_list.append(said)
        key.state_map.put(said.encode(), len(said))


@pytest.mark.promise("keyed-looked-at", "keyed-kinds")
def test_commands_show_the_map_and_the_list_of_a_key() -> None:
    """They count to the bolt, and not as a bolt of their own."""
    builder = TopologyBuilder("lists")
    builder.set_spout("events")
    builder.set_bolt("lists", Lists()).fields_grouping("events", "key")
    builder.set_output("out", "out").local_grouping("lists")
    topology = builder.build()
    with ReorderTester(_SETTINGS, topology, process=_PROCESS, now_ms=_T0) as tester:
        tester.run([_row(b"k", "b", _T0 + 1), _row(b"k", "a", _T0 + 2), _row(b"k\0", "c", _T0 + 3)])
        folder = tester.folder
        found = json.loads(_said(folder, "get", "lists", "k"))
        assert (found["map"], found["list"]) == ([["a", 1], ["b", 1]], ["b", "a"])
        exported = [json.loads(line) for line in _said(folder, "export", "lists").splitlines()]
        assert [one["list"] for one in exported] == [["b", "a"], ["c"]]
        bolts = json.loads(_said(folder, "list", "--json"))["bolts"]
        assert {bolt: one["keys"] for bolt, one in bolts.items()} == {"lists": 2}


@pytest.mark.promise("keyed-looked-at")
def test_what_is_not_there_is_told_with_a_way_out(tmp_path: Path) -> None:
    with _tester() as tester:
        tester.report()  # the job has started, and there are no steps yet
        with pytest.raises(CheckpointError, match="reorder inspect"):
            KeptState.at(str(tester.folder)).bolts()
        tester.run([{"value": "without an event time"}])
        state = KeptState.at(str(tester.folder))
        with pytest.raises(KeyedStateError, match="no keyed bolt has kept a key"):
            list(state.all("other"))
        tester.run([_row(b"ann", "hello")])
        with pytest.raises(KeyedStateError, match=r"bolt 'other'.*it keeps keys of 'texts'"):
            list(state.all("other"))
        with pytest.raises(KeyedStateError, match=r"nothing of key b'bob' .*sequitur state list"):
            state.get("texts", b"bob")
    with pytest.raises(CheckpointError, match="not a reorder job's checkpoint"):
        KeptState.at(str(tmp_path)).bolts()


@pytest.mark.promise("keyed-looked-at")
def test_a_file_that_is_merged_away_is_read_again_from_the_newest_step() -> None:
    """Keys that were read come once; the others are those of a later step, and say so."""
    keys = [b"%04d" % number for number in range(1_500)]
    with _tester() as tester:
        tester.run([_row(key, "a" * 200) for key in keys])
        state = KeptState.at(str(tester.folder))
        found = state.all("texts")
        first = next(found)
        begun = {path for path in (tester.folder / "keyed").rglob("*") if path.is_file()}
        for number in range(1, 100):
            tester.run([_row(key, "b" * 200, _T0 + number) for key in keys])
            if not any(path.exists() for path in begun):
                break
        rest = list(found)
        assert [first.key, *(one.key for one in rest)] == keys
        assert {one.step for one in rest[-100:]} == {state.bolts()[0]} != {first.step}
        assert rest[-1].state == {"said": "b" * 200}


@pytest.mark.promise("keyed-looked-at")
def test_a_file_that_is_missing_is_damage() -> None:
    with _tester() as tester:
        tester.run([_row(b"%04d" % number, "a" * 200) for number in range(100)])
        for path in (tester.folder / "keyed").rglob("*"):
            if path.is_file():
                path.unlink()
        with pytest.raises(CheckpointError, match="Put the checkpoint back"):
            list(KeptState.at(str(tester.folder)).all("texts"))


@pytest.mark.promise("keyed-looked-at")
@pytest.mark.parametrize("stages", [1, 2])
def test_numbers_of_keys_and_timers_are_those_of_the_keys(stages: int) -> None:
    """Calls and trees fail, files are merged, and jobs start again meanwhile."""
    random = Random(stages)
    blocked, topology = 0, counting(stages, "out")
    with ReorderTester(_SETTINGS, topology, process=_PROCESS, partitions=2, now_ms=_T0) as tester:
        state = KeptState.at(str(tester.folder))
        for step in range(40):
            at_ms = _T0 + 4 * step
            tester.run(
                {
                    "key": random.choice([b"a", b"b", b"c", b"d"]),
                    "value": json.dumps(
                        {
                            "n": random.randrange(100),
                            "fails": random.choice([0, 0, 0, 1, MOST_ATTEMPTS]),
                            "where": random.choice(WHERE),
                            "at": at_ms + number,
                        }
                    ),
                }
                for number in range(4)
            )
            tester.advance(random.choice([0, 0.01, 0.05]))
            if random.random() < 0.1:
                tester.restart()
            for bolt, counts in state.bolts()[1].items():
                kept = list(state.all(bolt))
                timers = sum(len(one.timers) for one in kept)
                assert (counts.keys, counts.timers) == (len(kept), timers)
                blocked += counts.blocked
        assert blocked > 0


@pytest.mark.promise("keyed-looked-at")
def test_blocked_keys_are_those_of_events_that_wait() -> None:
    with _tester() as tester:
        state = KeptState.at(str(tester.folder))
        tester.run([_row(b"ann", "fails"), _row(b"ann", "held"), _row(b"bob", "fails")])
        assert state.bolts()[1]["texts"].blocked == 2
        for _ in range(MOST_ATTEMPTS + 1):
            tester.advance(1)
        assert state.bolts()[1]["texts"] == BoltKeys(1, state.bolts()[1]["texts"].size_bytes, 1, 0)
        assert json.loads(_said(tester.folder, "get", "texts", "ann"))["state"] == {"said": "held"}


@pytest.mark.promise("keyed-looked-at")
def test_metrics_show_what_each_bolt_keeps() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    bolts = {"a": BoltKeys(5, 700, 3, 1, 6), "b": BoltKeys(1, 90, 0, 0)}
    metrics.show_keys(lambda: bolts)
    metrics(*done_step())
    names = ("keys", "keys_bytes", "key_timers", "keys_blocked", "keys_tied_total")
    for of, name in enumerate(names):
        for bolt, counts in bolts.items():
            shown = registry.get_sample_value(f"sequitur_process_{name}", {"bolt": bolt})
            assert shown == counts[of]


@pytest.mark.promise("keyed-memory")
def test_memory_for_keys_is_bounded_and_what_is_forgotten_is_read_again() -> None:
    """The bound is one for all tasks of a process."""
    keys = [b"%05d" % number for number in range(4_000)]
    process = ProcessSettings.model_validate({"state_memory": "1 MiB"})
    said = "a" * 1_000
    with ReorderTester(_SETTINGS, _texts(), process=process, partitions=3, now_ms=_T0) as tester:
        for begin in range(0, len(keys), 500):
            tester.run([_row(key, said, _T0 + begin) for key in keys[begin : begin + 500]])
        tester.run([_row(key, "gone", _T0 + 5_000) for key in keys[::2]])
        tester.drain()
        _, stores = _stores[tester.folder.resolve()]
        assert len(stores) == 3
        held: list[Any] = [*(one._kept for one in stores.values())]
        held += [one._blocks for one in stores.values()]
        assert sum(one.memory_bytes for one in stores.values()) <= 1 << 20
        sizes = [one._size_of(*kept) for one in held for kept in (one._new | one._old).items()]
        assert 1 << 19 < sum(sizes) <= 5 << 18
        state = KeptState.at(str(tester.folder))
        assert [one.key for one in state.all("texts")] == keys[1::2]
        assert state.bolts()[1]["texts"].keys == len(keys) // 2


@pytest.mark.promise("keyed-memory")
@pytest.mark.parametrize("field", ["key", "value"])
def test_a_process_lets_go_of_the_keys_of_a_step(tmp_path: Path, field: str) -> None:
    """Bolts that it keeps for the next step refer to what they have last run in."""
    builder = TopologyBuilder("texts")
    builder.set_spout("events")
    builder.set_bolt("texts", Texts()).fields_grouping("events", field)
    runs = StepRuns(builder.build(), tmp_path, life="a life")
    before = {id(one) for one in gc.get_objects() if isinstance(one, StepKeys)}
    runs.step([event(number, b'{"said": "a"}', key=b"%d" % number) for number in range(10)])
    found = [one for one in gc.get_objects() if isinstance(one, StepKeys)]
    of_step = [one for one in found if id(one) not in before]
    assert of_step, "no bolt is kept"
    assert not any(one._read or one.log.left or one.log.found for one in of_step)


@pytest.mark.promise("keyed-memory")
def test_what_a_try_that_did_not_count_has_read_is_read_again(tmp_path: Path) -> None:
    """A process may have had the task in a try at the step, and not in the next one."""
    batch = replace(StepRuns(_texts(), tmp_path, life="a life")._batch(), run="a")
    place = "texts", 0

    def changed(entry: bytes) -> KeyFile:
        return batch.write_changes(KeyChanges([KeyChange(b"key", entry, None)]))

    first, second = changed(b"first"), changed(b"second")
    assert batch.key_store(place, [first]).get(b"key") == b"first"
    store = replace(batch, run="b").key_store(place, [second])
    assert store.get(b"key") == b"second"
    assert replace(batch, run="c", counted=("b",)).key_store(place, [second]) is store


@pytest.mark.promise("keyed-memory")
def test_a_process_goes_on_with_the_keys_of_the_step_before() -> None:
    with _tester() as tester:
        found = []
        for number in range(3):
            tester.run([_row(b"key", "said", _T0 + number)])
            found.append(list(_stores[tester.folder.resolve()][1].values()))
        assert found[1:] == found[:-1]


@pytest.mark.promise("keyed-memory")
def test_merges_that_have_not_begun_are_forgotten_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on, calls = Flag(), Flag(), Counter[str]()

    def merge(_: Any, changes: Any, *__: Any, **___: Any) -> KeyFile:
        calls["merges"] += 1
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        file: KeyFile = changes[0]
        return file

    monkeypatch.setattr(kept_keys, "_merge", merge)
    merged = tuple(KeyFile(inline=b"%d" % number) for number in range(16))
    kept = [KeptKeys("texts", task, None, merged) for task in range(3)]
    with _tester() as tester:
        tester.run([_row(b"key", "said", _T0)])
        engine: Any = tester._engine
        steps = engine._steps
        merges: KeyMerges = steps._processing._runs._merges
        merges.begin(1, kept)
        assert begun.wait(PATIENCE_S)
        steps.close()
        assert len(merges.folders) == 1
        goes_on.set()
        merges._thread.submit(int).result(PATIENCE_S)
        taken_in = merges.take_in(kept)
        assert [len(one.changes) for one in taken_in] == [1, 16, 16]
        assert calls["merges"] == 1
        merges.begin(2, taken_in)
        merges._thread.submit(int).result(PATIENCE_S)
        assert calls["merges"] == 3
