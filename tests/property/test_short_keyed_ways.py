"""Keyed bolts go the executor's short ways, and behave as if there were none.

Each topology runs twice, in the job's tasks and files. A trace keeps the second run off the short
ways, and timers are looked for at each event.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sequitur.consumer.topology import KeyedBolt, TopologyBuilder, bolt
from sequitur.consumer.topology.api.bolt import To
from sequitur.consumer.topology.engine.keyed import KeyedRunner
from sequitur.consumer.topology.engine.keyed_executor import KeyedExecutor
from sequitur.consumer.topology.engine.task_output import TaskOutput
from sequitur.pipelines.topology.batch import FileBatch
from sequitur.pipelines.topology.key_files import KeyFiles
from tests.support.examples import examples
from tests.support.step_runs import NoTrace, StepRuns, each_of, event
from tests.support.topology_pairs import settings as settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology import Event, EventValues, Key, Timer, Topology, Tuple

_PARTITIONS: Final = 2
_MANY: Final = 150
"""More than the executor lets wait before it follows them."""
_FIELDS: Final = ("key", "part", "said")
_calls: Final[list[Any]] = []
"""What each call was given and found, in order."""


class Does(KeyedBolt):
    """Does what its events and timers say, and fails as they say."""

    fields = _FIELDS
    streams = MappingProxyType({"side": _FIELDS})
    state = int
    state_map = dict[int, int]
    state_list = list[int]

    def __init__(self, ttl_ms: int | None, timers: Sequence[Mapping[str, Any]]) -> None:
        self.ttl = None if ttl_ms is None else ttl_ms / 1_000
        self.timers = timers
        self.kept: Key | None = None

    def process(self, event: Event, key: Key) -> Any:
        said = json.loads(event.value or b"")
        return self._do(("event", event["offset"]), event.attempt, said, event.event_time_ms, key)

    def on_timer(self, timer: Timer, key: Key) -> Any:
        drawn = zlib.crc32(b"%b %b %d" % (key.value, timer.name.encode(), timer.at_ms))
        said = self.timers[drawn % len(self.timers)]
        return self._do((timer.name, timer.at_ms), timer.attempt, said, timer.at_ms, key)

    def _do(self, what: Any, attempt: int, said: Any, at_ms: int, key: Key) -> Any:
        found = [key.state, [*key.state_map.range()], [*key.state_list], key.timers]
        _calls.append((what, key.value, attempt, found))
        for name, number in said["does"]:
            _DO[name](key, number, at_ms, said)
        if said["keeps"] and self.kept is not None:
            self.kept.timer("too late", at=at_ms)
        self.kept = key
        how, times = said["how"]
        return _WAYS[how if attempt <= times else "yield"](key, said)


def _raise(error: BaseException) -> None:
    raise error


async def _awaited(*values: Any) -> list[Any]:
    return [*values]


def _in_the_middle(key: Key, said: Any) -> Iterator[Any]:
    """Change the key between two tuples."""
    yield key.value, 0, said
    key.state = (key.state or 0) + 1_000
    key.emit((key.value, 1, said))
    key.timer("middle", at=7)
    yield key.value, 2, said


_WAYS: Final[Mapping[str, Callable[[Key, Any], Any]]] = {
    "yield": lambda key, said: each_of((key.value, 0, said)),
    "two": lambda key, said: each_of((key.value, 0, said), (key.value, 1, said)),
    "many": lambda key, said: each_of(*((key.value, part, said) for part in range(_MANY))),
    "middle": _in_the_middle,
    "list": lambda key, said: [(key.value, 0, said)],
    "field": lambda key, said: each_of({"key": key.value, "part": 0, "said": said}),
    "side": lambda key, said: each_of(To("side", (key.value, 0, said))),
    "awaited": lambda key, said: _awaited((key.value, 0, said)),
    "nothing": lambda *_: None,
    "none": lambda *_: each_of(),
    "narrow": lambda key, said: each_of((key.value, 0, said), (key.value,)),
    "tuple": lambda key, said: (key.value, 0, said),
    "raise": lambda *_: _raise(ValueError("now")),
    "raise after": lambda key, said: each_of((key.value, 0, said), error=ValueError("after")),
    "exit": lambda key, said: each_of((key.value, 0, said), error=SystemExit(3)),
    "unwritable": lambda key, said: each_of((key.value, float("nan"), said)),
}
_DO: Final[Mapping[str, Callable[[Key, int, int, Any], Any]]] = {
    "count": lambda key, number, *_: setattr(key, "state", (key.state or 0) + number),
    "forget": lambda key, *_: setattr(key, "state", None),
    "wrong": lambda key, *_: setattr(key, "state", "text"),
    "put": lambda key, name, *_: key.state_map.put(name, key.state_map.get(name, 0) + 1),
    "delete": lambda key, name, *_: key.state_map.delete(name),
    "append": lambda key, number, *_: key.state_list.append(number),
    "drop": lambda key, number, *_: key.state_list.drop(number),
    "timer": lambda key, n, at_ms, _: key.timer(f"t{n % 3}", at=at_ms + 3 * n - 1),
    "again": lambda key, n, at_ms, _: key.timer("again", at=at_ms + 5 + n),
    "cancel": lambda key, number, *_: key.cancel(f"t{number % 3}"),
    "emit": lambda key, number, _, said: key.emit((key.value, number, said)),
    "emit field": lambda key, number, _, said: key.emit(
        {"key": key.value, "part": number, "said": said}
    ),
    "emit then": lambda key, number, at_ms, said: key.emit(
        (key.value, number, said), event_time_ms=at_ms - number
    ),
    "emit list": lambda key, number, _, said: key.emit([key.value, number, said]),
    "late": lambda key, *_: key.count_late(),
}


@bolt(fields=_FIELDS)
def behind(given: Tuple) -> Iterator[Any]:
    how, times = given["said"]["behind"]
    part = repr(given["part"])  # one that is not a number equals none
    _calls.append(("behind", given["key"], part, given.attempt, given.event_time_ms))
    if how == "raise" and given.attempt <= times:
        raise ValueError("behind")
    yield given.values
    if how == "raise after" and given.attempt <= times:
        raise ValueError("behind")


class Sums(KeyedBolt):
    """Sums parts up by another field, and says so by a timer."""

    fields = _FIELDS
    state = int

    def process(self, given: Tuple, key: Key) -> Any:
        _calls.append(("sums", key.value, key.state, given.attempt))
        key.state = (key.state or 0) + 1
        key.timer("told", at=given.event_time_ms + 4)
        key.emit((b"seen", key.value, given["said"]))

    def on_timer(self, timer: Timer, key: Key) -> Any:
        _calls.append(("told", key.value, key.state, timer.at_ms))
        yield b"told", key.state, key.value


def _topology(shape: Mapping[str, Any]) -> Topology:
    builder = TopologyBuilder("keyed")
    builder.set_spout("events")
    made = Does(shape["ttl_ms"], shape["timers"])
    builder.set_bolt("does", made).fields_grouping("events", "key")
    last = builder.set_bolt("behind", behind)
    if shape["is_far"]:
        last.fields_grouping("does", "key")
    else:
        last.local_grouping("does")
    if shape["beside"]:
        beside = Does(None, shape["timers"])
        builder.set_bolt("beside", beside).fields_grouping("events", "key")
        builder.set_output("beside-out", key="key", value="part").local_grouping("beside")
    if shape["is_read_twice"]:
        builder.set_output("does-out", key="key", value="part").local_grouping("does")
    if shape["by_field"]:
        builder.set_bolt("sums", Sums(), 2).fields_grouping("behind", "part")
        builder.set_output("sums-out", key="key", value="part").local_grouping("sums")
    builder.set_output("side-out", key="key", value="part").local_grouping("does", "side")
    builder.set_output("out", key="key", value="part").local_grouping("behind")
    return builder.build()


_HOW = st.tuples(
    st.one_of(st.just("yield"), st.sampled_from(sorted(_WAYS))), st.sampled_from([0, 1, 1, 2, 9])
)
_DOES = st.lists(st.tuples(st.sampled_from(sorted(_DO)), st.integers(0, 4)), max_size=4)
_SAID = st.fixed_dictionaries({
    "how": _HOW,
    "behind": st.tuples(
        st.sampled_from(["yield", "yield", "yield", "raise", "raise after"]),
        st.sampled_from([1, 2, 9]),
    ),
    "does": _DOES,
    "keeps": st.sampled_from([False] * 9 + [True]),
})  # fmt: skip
_KEYS = st.sampled_from([b"a", b"b", b"c", None])
_STEPS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b", b"c", None]), st.sampled_from([0, 0, 1, 3, 9]), _SAID
        ),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=3,
)
_SHAPES = st.fixed_dictionaries({
    "ttl_ms": st.sampled_from([None, 6, 20]),
    "timers": st.lists(_SAID, min_size=1, max_size=3),
    "is_far": st.booleans(),
    "beside": st.booleans(),
    "is_read_twice": st.sampled_from([False, False, True]),
    "by_field": st.booleans(),
})  # fmt: skip


def _steps(steps: Any) -> list[list[EventValues]]:
    """Events in the order of their times. A step begins at a later time than the one before."""
    found: list[list[EventValues]] = []
    at_ms = number = 0
    for step in steps:
        own = []
        at_ms += 1
        for key, later_ms, said in step:
            at_ms += later_ms
            place = 0 if key is None else key[0] % _PARTITIONS
            one = event(number, json.dumps(said).encode(), key=key, partition=place)
            own.append(one._replace(event_time_ms=at_ms))
            number += 1
        found.append(own)
    return found


def _went(
    steps: Sequence[Sequence[EventValues]], shape: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Run steps to their end; return all that comes of them, and every call in order."""
    _calls.clear()
    with tempfile.TemporaryDirectory(prefix="keyed-") as folder:
        topology = _topology(shape)
        runs = StepRuns(topology, Path(folder), settings_of(**given), _PARTITIONS, life="keyed")
        each = []

        def note() -> None:
            waits = [(one.event[3:7], one.attempts, one.reason) for one in runs.pending()]
            each.append([waits, _kept(runs), runs.next_timer_ms, dict(runs.counts)])

        for step in steps:
            runs.reached_ms = step[-1].event_time_ms
            runs.step(step)
            runs.now_ms += 70
            note()
        runs.reached_ms = (runs.reached_ms or 0) + 12
        runs.step()
        note()
        for _ in range(_MOST_STEPS):
            if runs.next_due_ms is None:
                break
            runs.now_ms = max(runs.now_ms, runs.next_due_ms)
            runs.step()
            note()
        told = [f"sequitur-dlq-{one}" for one in ("reason", "attempts", "path", "traceback")]
        outputs = [one.id for one in topology.outputs]
        return {
            "records": {name: runs.records(name) for name in outputs},
            "immediately": {name: runs.records(name, is_all=True) for name in outputs},
            "dead": runs.dead(),
            "told": [[one.get(name) for name in told] for one in runs.dead_headers()],
            "late": [dict(one.late_for_window) for one in runs.results],
            "each": each,
            "calls": list(_calls),
        }


