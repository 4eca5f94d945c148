"""Tuple trees as in Storm: what is acked, what fails, and what fails with it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BatchBolt,
    Bolt,
    FailReason,
    ProcessSettings,
    To,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.consumer.topology.tester.tester import DeadLetteredEvent
from sequitur.consumer.topology.tester.tuple_trees import StepKind
from sequitur.errors import TopologyBuildError
from tests.support.bolts import HoldingBolt

if TYPE_CHECKING:
    from sequitur.consumer.topology import Event, OutputCollector, Topology, TopologyContext, Tuple


_FAN_OUT = 10_000
_DEPTH = 1_000


@bolt
def pass_on(given: Tuple) -> Any:
    yield (given["value"],)


@bolt
def fan_out(event: Event) -> Any:
    del event
    for number in range(_FAN_OUT):
        yield (number,)


@bolt(streams={"left": ("value",), "right": ("value",)})
def fork(event: Event) -> Any:
    yield To("left", event.value)
    yield To("right", event.value)


@bolt
def end(given: Tuple) -> Any:
    """Emit nothing; raise for what is bad."""
    if given["value"] in {b"bad", "bad"}:
        raise ValueError("bad")


class Joined(HoldingBolt):
    """One tuple of all that it holds."""

    def finish_batch(self) -> None:
        if self.held:
            self.collector.emit((self.held[-1]["value"],), anchors=self.held)
        for one in self.held:
            self.collector.ack(one)
        self.held.clear()


class TwiceAnchored(HoldingBolt):
    """Names the same anchor twice."""

    def finish_batch(self) -> None:
        for one in self.held:
            self.collector.emit((one["value"],), anchors=(one, one))
            self.collector.ack(one)


class PairsOfNeighbours(HoldingBolt):
    """Joins each tuple with the next one."""

    def finish_batch(self) -> None:
        """Emit a tuple for each pair, and ack all."""
        for first, second in zip(self.held, self.held[1:], strict=False):
            is_bad = b"bad" in {first["value"], second["value"]}
            self.collector.emit(("bad" if is_bad else "good",), anchors=(first, second))
        for one in self.held:
            self.collector.ack(one)


class AcksBackwards(HoldingBolt):
    """Acks and fails, the last one first."""

    def finish_batch(self) -> None:
        for one in reversed(self.held):
            if one["value"] == b"bad":
                self.collector.fail(one, "it is bad")
            else:
                self.collector.ack(one)


class Forgets(Bolt):
    """Acks only what is good."""

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Neither ack nor fail the others."""
        if tuple["value"] != b"bad":
            self.collector.ack(tuple)


class Unanchored(Bolt):
    """Emits without an anchor."""

    fields = ("value",)

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.emit((tuple["value"],))
        self.collector.ack(tuple)


class RaisesAtTheEnd(HoldingBolt):
    """Its `finish_batch` raises."""

    def finish_batch(self) -> None:
        raise RuntimeError("no end")


class FailsThenAcks(HoldingBolt):
    """Two children: the first fails, the second is acked after that."""

    def finish_batch(self) -> None:
        first, second = self.held
        self.collector.fail(first)
        self.collector.ack(second)


def _through(*bolts: Any) -> Topology:
    builder = TopologyBuilder("chain")
    builder.set_spout("events")
    before = "events"
    for number, one in enumerate(bolts):
        builder.set_bolt(f"bolt{number}", one).global_grouping(before)
        before = f"bolt{number}"
    return builder.build()


def _diamond() -> Topology:
    builder = TopologyBuilder("diamond")
    builder.set_spout("events")
    builder.set_bolt("fork", fork).shuffle_grouping("events")
    builder.set_bolt("a", pass_on).shuffle_grouping("fork", "left")
    builder.set_bolt("b", pass_on).shuffle_grouping("fork", "right")
    builder.set_bolt("join", Joined()).shuffle_grouping("a").shuffle_grouping("b")
    builder.set_bolt("end", end).shuffle_grouping("join")
    return builder.build()


def _once(topology: Topology, *values: str, **settings: Any) -> TopologyTester:
    """Events with these values, each of a key of its own, in one batch and one attempt."""
    tester = TopologyTester(topology, ProcessSettings(max_attempts=1, **settings))
    tester.run([(f"k{number}", value) for number, value in enumerate(values)])
    return tester


def _acked(tester: TopologyTester) -> list[bytes | None]:
    return [event.value for event in tester.acked]


def _dead(tester: TopologyTester) -> list[tuple[bytes | None, FailReason]]:
    return [(letter.event.value, letter.reason) for letter in tester.dead_letters]


def test_the_worked_example() -> None:
    """1010 and 1011 with a tuple 1100 anchored to both: 0110 and 0111, 1100 twice, then 0000."""
    tester = TopologyTester(_through(Joined(), end), ids=[0b1010, 0b1011, 0b1100, 0b1100])
    tester.run([("a", "1"), ("b", "2")])
    assert [tree.values for tree in tester.trees] == [
        [0b1010, 0b0110, 0b1100, 0b0000],
        [0b1011, 0b0111, 0b1100, 0b0000],
    ]
    assert [tree.verdict for tree in tester.trees] == ["acked", "acked"]


