"""What a keyed bolt does in a call: its key's state and timers, and what is refused."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    EventValues,
    KeyedBolt,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
)
from sequitur.consumer.topology.api.keyed import Entry, SetTimer
from sequitur.consumer.topology.engine import keyed
from sequitur.consumer.topology.engine.key_store import KeyChange, MemoryKeyStore, SharedStore
from sequitur.consumer.topology.engine.keyed import StepKeys, encoded
from sequitur.errors import KeyedStateError, TopologyBuildError, TopologyError
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Event, Key, Timer, Topology, Tuple

_ONCE = ProcessSettings(max_attempts=1)


class Count(msgspec.Struct):
    number: int
    texts: list[str] = []


class Calls(KeyedBolt):
    """Does in a call what the event says."""

    fields = ("key", "said")
    state = Count

    def process(self, event: Event, key: Key) -> None:
        _CALLS[(event.value or b"").decode()](event, key)

    def on_timer(self, timer: Timer, key: Key) -> None:
        key.emit((key.value, [timer.name, timer.at_ms]))
        if timer.name in _CALLS:
            _CALLS[timer.name](timer, key)


_CALLS: dict[str, Callable[[Any, Key], Any]] = {}


def _call(function: Callable[[Any, Key], Any]) -> Callable[[Any, Key], Any]:
    _CALLS[function.__name__] = function
    return function


@_call
def count(_: Any, key: Key) -> None:
    number = 1 + (key.state.number if key.state else 0)
    key.state = Count(number)
    key.emit((key.value, number))


@_call
def fail(_: Any, key: Key) -> None:
    key.state = Count(100)
    key.timer("of a failure", at=0)
    raise ValueError("no")


@_call
def in_place(_: Any, key: Key) -> None:
    key.state.texts.append("more")


@_call
def in_place_and_fail(_: Any, key: Key) -> None:
    key.state.texts.append("more")
    raise ValueError("no")


@_call
def assigned(_: Any, key: Key) -> None:
    state = key.state
    state.texts.append("more")
    key.state = state


@_call
def no_state(_: Any, key: Key) -> None:
    key.state = None
    key.emit((key.value, [key.state]))


@_call
def wrong_type(_: Any, key: Key) -> None:
    key.state = Count("one")  # type: ignore[arg-type]


@_call
def too_large(_: Any, key: Key) -> None:
    key.state = Count(1, ["x" * (1 << 20)])


@_call
def timers(event: Any, key: Key) -> None:
    key.timer("late", at=event.event_time_ms + 10)
    key.timer("soon", at=event.event_time_ms + 5)
    key.timer("soon", at=event.event_time_ms + 6)
    key.timer("never", at=event.event_time_ms + 1)
    key.cancel("never")
    key.cancel("unknown")
    key.emit((key.value, key.timers))


@_call
def late(_: Any, key: Key) -> None:
    key.timer("after late", at=0)


@_call
def loop(event: Any, key: Key) -> None:
    key.timer("loop", at=event.event_time_ms if hasattr(event, "key") else event.at_ms)


@_call
def no_number(_: Any, key: Key) -> None:
    key.timer("when", at=1.5)  # type: ignore[arg-type]


@_call
def nul(_: Any, key: Key) -> None:
    key.timer("\0expiry", at=1_000)


@_call
def kept_key(_: Any, key: Key) -> None:
    _KEPT.append(key)


@_call
def of_another_call(_: Any, __: Key) -> None:
    _KEPT[-1].emit((b"", 1))


_KEPT: list[Key] = []


def _topology(bolt: KeyedBolt | None = None, name: str = "calls") -> Topology:
    builder = TopologyBuilder(name)
    builder.set_spout("events")
    builder.set_bolt("calls", bolt or Calls()).fields_grouping("events", "key")
    builder.set_output("out", key="key", value="said").local_grouping("calls")
    return builder.build()


def _said(tester: TopologyTester) -> list[Any]:
    return [msgspec.json.decode(value or b"") for _, value in tester.records("out")]


@pytest.mark.promise("keyed-state-undone")
def test_a_failed_event_changes_neither_state_nor_timers() -> None:
    tester = TopologyTester(_topology(), _ONCE)
    tester.run([("k", "count", 1), ("k", "fail", 2), ("k", "count", 3)], watermark_ms=9)
    tester.retry_all()
    assert _said(tester) == [1, 2]
    assert [one.event.value for one in tester.dead_letters] == [b"fail"]
    assert tester.made == 0


def test_keys_and_tasks_have_states_of_their_own() -> None:
    tester = TopologyTester(_topology(), partitions=2)
    for _ in range(2):
        tester.run([(key, "count") for key in "abcd"])
    assert sorted(tester.records("out")) == [
        (key.encode(), said) for key in "abcd" for said in (b"1", b"2")
    ]


def test_none_forgets_the_state_of_a_key() -> None:
    tester = TopologyTester(_topology())
    tester.run([("k", "count"), ("k", "no_state"), ("k", "count")])
    assert _said(tester) == [1, [None], 1]


@pytest.mark.promise("keyed-in-place")
def test_a_state_that_is_changed_in_place_is_an_error_in_a_tester() -> None:
    tester = TopologyTester(_topology(), _ONCE)
    tester.run([("k", "count", 1), ("k", "assigned", 2), ("k", "in_place", 3)])
    (letter,) = tester.dead_letters
    assert letter.event.value == b"in_place"
    assert "in place, which does not count: assign it to key.state" in letter.detail


@pytest.mark.promise("keyed-in-place")
@pytest.mark.parametrize(("what", "warnings"), [("in_place", 1), ("in_place_and_fail", 0)])
def test_a_job_warns_of_a_state_that_is_changed_in_place_by_a_call_that_counts(
    what: str, warnings: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = StepRuns(_topology(name=what), tmp_path, _ONCE)
    for value in ("count", what):
        steps.step([event(steps.number, value.encode(), key=b"k")])
    told = [one for one in caplog.records if "in place" in one.getMessage()]
    assert len(told) == warnings


@pytest.mark.promise("keyed-bounds")
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("wrong_type", "Expected `int`, got `str`"),
        ("too_large", "would keep 10485"),
        ("no_number", "the name is text that does not begin with NUL, and `at` an int in ms"),
        ("nul", "the name is text that does not begin with NUL, and `at` an int in ms"),
        ("of_another_call", "is of a call that is over"),
    ],
)
def test_what_a_key_cannot_keep_fails_its_event(what: str, why: str) -> None:
    tester = TopologyTester(_topology(), _ONCE)
    tester.run([("k", "kept_key", 1), ("k", what, 2), ("k", "count", 3)])
    tester.retry_all()
    (letter,) = tester.dead_letters
    assert why in letter.detail
    assert _said(tester) == [1]


def test_an_event_without_a_key_fails() -> None:
    tester = TopologyTester(_topology(), _ONCE)
    tester.run([(None, "count")])
    assert "an event without a key" in tester.dead_letters[0].detail


@pytest.mark.promise("keyed-timers")
def test_timers_are_called_in_event_time_order_once_their_time_is_reached() -> None:
    """The last setting of a name counts. One that is due already follows in the same step."""
    tester = TopologyTester(_topology())
    tester.run([("k", "timers", 100)])
    assert _said(tester) == [{"late": 110, "soon": 106}]
    tester.run([("l", "count", 109)])
    assert _said(tester)[1:] == [["soon", 106], 1]
    tester.run(watermark_ms=110)
    assert _said(tester)[3:] == [["late", 110], ["after late", 0]]
    tester.run(watermark_ms=1_000)
    assert (tester.made, tester.made_acked, len(_said(tester))) == (3, 3, 5)


@pytest.mark.promise("keyed-bounds")
def test_timers_that_set_themselves_for_now_end_after_a_thousand() -> None:
    tester = TopologyTester(_topology(), _ONCE)
    tester.run([("k", "loop", 100), ("k", "count", 200)])
    tester.retry_all()
    (letter,) = tester.dead_letters
    assert "TimerLoopError" in letter.detail
    assert letter.event.topic == "~"
    assert len(_said(tester)) == 1_000
    assert _said(tester)[-1] == 1


def test_an_event_behind_the_watermark_says_so() -> None:
    tester = TopologyTester(_behind())
    tester.run([("k", "", 10)])
    tester.run([("k", "", 20), ("k", "", 5), ("k", "", 10)])
    assert _said(tester) == [False, True, True, False]


class Behind(KeyedBolt):
    fields = ("key", "said")

    def process(self, event: Event, key: Key) -> Any:
        yield key.value, event.behind


def _behind() -> Topology:
    return _topology(Behind())


class Reader(BasicBolt):
    fields = ("key",)

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        collector.emit((tuple["key"],))


class NoType(Calls):
    state = 7  # type: ignore[assignment] # what it is for


@pytest.mark.promise("keyed-bounds")
@pytest.mark.parametrize(
    ("declared", "grouping", "why"),
    [
        ({}, "local", "read it by fields_grouping"),
        ({}, "both", "different numbers of fields"),
        ({"parallelism": 257}, "value", "of 256 groups"),
        ({"parallelism": 2}, "key", "it runs in the tasks of the spout"),
        ({"concurrency": 2}, "key", "its calls run one by one"),
        ({"tick_interval": 1}, "key", "a tick has no key"),
        ({"bolt": NoType()}, "key", "its state 7 is not a type"),
        ({"tracked": False}, "key", "leaves events untracked"),
    ],
)
def test_what_could_not_be_undone_is_refused(
    declared: dict[str, Any], grouping: str, why: str
) -> None:
    declared = dict(declared)
    builder = TopologyBuilder("refused")
    builder.set_spout("events", tracked=declared.pop("tracked", True))
    builder.set_bolt("reader", Reader()).local_grouping("events")

    def build() -> None:
        declarer = builder.set_bolt("calls", declared.pop("bolt", Calls()), **declared)
        if grouping == "local":
            declarer.local_grouping("events")
        elif grouping == "both":
            declarer.fields_grouping("events", "key").fields_grouping("reader", "key", "key")
        else:
            declarer.fields_grouping("events", grouping)
        builder.build()

    with pytest.raises(TopologyBuildError, match=f"keyed bolt 'calls'.*{why}"):
        build()


@pytest.mark.parametrize("setting", [{"ordering": "none"}, {"ackers": 0}])
def test_a_tester_refuses_settings_with_which_nothing_could_be_undone(
    setting: dict[str, Any],
) -> None:
    settings = ProcessSettings.model_validate(setting)
    with pytest.raises(TopologyError, match="has keyed bolts"):
        TopologyTester(_topology(), settings)


@pytest.mark.promise("keyed-memory")
@pytest.mark.parametrize("large", ["value", "header"])
def test_few_large_events_are_read_before_their_calls(large: str) -> None:
    """Many small ones are: their keys are read in order."""
    read: list[int] = []

    def events(size: int) -> Iterator[EventValues]:
        for number in range(100):
            read.append(number)
            said = bytes(size)
            value, headers = (said, ()) if large == "value" else (None, (("h", said),))
            yield EventValues(b"%d" % number, value, headers, number, "in", 0, number, number)

    keys = StepKeys({"bolt": MemoryKeyStore()}, None)
    assert next(keys.loaded(events(1 << 20)))[6] == 0
    assert len(read) <= 17
    read.clear()
    assert next(keys.loaded(events(10)))[6] == 0
    assert len(read) == 100


class _Asked(MemoryKeyStore):
    """Notes how many keys are asked for at once."""

    def __init__(self, states: Iterable[bytes]) -> None:
        timers = {"t": SetTimer(7, 7, False, 0, 0)}
        super().__init__(
            KeyChange(b"%04d" % number, encoded(Entry(state, timers, 1)), 7)
            for number, state in enumerate(states)
        )
        self.counts: list[int] = []

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.counts.append(len(keys))
        return super().get_all(keys)


@pytest.mark.promise("keyed-memory")
def test_keys_with_due_timers_are_read_ahead_by_the_size_of_their_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed, "AHEAD_BYTES", 10_000)
    asked = {}
    for size in (1, 100, 9_000):
        store = _Asked(itertools.repeat(bytes(size), 500))
        keys = StepKeys({"bolt": store}, 10)
        for _ in keys.timers_before((11, ""), ()):
            pass
        asked[size] = store.counts[:4]
    assert asked == {1: [64, 128, 256, 52], 100: [64, 100, 100, 100], 9_000: [64, 2, 2, 2]}


def test_a_call_that_was_given_up_reads_no_key_after_its_step() -> None:
    """A later step may read the same files."""
    keys = StepKeys({"bolt": SharedStore(MemoryKeyStore())}, None)
    keys.entry("bolt", b"k")
    stores = dict(keys._stores)
    keys.close()
    with pytest.raises(KeyedStateError, match="the step of this call is over"):
        stores["bolt"].get(b"k")
