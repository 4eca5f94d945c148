"""Ticks that a bolt refuses: nothing counts of what it did in the first such call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    TopologyBuilder,
    TopologyTester,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.state import TransactionalState
from tests.support.step_runs import StepRuns, event
from tests.support.transactions import GatherAndPassOn, Journal, Noting, events, store_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Topology, Tuple

_refused: list[int] = []


@pytest.fixture(autouse=True)
def refused() -> Iterator[list[int]]:
    """How many calls are to be refused yet, behind the first value that is emitted."""
    _refused[:] = [0]
    yield _refused
    _refused.clear()


class Windows(BasicBolt):
    """Emits and forgets at a tick what it was given; between two of these it may raise."""

    fields = ("value",)

    def __init__(self) -> None:
        self.values: list[str] = []

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        if not tuple.is_tick:
            self.values.append(tuple["value"].decode())
            return
        while self.values:
            collector.emit((self.values.pop(0),))
            if _refused[0]:
                _refused[0] -= 1
                raise ConnectionError("503")

    def snapshot(self) -> Any:
        return self.values

    def restore(self, state: Any) -> None:
        self.values = state


class Seen(BasicBolt):
    """Passes on what it is given, with its number."""

    fields = ("value",)
    count = 0

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        self.count += 1
        collector.emit((f"{self.count}.{tuple['value']}",))


def _topology(*, tasks: int | None, concurrency: int = 1) -> Topology:
    builder = TopologyBuilder("windows")
    builder.set_spout("events")
    made = builder.set_bolt("windows", Windows(), tick_interval="1 s", concurrency=concurrency)
    made.local_grouping("events")
    builder.set_bolt("seen", Seen(), tasks).global_grouping("windows")
    builder.set_output("out", key=None, value="value").local_grouping("seen")
    builder.set_output("raw", key=None, value="value").local_grouping("windows")
    return builder.build()


def _values(records: list[tuple[bytes | None, bytes | None]]) -> list[str]:
    return [(value or b"").decode() for _, value in records]


@pytest.mark.promise("process-bolt-raises-tick")
@pytest.mark.parametrize("tasks", [None, 2])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_refused_tick_loses_and_repeats_nothing(
    tasks: int | None, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is repeated at once, as the batch began; what the second call does counts."""
    tester = TopologyTester(_topology(tasks=tasks), partitions=1)
    tester.run([("k", value) for value in "abc"])
    _refused[0] = times
    tester.advance(2)
    with caplog.at_level(logging.ERROR, "sequitur.topology.windows.windows.0"):
        tester.run([("k", "d")])
    assert caplog.text.count("a tick failed") == min(times, 2)
    assert tester.untracked_failures == min(times, 2)
    assert _values(tester.records("raw")) == (list("abc") if times == 1 else ["a"])
    tester.advance(2)
    tester.run()
    assert _refused == [0]
    assert _values(tester.records("raw")) == list("abcd")
    assert _values(tester.records("out")) == ["1.a", "2.b", "3.c", "4.d"]


@pytest.mark.promise("process-bolt-raises-tick")
@pytest.mark.parametrize(("tasks", "concurrency"), [(None, 1), (2, 1), (2, 4)])
def test_a_job_repeats_a_refused_tick(
    tasks: int | None, concurrency: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its files, and where calls run side by side."""
    topology = _topology(tasks=tasks, concurrency=concurrency)
    runs = StepRuns(topology, tmp_path, life="one")
    runs.step(monkeypatch, [event(at, b"v%d" % at, key=b"k") for at in range(3)])
    _refused[0] = 1
    runs.ticks = {"windows": 1_000}
    runs.step(monkeypatch, [event(3, b"v3", key=b"k")])
    assert _refused == [0]
    assert _values(runs.records("raw")) == ["v0", "v1", "v2"]
    assert _values(runs.records("out")) == ["1.v0", "2.v1", "3.v2"]
    runs.step(monkeypatch)
    assert _values(runs.records("raw")) == ["v0", "v1", "v2", "v3"]


class AtTicks(Noting):
    """Behind a committer: emits at a tick, and may raise then."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if tuple.is_tick:
            self.pass_on("tick")
            self.journal.pass_through("tick")


@pytest.mark.promise("process-bolt-raises-tick")
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_refused_tick_of_a_commit_puts_nothing_out(times: int, tmp_path: Path) -> None:
    """What a commit adds to a step is left out as the rest of the step is."""
    journal = Journal()
    journal.faults["tick"] = [ConnectionError("503")] * times
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    builder = TransactionalTopologyBuilder("ticks", "spout")
    builder.set_bolt("sum", GatherAndPassOn(journal), states=states).global_grouping("spout")
    made = builder.set_bolt("after", AtTicks(journal), tick_interval="1 s")
    made.global_grouping("sum")
    builder.set_output("out", key=None, value="value").local_grouping("after")
    # Its processing phase is a rehearsal, in which each tick is given as well.
    journal.faults["tick"] = [None, *journal.faults["tick"]]
    tester = TransactionTester(builder.build())
    tester.run(events("a"))
    tester.advance(2)
    tester.run(events("b"))
    assert journal.faults["tick"] == []
    assert _values(tester.records("out")) == ["tick"]
