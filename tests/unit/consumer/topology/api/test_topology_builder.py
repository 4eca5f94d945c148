"""A topology that makes no sense is refused when it is built, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import BasicBolt, Bolt, TopologyBuilder, bolt
from sequitur.consumer.topology.api.bolt import FunctionBolt
from sequitur.consumer.topology.api.builder import Kind
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.topology import BasicOutputCollector, Event, Tuple


@bolt
def pass_on(event: Event) -> Any:
    yield event.value


def plain(event: Event) -> Any:
    yield event.value


async def later(event: Event) -> Any:
    return [event.value]


class Split(BasicBolt):
    """Two streams, one of them direct."""

    fields = ("word", "length")
    streams = {"side": ("word",), "named": ("word",)}  # noqa: RUF012 - as users write it
    direct_streams = ("named",)

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        """Emit nothing."""


class TwiceTheField(Bolt):
    """Declares a field twice."""

    fields = ("word", "word")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Do nothing."""


class UnknownDirect(Bolt):
    """A direct stream that it has not declared."""

    fields = ("word",)
    direct_streams = ("side",)

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Do nothing."""


class OddField(Bolt):
    """Has a field whose name no JSON can hold."""

    fields = ("b\ud83d",)

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Do nothing."""


class Unpicklable(Bolt):
    """Holds what cannot be sent to tasks."""

    def __init__(self) -> None:
        self.function = lambda: None

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Do nothing."""


def _builder() -> TopologyBuilder:
    builder = TopologyBuilder("refused")
    builder.set_spout("events")
    builder.set_bolt("split", Split()).shuffle_grouping("events")
    return builder


def _cycle(builder: TopologyBuilder) -> None:
    builder.set_bolt("a", pass_on).shuffle_grouping("b")
    builder.set_bolt("b", pass_on).shuffle_grouping("a")


def _self(builder: TopologyBuilder) -> None:
    builder.set_bolt("a", pass_on).shuffle_grouping("a")


def _twice(builder: TopologyBuilder) -> None:
    builder.set_bolt("a", pass_on).shuffle_grouping("split").fields_grouping("split", "word")


@pytest.mark.promise("process-topology-invalid-file")
@pytest.mark.parametrize(("add", "message"), [
    (_cycle, "in a cycle: a reads b reads a"),
    (_self, "in a cycle: a reads a"),
    (_twice, "bolt 'a' reads a stream twice"),
    (lambda b: b.set_spout("more"), "spout 'more': there is one already, 'events'"),
    (lambda b: b.set_bolt("split", pass_on), "two components named 'split'"),
    (lambda b: b.set_output("events"), "two components named 'events'"),
    (lambda b: b.set_bolt("", pass_on), "needs a name, not ''"),
    (lambda b: b.set_bolt("a\ud83d", pass_on), r"named 'a\\ud83d': half a surrogate pair"),
    (lambda b: b.set_bolt("a", OddField()), r"bolt 'a': .* named 'b\\ud83d': half a surrogate"),
    (lambda b: b.set_bolt("a", pass_on), "bolt 'a' reads nothing"),
    (lambda b: b.set_output("out"), "output 'out' reads nothing"),
    (lambda b: b.set_bolt("a", pass_on).shuffle_grouping("splt"),
     "bolt 'a' reads 'splt', which is not there"),
    (lambda b: b.set_bolt("a", pass_on).shuffle_grouping("split", "sdie"),
     "bolt 'a' reads stream 'sdie' of 'split', which has: default, named, side"),
    (lambda b: b.set_bolt("a", pass_on).fields_grouping("split", "wrod"),
     "bolt 'a' groups 'split' by 'wrod', but its fields are: word, length"),
    (lambda b: b.set_bolt("a", pass_on).fields_grouping("split", "length", stream="side"),
     "bolt 'a' groups 'split.side' by 'length', but its fields are: word"),
    (lambda b: b.set_bolt("a", pass_on).fields_grouping("split"), "grouping without fields"),
    (lambda b: b.set_bolt("a", pass_on).direct_grouping("split", "side"),
     "bolt 'a' reads 'split.side' by direct grouping, but the stream is not declared as direct"),
    (lambda b: b.set_bolt("a", pass_on).shuffle_grouping("split", "named"),
     "bolt 'a' reads 'split.named' by shuffle grouping, but the stream is declared as direct"),
    (lambda b: b.set_bolt("a", pass_on, 0), "bolt 'a': parallelism = 0: expected 1 or more"),
    (lambda b: b.set_bolt("a", pass_on, concurrency=0), "bolt 'a': concurrency = 0: expected 1"),
    (lambda b: b.set_bolt("a", later), "bolt 'a' is async: say how many calls"),
    (lambda b: b.set_bolt("a", Split), "bolt 'a': <class .*Split'> is neither .* an instance"),
    (lambda b: b.set_bolt("a", 7), "bolt 'a': 7 is neither a Bolt nor a function"),
    (lambda b: b.set_bolt("a", TwiceTheField()), "bolt 'a': stream 'default' has a field twice"),
    (lambda b: b.set_bolt("a", UnknownDirect()),
     "bolt 'a': direct stream 'side' is not among its streams"),
    (lambda b: b.set_bolt("a", lambda event: [event]).shuffle_grouping("events"),
     "bolt 'a' cannot be pickled, .*at the top of a module"),
    (lambda b: b.set_bolt("a", Unpicklable()).shuffle_grouping("events"),
     "bolt 'a' cannot be pickled"),
    (lambda b: b.set_output("out", key="wrod", value=None).shuffle_grouping("split"),
     "output 'out' writes field 'wrod' of 'split', whose fields are: word, length"),
    (lambda b: b.set_output("out", key=None, value="value").shuffle_grouping("split"),
     "output 'out' writes field 'value'"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(
    add: Callable[[TopologyBuilder], Any], message: str
) -> None:
    """At the latest when the topology is built, before any data is read."""
    builder = _builder()
    with pytest.raises(TopologyBuildError, match=message):  # noqa: PT012 - either may raise
        add(builder)
        builder.build()


@pytest.mark.promise("process-topology-invalid-file")
def test_a_topology_needs_a_spout() -> None:
    with pytest.raises(TopologyBuildError, match="topology 'empty' has no spout"):
        TopologyBuilder("empty").build()


def test_what_tells_of_message_ids_has_to_be_sent_to_tasks() -> None:
    builder = TopologyBuilder("refused")
    builder.set_spout("events", tracked=lambda _event: True)
    with pytest.raises(TopologyBuildError, match="spout 'events' cannot be pickled"):
        builder.build()


def test_components_stand_behind_those_they_read() -> None:
    builder = TopologyBuilder("ordered")
    builder.set_output("out", key=None).shuffle_grouping("second")
    builder.set_bolt("second", pass_on).shuffle_grouping("first")
    builder.set_bolt("first", plain).shuffle_grouping("events")
    builder.set_spout("events")
    topology = builder.build()
    assert list(topology.components) == ["events", "first", "second", "out"]
    assert [one.kind for one in topology.components.values()] == [
        Kind.SPOUT, Kind.BOLT, Kind.BOLT, Kind.OUTPUT,
    ]  # fmt: skip
    assert isinstance(topology.components["first"].bolt, FunctionBolt)


def test_topics_are_named_once() -> None:
    """With the job's own for outputs without one."""
    builder = _builder()
    for name, topic in [("a", "x"), ("b", None), ("c", "x")]:
        builder.set_output(name, topic, key="word", value=None).shuffle_grouping("split")
    assert builder.build().topics("ordered") == ("x", "ordered")
