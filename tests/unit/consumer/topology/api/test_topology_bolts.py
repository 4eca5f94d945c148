"""What bolts may do, what is refused, and what their tuples become."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import pickle
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    Bolt,
    FailReason,
    ProcessSettings,
    To,
    TopologyBuilder,
    TopologyTester,
    TreeFailure,
    bolt,
)
from sequitur.consumer.topology.api.tuple import Stream
from sequitur.consumer.topology.engine.trees import TrackedTuple
from sequitur.consumer.topology.settling.root import Root
from sequitur.errors import BoltStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.topology import (
        BasicOutputCollector,
        Event,
        OutputCollector,
        TopologyContext,
        Tuple,
    )


_seen: list[Any] = []
"""What bolts saw: they are copies, and find it by its name here."""


@pytest.fixture(autouse=True)
def seen() -> list[Any]:
    _seen.clear()
    return _seen


@bolt(fields=("word", "length"), streams={"short": ("word",)})
def sort_words(event: Event) -> Iterator[Any]:
    """All the ways in which a function may say what it emits."""
    for word in (event.value or b"").decode().split():
        if len(word) < 3:
            yield To("short", word)
        elif word == "mapping":
            yield {"length": len(word), "word": word}
        elif word == "list":
            yield [word, len(word)]
        else:
            yield word, len(word)


@bolt
def returns_list(event: Event) -> Any:
    """What is returned counts as well as what is yielded."""
    return [event.value, b"twice"]


@bolt
def note(given: Tuple) -> None:
    _seen.append((given.source, given.stream, given.as_dict()))


@bolt
def note_attempt(event: Event) -> None:
    """Take down which attempt it is, and fail the first two."""
    _seen.append(event.attempt)
    if event.attempt < 3:
        raise ValueError("again")


class Emits(Bolt):
    """Emits what the test says."""

    fields = ("word", "length")

    def __init__(self, values: Any, stream: str = "default", task: int | None = None) -> None:
        self.values = values
        self.stream = stream
        self.task = task

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.emit(self.values, tuple, self.stream, self.task)
        self.collector.ack(tuple)


class Misuses(Bolt):
    """Does what it may not do with a tuple."""

    fields = ("value",)

    def __init__(self, how: str) -> None:
        self.how = how

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if self.how == "double ack":
            self.collector.ack(tuple)
            self.collector.ack(tuple)
        elif self.how == "ack after fail":
            self.collector.fail(tuple)
            self.collector.ack(tuple)
        elif self.how == "fail after ack":
            self.collector.ack(tuple)
            self.collector.fail(tuple)
        elif self.how == "anchor to an acked one":
            self.collector.ack(tuple)
            self.collector.emit(("x",), anchors=tuple)
        elif self.how == "unknown field":
            tuple["vlaue"]


class UsesForeign(Bolt):
    """Uses a tuple that was given to another bolt."""

    fields = ("value",)

    def __init__(self, how: str) -> None:
        self.how = how

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        foreign = _seen[0]
        if self.how == "emit":
            self.collector.emit(("x",), anchors=(tuple, foreign))
        else:
            getattr(self.collector, self.how)(foreign)


class Holds(Bolt):
    """Acks nothing, so that its tuples stay its own."""

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        _seen.append(tuple)


class LifeCycle(BasicBolt):
    """Takes down what is called."""

    fields = ("value",)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        _seen.append(("prepare", context.task, context.tasks, context.config["unit"]))

    def restore(self, state: Any) -> None:
        _seen.append(("restore", state))

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        _seen.append(("process", tuple["value"]))
        collector.emit((tuple["value"],))

    def finish_batch(self) -> None:
        _seen.append("finish_batch")

    def snapshot(self) -> Any:
        _seen.append("snapshot")
        return {"kept": 1}

    def cleanup(self) -> None:
        _seen.append("cleanup")


class Unkeepable(LifeCycle):
    """Wants kept what cannot be kept."""

    def snapshot(self) -> Any:
        return lambda: None


def _tester(made: Any, **output: Any) -> TopologyTester:
    """A bolt with an output, where the test says what that writes."""
    builder = TopologyBuilder("bolts", config={"unit": "ms"})
    builder.set_spout("events")
    builder.set_bolt("work", made).local_grouping("events")
    if output:
        builder.set_output("out", **output).local_grouping("work")
    return TopologyTester(builder.build(), ProcessSettings(max_attempts=1))


def _detail(tester: TopologyTester) -> str:
    """Why the only event was given up."""
    tester.run([("k", "v")])
    assert [letter.reason for letter in tester.dead_letters] == [FailReason.EXCEPTION]
    return tester.dead_letters[0].detail


def test_a_function_says_what_it_emits_in_any_handy_form(seen: list[Any]) -> None:
    """A tuple, a list, a mapping by field; `To` for another stream, one value for one field."""
    builder = TopologyBuilder("forms")
    builder.set_spout("events")
    builder.set_bolt("sort", sort_words).local_grouping("events")
    reader = builder.set_bolt("note", note).local_grouping("sort")
    reader.local_grouping("sort", "short")
    tester = TopologyTester(builder.build())
    tester.run([(None, "plain list mapping to")])
    assert seen == [
        ("sort", "default", {"word": "plain", "length": 5}),
        ("sort", "default", {"word": "list", "length": 4}),
        ("sort", "default", {"word": "mapping", "length": 7}),
        ("sort", "short", {"word": "to"}),
    ]
    assert len(tester.acked) == 1


def test_what_a_function_returns_is_emitted() -> None:
    tester = _tester(returns_list, key=None)
    tester.run([("k", "once")])
    assert tester.records("out") == [(None, b"once"), (None, b"twice")]


def test_a_decorated_function_is_still_the_function() -> None:
    """So that it can be tested by itself; and it is pickled by its name."""
    tester = _tester(returns_list)
    tester.run([("k", "v")])
    assert returns_list.__doc__ == "What is returned counts as well as what is yielded."
    assert pickle.loads(pickle.dumps(returns_list)) is returns_list


def test_a_bolt_sees_which_attempt_it_is(seen: list[Any]) -> None:
    builder = TopologyBuilder("attempts")
    builder.set_spout("events")
    builder.set_bolt("note", note_attempt).local_grouping("events")
    tester = TopologyTester(builder.build())
    tester.run([("k", "v")])
    tester.retry_all()
    assert seen == [1, 2, 3]
    assert len(tester.acked) == 1


def test_what_a_bolts_life_consists_of(seen: list[Any]) -> None:
    """It goes on from batch to batch; what it wanted kept comes back to another copy of it."""
    tester = _tester(LifeCycle())
    tester.run([(None, "a")])
    first, second = list(seen), len(seen)
    tester.run([])
    prepare = ("prepare", 0, 1, "ms")
    ends = ["finish_batch", "snapshot"]
    assert first == [prepare, ("process", b"a"), *ends]
    assert seen[second:] == ends
    second = len(seen)
    tester.close()
    tester.run([])
    assert seen[second:] == ["cleanup", prepare, ("restore", {"kept": 1}), *ends]


def test_what_cannot_be_kept_is_named() -> None:
    with pytest.raises(BoltStateError, match="bolt 'work', task 0: its snapshot cannot be pickled"):
        _tester(Unkeepable()).run([(None, "a")])


@pytest.mark.promise("process-bolt-acks-twice")
@pytest.mark.parametrize(("emits", "message"), [
    (Emits({"word": "x", "lnegth": 1}), "bolt 'work' emitted to 'work' for <tuple of events: key="),
    (Emits({"word": "x", "lnegth": 1}), "unknown field 'lnegth'. Its fields are: word, length"),
    (Emits({"word": "x"}), "no field 'length'. Its fields are: word, length"),
    (Emits(("x",)), "bolt 'work' emitted 1 values to 'work' for <tuple of events: key=b'k'"),
    (Emits(7), "bolt 'work' emitted 7 to 'work' for <tuple of events: key=b'k'"),
    (Emits(("x", 1), "side"), "stream 'side', which it has not declared. It has: default"),
    (Emits(("x", 1), task=1), "bolt 'work': stream 'default' is not direct: name no task"),
])  # fmt: skip
def test_what_was_not_declared_is_not_emitted(emits: Bolt, message: str) -> None:
    """The error names the bolt and the tuple, and fails the event."""
    assert message in _detail(_tester(emits))


@pytest.mark.promise("process-bolt-acks-twice")
@pytest.mark.parametrize(("how", "message"), [
    ("double ack", "bolt 'work' acked <tuple of events: key=b'k', value=b'v'"),
    ("double ack", "DoubleAckError"),
    ("ack after fail", "failed already"),
    ("fail after ack", "bolt 'work' failed <tuple of events: key=b'k'"),
    ("fail after ack", "acked already"),
    ("anchor to an acked one", "bolt 'work' anchored to <tuple of events: key=b'k'"),
    ("unknown field", "'vlaue': tuples of 'events' have the fields key, value, headers"),
])  # fmt: skip
def test_misuse_of_a_tuple_is_an_error(how: str, message: str) -> None:
    tester = _tester(Misuses(how))
    tester.run([("k", "v")])
    assert len(tester.dead_letters) == 1
    expected_in = {"ack after fail": FailReason.FAILED}.get(how, FailReason.EXCEPTION)
    assert tester.dead_letters[0].reason is expected_in
    if expected_in is FailReason.EXCEPTION:  # else the failure that came first is what is told
        assert message in tester.dead_letters[0].detail


@pytest.mark.promise("process-bolt-acks-twice")
@pytest.mark.parametrize(("how", "what"), [
    ("ack", "acked"), ("fail", "failed"), ("emit", "anchored to"),
])  # fmt: skip
def test_a_foreign_tuple_is_refused(how: str, what: str) -> None:
    """The error names both bolts, and the tuple."""
    builder = TopologyBuilder("foreign")
    builder.set_spout("events")
    builder.set_bolt("holds", Holds()).local_grouping("events")
    builder.set_bolt("thief", UsesForeign(how)).local_grouping("events")
    tester = TopologyTester(builder.build(), ProcessSettings(max_attempts=1))
    tester.run([("k", "v")])
    detail = tester.dead_letters[0].detail
    assert f"bolt 'thief' {what} <tuple of events: key=b'k', value=b'v'" in detail
    assert "which was delivered to 'holds', task 0" in detail


@pytest.mark.parametrize(("values", "output", "expected"), [
    (("a", 1), {"key": "word", "value": "length"}, (b"a", b"1")),
    (("a", 1), {"key": None, "value": "word"}, (None, b"a")),
    (("a", 1), {"key": "word", "value": None}, (b"a", b'{"length":1}')),
    (("a", 1), {"key": None, "value": None}, (None, b'{"word":"a","length":1}')),
    ((None, None), {"key": "word", "value": "length"}, (None, None)),
    ((b"\xff", bytearray(b"b")), {"key": "word", "value": "length"}, (b"\xff", b"b")),
    (("ä", {"x": [1.5, None, True]}), {"key": "word", "value": "length"},
     ("ä".encode(), b'{"x":[1.5,null,true]}')),
])  # fmt: skip
def test_an_output_encodes_what_it_is_given(
    values: Any, output: dict[str, Any], expected: tuple[bytes | None, bytes | None]
) -> None:
    """Bytes as they are, text as UTF-8, anything else as JSON."""
    tester = _tester(Emits(values), **output)
    tester.run([(None, "x")])
    assert tester.records("out") == [expected]


@pytest.mark.parametrize("headers", [
    [("a", b"1"), ("b", "text"), ("c", None), ("d", 7)],
    {"a": b"1", "b": "text", "c": None, "d": 7},
])  # fmt: skip
def test_headers_are_pairs_or_a_mapping(headers: Any) -> None:
    """Their values become bytes as well."""
    tester = _tester(Emits(("a", headers)), key="word", value=None, headers="length")
    tester.run([(None, "x")])
    record = tester.outputs["out"][0]
    assert record.headers == [("a", b"1"), ("b", b"text"), ("c", None), ("d", b"7")]
    assert record.value == b"{}"


@pytest.mark.promise("process-bolt-acks-twice")
@pytest.mark.parametrize(("values", "output", "message"), [
    (("a", object()), {"key": "word", "value": "length"}, "output 'out': value"),
    ((object(), 1), {"key": "word", "value": None}, "output 'out': key"),
    (("a", [(7, b"")]), {"key": "word", "value": None, "headers": "length"},
     "output 'out': header 7: its name is not text"),
    (("a", [("\ud800", b"")]), {"key": "word", "value": None, "headers": "length"},
     "half a surrogate pair"),
])  # fmt: skip
def test_what_cannot_be_encoded_fails_its_event(
    values: Any, output: dict[str, Any], message: str
) -> None:
    assert message in _detail(_tester(Emits(values), **output))


class Color(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Counted:
    counts: dict[Any, Any]


class Packed(msgspec.Struct, rename="camel"):
    all_counts: dict[Any, Any]


_DAY = dt.date(2026, 1, 2)
_TWICE: dict[str, dict[Any, Any]] = {
    "1": {1: "a", "1": "b"},
    "2.0": {2.0: 1, "2.0": 2},
    "1e22": {1e22: 1, "1e22": 2},
    "red": {Color.RED: 1, "red": 2},
    "1 of an enum": {Number.ONE: 1, "1": 2},
    "2026-01-02": {_DAY: 1, "2026-01-02": 2},
    "00000000-0000-0000-0000-000000000005": {uuid.UUID(int=5): 1, str(uuid.UUID(int=5)): 2},
    "1.50": {decimal.Decimal("1.50"): 1, "1.50": 2},
}


@pytest.mark.promise("process-names-equal-in-json")
@pytest.mark.parametrize("within", [
    lambda one: one,
    lambda one: {"a": [1, ({"b": one},)]},
    collections.OrderedDict,
    Counted,
    lambda one: [Packed({"deep": one})],
    lambda one: (Counted({"deep": {_DAY: one}}), 1),
], ids=["itself", "nested", "ordered", "dataclass", "struct", "deep"])  # fmt: skip
@pytest.mark.parametrize("name", _TWICE)
def test_names_that_are_one_in_json_fail_their_event(
    name: str, within: Callable[[Any], Any]
) -> None:
    """One of the two entries would be lost, whichever a reader takes."""
    value = within(_TWICE[name])
    detail = _detail(_tester(Emits(("a", value)), key="word", value="length"))
    assert f"output 'out': value {value!r:.200}" in detail
    assert f"has two names that are {name.partition(' ')[0]!r} in JSON" in detail


@pytest.mark.parametrize(("value", "expected"), [
    ({1: "a"}, b'{"1":"a"}'),
    ({1: "a", 2: {"1": "b", 3: []}}, b'{"1":"a","2":{"1":"b","3":[]}}'),
    ([{1: "a"}, {"1": "b"}], b'[{"1":"a"},{"1":"b"}]'),
    ({Color.RED: Counted({1: 1})}, b'{"red":{"counts":{"1":1}}}'),
    ({"1": {1: 2}, "01": 3}, b'{"1":{"1":2},"01":3}'),
])  # fmt: skip
def test_names_that_stay_apart_are_written(value: Any, expected: bytes) -> None:
    tester = _tester(Emits(("a", value)), key="word", value="length")
    tester.run([(None, "x")])
    assert tester.records("out") == [(b"a", expected)]


def test_key_and_header_whose_names_are_one_fail_their_event() -> None:
    """As a value's do."""
    value = {1: "a", "1": "b"}
    for values, headers in (((value, 1), None), (("a", [("h", value)]), "length")):
        output: dict[str, Any] = {"key": "word", "value": None, "headers": headers}
        assert "has two names that are '1' in JSON" in _detail(_tester(Emits(values), **output))


