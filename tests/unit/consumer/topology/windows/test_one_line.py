"""One line builds an ordinary topology."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import ProcessSettings, TopologyBuilder, TopologyTester
from sequitur.errors import TopologyBuildError
from sequitur.windows import Count, Mean, Top, on_silence, session, sliding, stream, tumbling

if TYPE_CHECKING:
    from sequitur.consumer.topology import Topology


def _by_hand() -> Topology:
    builder = TopologyBuilder("clicks")
    builder.set_spout("clicks")
    bolt = session("30 min", count=Count(), mean=Mean("ms"))
    builder.set_bolt("windows", bolt).fields_grouping("clicks", "key")
    builder.set_output("results", "counts", value=None).local_grouping("windows")
    builder.set_output("late", "counts.late").local_grouping("windows", "late")
    return builder.build()


def _shown(topology: Topology) -> tuple[str, list[Any], list[Any]]:
    parts = [replace(one, bolt=None) for one in topology.components.values()]
    bolts: list[Any] = [one.bolt for one in topology.bolts]
    return topology.name, parts, [(type(one), one.fields, one.streams) for one in bolts]


@pytest.mark.promise("windows-one-line")
def test_it_is_the_topology_that_a_builder_makes() -> None:
    line = stream("clicks").window(session("30 min")).count().mean("ms").to("counts")
    assert _shown(line) == _shown(_by_hand())
    events = [("ann", {"ms": 1}, 0), ("ann", {"ms": 4}, 1_000), ("bob", {"ms": 2}, 9_000_000)]
    found = []
    for topology in (line, _by_hand()):
        tester = TopologyTester(topology)
        tester.run(events)
        tester.drain()
        tester.run([("ann", {"ms": 9}, 5)])
        found.append((tester.records("results"), tester.records("late")))
    assert found[0] == found[1]
    assert [len(one) for one in found[0]] == [2, 1]


@pytest.mark.promise("windows-one-line")
def test_it_computes_what_is_named() -> None:
    topology = (
        stream("readings")
        .window(tumbling("1 s", late="drop"))
        .count("u")
        .sum("u")
        .mean("u")
        .min("u")
        .max("u")
        .collect("u")
        .quantiles("u", 0.5)
        .aggregate(top=Top(1, "u"))
        .to("found")
    )
    tester = TopologyTester(topology)
    tester.run([("a", {"u": one}, 1) for one in (1, 2, 6)])
    tester.drain()
    ((_, value),) = tester.records("results")
    found = json.loads(value or b"")
    assert found.pop("quantiles") == [pytest.approx(2, rel=0.01)]
    assert found == {
        "begin_ms": 0,
        "end_ms": 1000,
        "count": 3,
        "sum": 9,
        "mean": 3.0,
        "min": 1,
        "max": 6,
        "collect": [1, 2, 6],
        "top": [6],
    }
    assert [one.id for one in topology.outputs] == ["results"]


@pytest.mark.promise("windows-one-line")
def test_its_key_may_be_a_field_of_the_value() -> None:
    """An event without the field fails."""
    topology = stream("clicks").key_by("user").window(session("30 min")).count().to("counts")
    tester = TopologyTester(topology, ProcessSettings(max_attempts=1))
    events = [("x", {"user": "ann"}, 0), ("y", {"user": "ann"}, 1_000), ("x", {"user": 7}, 2_000)]
    tester.run([*events, ("x", {}, 3_000)])
    tester.drain()
    tester.run([("z", {"user": "ann"}, 5)])
    assert sorted(tester.records("results")) == [
        (b"7", b'{"begin_ms":2000,"end_ms":1802000,"count":1}'),
        (b"ann", b'{"begin_ms":0,"end_ms":1801000,"count":2}'),
    ]
    assert tester.records("late") == [(b"ann", b'{"user":"ann"}')]
    assert ["no field 'user'" in one.detail for one in tester.dead_letters] == [True]


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: stream("s").window(tumbling("1 s")).to("t"), "tumbling: name what it computes"),
        (lambda: stream("s").window(sliding("1 s")).sum("a").sum("b"), "computes 'sum' already"),
        (lambda: stream("s").window(on_silence("1 s")), "SilenceBolt is not a window"),
    ],
)
def test_what_makes_no_topology_is_refused(make: Any, wrong: str) -> None:
    with pytest.raises(TopologyBuildError, match=wrong):
        make()