def test_a_tree_of_one_tuple() -> None:
    """Given out, acked, done."""
    tester = _once(_through(end), "a")
    assert [step.kind for step in tester.trees[0].steps] == [StepKind.GIVEN, StepKind.ACKED]
    assert (tester.trees[0].values[-1], _acked(tester)) == (0, [b"a"])


def test_a_deep_chain_is_followed_to_its_end() -> None:
    """A thousand bolts; a failure in the last one fails the event, and names them all."""
    topology = _through(*[pass_on] * (_DEPTH - 1), end)
    tester = _once(topology, "good", "bad")
    assert (_acked(tester), _dead(tester)) == ([b"good"], [(b"bad", FailReason.EXCEPTION)])
    assert len(tester.dead_letters[0].path) == _DEPTH + 1
    assert tester.trees[0].values[-1] == 0


@pytest.mark.promise("process-acks-come-order")
def test_a_wide_tree_is_done_with_its_last_tuple() -> None:
    """Ten thousand tuples of one event, and a value of 0 behind the last ack, not before."""
    tester = _once(_through(fan_out, end), "a")
    values = tester.trees[0].values
    assert len(values) == 2 * (_FAN_OUT + 1)
    assert values[-1] == 0
    assert 0 not in values[:-1]
    assert _acked(tester) == [b"a"]


@pytest.mark.promise("process-acks-come-order")
def test_a_diamond_is_done_once_both_ways_have_met() -> None:
    """The tuple that joins them belongs to the tree once, by two anchors."""
    tester = _once(_diamond(), "good")
    assert (_acked(tester), tester.trees[0].values[-1]) == ([b"good"], 0)
    joined = next(step for step in tester.trees[0].steps if step.by == "join#0")
    assert len(joined.anchors) == 2
    assert _dead(_once(_diamond(), "bad")) == [(b"bad", FailReason.EXCEPTION)]


@pytest.mark.promise("process-acks-come-order")
def test_an_anchor_may_be_named_twice() -> None:
    """Two edges, both in the tree's value, both out of it with one ack."""
    tester = TopologyTester(_through(TwiceAnchored(), end), ids=[1, 2, 4])
    tester.run([("k", "a")])
    assert tester.trees[0].values == [1, 1 ^ 2 ^ 4, 2 ^ 4, 0]
    assert _acked(tester) == [b"a"]


@pytest.mark.promise("process-several-events-share")
def test_a_failed_leaf_fails_every_root_above_it_and_no_other() -> None:
    """Neighbours share a leaf: the two beside the bad one fail with it."""
    tester = _once(_through(PairsOfNeighbours(), end), "a", "b", "bad", "c", "d")
    assert _acked(tester) == [b"a", b"d"]
    assert [value for value, _ in _dead(tester)] == [b"b", b"bad", b"c"]


@pytest.mark.promise("process-tuple-emitted-anchor")
def test_an_unanchored_tuple_fails_nobody() -> None:
    """Its failure is counted, and the event it came from is acked."""
    tester = _once(_through(Unanchored(), end), "bad")
    assert (_acked(tester), tester.untracked_failures) == ([b"bad"], 1)


def test_an_unanchored_tuple_is_shown_where_it_was_emitted() -> None:
    tester = _once(_through(Unanchored(), end), "good")
    tree = tester.trees[0]
    assert ", unanchored: value=b'good'" in tree.as_text()
    assert tree.values[0] == tree.values[1]


def test_acks_and_failures_come_in_any_order() -> None:
    """Each event has its own verdict, with what the bolt said of it."""
    tester = _once(_through(AcksBackwards()), "a", "bad", "b")
    assert _acked(tester) == [b"a", b"b"]
    assert tester.dead_letters == [
        DeadLetteredEvent(
            tester.dead_letters[0].event, FailReason.FAILED, "it is bad", 1, ("events", "bolt0")
        )
    ]


@pytest.mark.promise("process-tuple-neither-acked")
def test_what_is_neither_acked_nor_failed_is_never_acked() -> None:
    tester = _once(_through(Forgets()), "a", "bad")
    assert (_acked(tester), _dead(tester)) == ([b"a"], [(b"bad", FailReason.NEVER_ACKED)])


def test_a_finish_batch_that_raises_fails_what_is_held() -> None:
    """The dead letter says which bolt, and what it raised."""
    tester = _once(_through(RaisesAtTheEnd()), "a")
    assert _dead(tester) == [(b"a", FailReason.EXCEPTION)]
    assert "finish_batch of 'bolt0'" in tester.dead_letters[0].detail
    assert "RuntimeError: no end" in tester.dead_letters[0].detail