def test_the_stream_itself_may_be_an_output() -> None:
    builder = TopologyBuilder("copy")
    builder.set_spout("events")
    builder.set_output("out", headers="headers").local_grouping("events")
    tester = TopologyTester(builder.build())
    tester.run([{"key": "k", "value": "v", "headers": [("h", b"1")]}])
    assert tester.records("out") == [(b"k", b"v")]
    assert tester.outputs["out"][0].headers == [("h", b"1")]
    assert len(tester.acked) == 1


def test_a_tuple_tells_where_it_comes_from(seen: list[Any]) -> None:
    """Its values by name, place and in turn; its event's key and time."""
    builder = TopologyBuilder("tuples")
    builder.set_spout("events")
    builder.set_bolt("holds", Holds()).local_grouping("events")
    TopologyTester(builder.build()).run([("k", "v", 1_234)])
    event = seen[0]
    assert (event["key"], event[1], event.key, event.value) == (b"k", b"v", b"k", b"v")
    assert (event.event_time_ms, event.event_key, event.headers) == (1_234, b"k", ())
    assert (len(event), list(event)[3], event.source, event.stream) == (
        8, 1_234, "events", "default",
    )  # fmt: skip
    assert event.fields[:2] == ("key", "value")


_EVENT = (b"k", b"v", (("id", b"1"),), 5, "readings", 2, 7, 9)
_STREAM = Stream("events", "default", ("word",))


def test_equal_fields_make_no_equal_roots_or_tuples() -> None:
    """They stand for events and edges: two of the same values are two, also as keys."""
    roots = [Root(1, _EVENT), Root(1, _EVENT)]
    assert roots[0] != roots[1]
    assert len(dict.fromkeys(roots)) == 2
    tuples = [TrackedTuple(("a",), _STREAM, roots[0], 3, None, None) for _ in range(2)]
    assert tuples[0] != tuples[1]
    assert len(set(tuples)) == 2


def test_root_goes_elsewhere_without_payload_and_outcome() -> None:
    """Another task knows who it is, its key and place; not what became of it here."""
    root = Root(3, _EVENT, 2, 1.5, is_tracked=True)
    root.value, root.failure, root.is_held = 8, TreeFailure(FailReason.FAILED), True
    sent: Root = pickle.loads(pickle.dumps(root))
    assert (sent.id, sent.attempt, sent.is_tracked) == (3, 2, True)
    assert (sent.key, sent.place, sent.order) == (root.key, root.place, root.order)
    assert (sent.event[1], sent.event[2]) == (None, ())
    assert (sent.value, sent.failure, sent.is_held) == (0, None, False)