_MOST_STEPS: Final = 6
"""A timer that sets itself has no end."""


def _kept(runs: StepRuns) -> dict[Any, Any]:
    """What is kept of each key, as it is stored, and how many keys and timers are counted."""
    found: dict[Any, Any] = {}
    for one in runs.keys:
        store = KeyFiles(*one.sources)
        rows = list(store.range(b"", b"\xff" * 16))
        found[one.component, one.task] = rows, one.keys, one.timers, one.blocked, one.tied
    return found


def _feed_and_look(feed: Any) -> Any:
    """Look for timers that are due before each event, whatever may be due first."""

    def fed(self: KeyedExecutor, root: Any, values: Any, **more: Any) -> None:
        self.call_timers(values[3:7])
        feed(self, root, values, **more)

    return fed


_PLAIN: Final = {"how": ("yield", 9), "behind": ("yield", 1), "does": [], "keeps": False}
_LOCAL: Final = {"is_far": False, "beside": False, "is_read_twice": False, "by_field": False}


def _long(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(FileBatch, "trace", NoTrace())
    patched.setattr(KeyedExecutor, "feed", _feed_and_look(KeyedExecutor.feed))


@pytest.mark.promise("process-random-failures-retries", "keyed-state-undone")
@settings(max_examples=examples(0.4))  # each has steps with files, twice
@example(
    steps=[
        [
            (b"a", 0, {**_PLAIN, "does": [("timer", 1), ("count", 1), ("emit then", 3)]}),
            (b"a", 2, {**_PLAIN, "how": ("raise", 1), "does": [("count", 2)]}),
            (b"a", 1, {**_PLAIN, "how": ("two", 9)}),
        ]
    ],
    shape={"ttl_ms": 6, "timers": [{**_PLAIN, "how": ("raise after", 1)}], **_LOCAL},
    attempts=2,
    most=None,
)
@given(
    steps=_STEPS,
    shape=_SHAPES,
    attempts=st.sampled_from([1, 2, 3]),
    most=st.sampled_from([None, None, 1, 3]),
)
def test_the_short_ways_of_keyed_bolts_change_nothing(
    steps: Any, shape: Any, attempts: int, most: int | None
) -> None:
    """The same calls in the same order, records, dead letters, retries, keys and counts."""
    most = None if shape["by_field"] else most
    given, events = {"max_attempts": attempts, "max_spout_pending": most}, _steps(steps)
    short = _went(events, shape, given)
    with pytest.MonkeyPatch.context() as patched:
        _long(patched)
        assert _went(events, shape, given) == short


def test_only_a_trace_keeps_keyed_bolts_off_the_short_ways() -> None:
    """Otherwise the test above compares a way with itself."""
    shape = {"ttl_ms": None, "timers": [_PLAIN], **_LOCAL}
    said = {**_PLAIN, "does": [("emit", 1)]}
    made, emitted = KeyedRunner._short_keyed_run, TaskOutput.emit
    taken: list[str] = []

    def noted(self: KeyedRunner) -> Any:
        taken.append("run")
        return made(self)

    def long(self: TaskOutput, *given: Any) -> Any:
        taken.append("long")
        return emitted(self, *given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KeyedRunner, "_short_keyed_run", noted)
        patched.setattr(TaskOutput, "emit", long)
        _went(_steps([[(b"a", 0, said)]]), shape, {})
        assert taken
        assert set(taken) == {"run"}
        taken.clear()
        _long(patched)
        _went(_steps([[(b"a", 0, said)]]), shape, {})
        assert set(taken) == {"long"}
