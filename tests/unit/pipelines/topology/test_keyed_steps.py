"""Keyed bolts in a job's steps: files of keys, timers that kill their process, and replays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.topology import KeyedBolt, ProcessSettings, TopologyBuilder
from sequitur.errors import StateFormatError
from sequitur.pipelines.topology.kept_keys import KeptKeys
from sequitur.pipelines.topology.processed import Processed
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import Event, Key, Timer, Topology

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
    assert json.loads(json.dumps(dump(read, tmp_path))) == json.loads(json.dumps(document))
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
