"""Bolts that go on from one batch to the next, and when they may not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    Bolt,
    ProcessSettings,
    Topology,
    TopologyBuilder,
    TopologyTester,
)
from sequitur.pipelines.topology.batch import FileBatch
from tests.support.bolts import HoldingBolt
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import (
        BasicOutputCollector,
        OutputCollector,
        TopologyContext,
        Tuple,
    )

_seen: list[str] = []


@pytest.fixture
def seen() -> Iterator[list[str]]:
    _seen.clear()
    yield _seen
    _seen.clear()


class Pooled(BasicBolt):
    """Takes down when it connects."""

    fields = ("value", "count")

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        _seen.append("prepare")
        self.count = 0

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        self.count += 1
        if tuple["value"] == b"bad":
            raise ValueError("bad")
        collector.emit((tuple["value"], self.count))

    def cleanup(self) -> None:
        _seen.append("cleanup")


class Counting(Pooled):
    """Keeps its count."""

    def snapshot(self) -> Any:
        return self.count

    def restore(self, state: Any) -> None:
        _seen.append(f"restore {state}")
        self.count = state


class Forgets(Bolt):
    """Neither acks nor fails."""

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        _seen.append("prepare")

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        """Forget it."""


class Pairs(HoldingBolt):
    """Joins the tuples of its batch, and forgets none of them by itself."""

    fields = ("value", "count")

    def finish_batch(self) -> None:
        self.collector.emit(("all", len(self.held)), self.held)
        for given in self.held:
            self.collector.ack(given)


class Loops(Pooled):
    """Is bound to the loop that it first runs on, as clients are."""

    loop: Any = None

    async def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # type: ignore[override]  # noqa: A002
        """Fail on any other loop."""
        running = asyncio.get_running_loop()
        self.loop = self.loop or running
        if self.loop is not running:
            raise RuntimeError("attached to another loop")
        collector.emit((tuple["value"], 1))


def _one(made: Any, **options: Any) -> Topology:
    builder = TopologyBuilder("pools")
    builder.set_spout("events")
    builder.set_bolt("work", made, **options).local_grouping("events")
    if made.fields:
        builder.set_output("out", key=None, value="count").local_grouping("work")
    return builder.build()


@pytest.mark.promise("process-bolt-holds-connections")
@pytest.mark.parametrize("made", [Pooled(), Counting()])
def test_a_bolt_is_prepared_once_over_batches(seen: list[str], made: Any) -> None:
    """In the tester and in the job's tasks; failing tuples change nothing of that."""
    tester = TopologyTester(_one(made), ProcessSettings(max_attempts=1))
    for value in ("a", "bad", "c"):
        tester.run([("k", value)])
    assert seen == ["prepare"]
    assert tester.records("out") == [(None, b"1"), (None, b"3")]
    tester.close()
    assert seen == ["prepare", "cleanup"]


@pytest.mark.promise("process-bolt-holds-connections")
def test_a_batch_bolt_begins_each_batch_with_nothing() -> None:
    """It may hold the tuples of a batch that is over, and must not see them again."""
    tester = TopologyTester(_one(Pairs()), ProcessSettings(max_attempts=1))
    tester.run([("k", "a"), ("k", "b")])
    tester.run([("k", "c")])
    assert tester.records("out") == [(None, b"2"), (None, b"1")]
    tester.close()


@pytest.mark.promise("process-bolt-holds-connections")
def test_a_bolt_of_a_job_goes_on_where_its_state_is_the_newest(
    seen: list[str], tmp_path: Path
) -> None:
    """A step that is repeated begins with what was kept before it, so its bolt is created again."""
    runs = StepRuns(_one(Counting()), tmp_path, life="one")
    runs.step([event(1)])
    before = dict(runs.states)
    runs.step([event(2)])
    assert seen == ["prepare"]
    runs.states = before  # the job died before it wrote down what the step came to
    runs.step([event(2)])
    assert seen == ["prepare", "cleanup", "prepare", "restore 1"]
    runs.step([event(3)])
    assert seen[4:] == []
    assert runs.records("out") == [(None, b"1"), (None, b"2"), (None, b"2"), (None, b"3")]


@pytest.mark.promise("process-bolt-holds-connections")
def test_another_life_makes_its_bolts_anew(seen: list[str], tmp_path: Path) -> None:
    """The topology's file may be another one by then."""
    runs = StepRuns(_one(Pooled()), tmp_path, life="one")
    runs.step([event(1)])
    runs.life = "two"
    runs.step([event(2)])
    assert seen == ["prepare", "cleanup", "prepare"]


@pytest.mark.promise("process-bolt-holds-connections")
def test_a_task_that_failed_leaves_no_bolt(
    seen: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is ahead of what was kept, or nobody knows where."""
    runs = StepRuns(_one(Pooled()), tmp_path, life="failing")
    runs.step([event(1)])

    def full(*_: Any) -> Any:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(FileBatch, "write_states", full)
        with pytest.raises(OSError, match="no space left"):
            runs.step([event(2)])
    assert seen == ["prepare", "cleanup"]
    runs.waiting.clear()
    runs.step([event(2)])
    assert seen == ["prepare", "cleanup", "prepare"]


@pytest.mark.promise("process-bolt-holds-connections")
def test_a_bolt_that_holds_a_tuple_is_made_anew(seen: list[str]) -> None:
    """The tuple failed as never-acked: what the bolt has of it belongs to no batch any more."""
    tester = TopologyTester(_one(Forgets()), ProcessSettings(max_attempts=1))
    tester.run([("k", "v")])
    tester.run([("k", "v")])
    assert seen == ["prepare", "prepare"]
    tester.run()
    tester.run()
    assert seen == ["prepare"] * 3


def test_async_bolts_stay_on_their_loop(seen: list[str], tmp_path: Path) -> None:
    """A client that a bolt keeps belongs to the loop it was made on."""
    runs = StepRuns(_one(Loops(), concurrency=4), tmp_path, life="loops")
    runs.step([event(1)])
    runs.step([event(2)])
    assert runs.counts["acked"] == 2
    assert runs.counts["failed"] == 0
    assert seen == ["prepare"]
    runs.life = "end"
    runs.step()