@pytest.mark.promise("process-ack-comes-tree")
def test_a_failure_is_sticky_and_later_acks_are_late() -> None:
    """An ack of another tuple of the tree changes nothing, and is counted."""
    builder = TopologyBuilder("sticky")
    builder.set_spout("events")
    builder.set_bolt("fork", fork).shuffle_grouping("events")
    declarer = builder.set_bolt("both", FailsThenAcks())
    declarer.shuffle_grouping("fork", "left").shuffle_grouping("fork", "right")
    tester = _once(builder.build(), "a")
    assert (_dead(tester), tester.late_acks) == ([(b"a", FailReason.FAILED)], 1)


@pytest.mark.promise("process-number-open-trees")
@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_so_many_trees_are_open_at_most(most: int) -> None:
    """The batch is finished in between, so that a batch bolt holds no more of them."""
    tester = _once(_through(Joined(), end), *"abcde", max_spout_pending=most)
    assert sorted(event.value or b"" for event in tester.acked) == [b"a", b"b", b"c", b"d", b"e"]
    sizes = {
        len(step.anchors)
        for tree in tester.trees
        for step in tree.steps
        if step.kind is StepKind.EMITTED
    }
    assert max(sizes) == min(most, 5)


class HoldGood(BatchBolt):
    """Holds what is good to the end of the batch, and fails what is bad at once."""

    fields = ("value",)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.held: list[Tuple] = []

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple["value"] == b"bad":
            self.collector.fail(tuple)
        else:
            self.held.append(tuple)

    def finish_batch(self) -> None:
        for one in self.held:
            self.collector.emit((one["value"],), anchors=one)
            self.collector.ack(one)


def test_later_failure_holds_no_earlier_event() -> None:
    """An event held to the end of its batch goes on, though a later one of its key fails."""
    builder = TopologyBuilder("hold")
    builder.set_spout("events")
    builder.set_bolt("hold", HoldGood()).local_grouping("events")
    builder.set_bolt("pass", pass_on).local_grouping("hold")
    builder.set_output("out", key=None).local_grouping("pass")
    tester = TopologyTester(builder.build())
    tester.run([("k", "good", 1), ("k", "bad", 2), ("k", "behind", 3)])
    assert [event.value for event in tester.acked] == [b"good"]
    assert tester.records("out") == [(None, b"good")]


@dataclasses.dataclass
class Reading:
    """A value of the user's own type."""

    sensor: str
    value: Any


VALUES: list[Any] = [
    math.nan, -math.inf, {"value": math.nan}, [1, [math.inf]], Reading("a", math.nan),
    {"raw": b"bob"}, [bytearray(b"bob")], (memoryview(b"bob"),), Reading("a", b"bob"), {b"key": 1},
    {"plain": [1, 2.5, "x", None, True], "at": dt.date(2026, 1, 1)}, Counter("aab"),
    Reading("a", 1.5),
]  # fmt: skip
REFUSED = 10
"""Of these the first ones."""


def emit(event: Any) -> Any:
    yield (VALUES[int(event.value)],)


def as_repr(value: Any) -> str:
    return repr(value)


def as_number(_value: Any) -> Any:
    """An encoder that makes neither bytes nor text."""
    return 1


def run_by(**output: Any) -> TopologyTester:
    builder = TopologyBuilder("values")
    builder.set_spout("events")
    builder.set_bolt("emit", emit).local_grouping("events")
    builder.set_output("out", key=None, **output).local_grouping("emit")
    return TopologyTester(builder.build())


def why_dead(ran: TopologyTester) -> str:
    ran.retry_all()
    (letter,) = ran.dead_letters
    return letter.detail


@pytest.mark.parametrize("number", range(REFUSED))
def test_what_json_would_turn_into_something_else_is_refused_by_name(number: int) -> None:
    """NaN would be null, and bytes a string."""
    ran = run_by(value="value")
    ran.run([("key", str(number))])
    assert ran.records("out") == []
    detail = why_dead(ran)
    assert "output 'out': JSON has no form for" in detail
    assert "in value" in detail


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (10, {"plain": [1, 2.5, "x", None, True], "at": "2026-01-01"}),
        (11, {"a": 2, "b": 1}),
        (12, {"sensor": "a", "value": 1.5}),
    ],
)
def test_what_json_can_hold_goes_out(number: int, expected: Any) -> None:
    """Types of the user's own and of the standard library, too."""
    ran = run_by(value="value")
    ran.run([("key", str(number))])
    ((_, value),) = ran.records("out")
    assert json.loads(value or b"") == expected


def test_an_encoder_of_the_outputs_own_takes_what_json_refuses() -> None:
    ran = run_by(value="value", encode=as_repr)
    ran.run([("key", "0"), ("key", "5")])
    assert [value for _, value in ran.records("out")] == [b"nan", b"{'raw': b'bob'}"]


def test_an_encoder_that_makes_no_bytes_is_named() -> None:
    ran = run_by(value="value", encode=as_number)
    ran.run([("key", "0")])
    assert "output 'out': its encode made 1 of value nan" in why_dead(ran)


def test_an_encoder_that_cannot_be_sent_to_tasks_is_refused() -> None:
    with pytest.raises(TopologyBuildError, match="output 'out' cannot be pickled"):
        run_by(value="value", encode=lambda value: value)
