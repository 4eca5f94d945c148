"""What a bolt keeps on itself and not in a snapshot: it is of the runs that counted alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.state import TransactionalState
from sequitur.consumer.topology.step.run import CountedRuns
from tests.support.transactions import (
    GatherAndPassOn,
    Journal,
    Noting,
    counts,
    events,
    faulty_store,
    store_in,
    text,
    unavailable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import (
        BasicOutputCollector,
        OutputCollector,
        TopologyContext,
        Tuple,
    )

_VALUES = [str(number) for number in range(6)]


class Notes(Journal):
    """Also notes what copies of bolts go through."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []


class Once(BasicBolt):
    """Passes each value on once, as long as it lives.

    Args:
        journal: Notes when a copy is prepared and cleaned up.
    """

    fields = ("transaction", "value")

    def __init__(self, journal: Notes) -> None:
        self.journal = journal

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.seen: set[str] = set()
        self.journal.noted.append("prepare")

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        value = text(tuple["value"])
        if value not in self.seen:
            self.seen.add(value)
            collector.emit((tuple["transaction"], value))

    def cleanup(self) -> None:
        self.journal.noted.append("cleanup")


def _tester(journal: Notes, folder: Path, *, is_behind: bool = False) -> TransactionTester:
    """Return: once, behind it a, then the committer sum; or once behind the committer."""
    states = {"count": TransactionalState(faulty_store(folder, "state", journal), "counts")}
    order = ["a", "sum", "once"] if is_behind else ["once", "a", "sum"]
    builder = TransactionalTopologyBuilder("copies", "spout")
    for before, name in zip(["spout", *order], order, strict=False):
        if name == "sum":
            made = builder.set_bolt(name, GatherAndPassOn(journal), states=states)
            made.global_grouping(before)
        else:
            made = builder.set_bolt(name, Once(journal) if name == "once" else Noting(journal))
            made.local_grouping(before)
    builder.set_output("out", key=None, value="value").local_grouping(order[-1])
    return TransactionTester(builder.build())


@pytest.mark.promise("process-bolt-transactional-topology")
@pytest.mark.parametrize("fault", ["a.1", "a.finish", "sum.finish"])
def test_no_pass_sees_what_another_left_in_a_bolt(fault: str, tmp_path: Path) -> None:
    """An event fails, or the batch, or its commit while nothing is written: all values come out."""
    journal = Notes()
    journal.faults[fault] = [ValueError("503")]
    tester = _tester(journal, tmp_path)
    tester.run(events(*_VALUES))
    tester.retry_all()
    assert journal.faults[fault] == []
    assert len(tester.acked) == len(_VALUES)
    assert sorted(text(value) for _, value in tester.records("out")) == _VALUES
    assert counts(store_in(tmp_path), "counts") == dict.fromkeys(_VALUES, 1)


@pytest.mark.promise("process-bolt-transactional-topology")
def test_no_try_at_a_commit_sees_what_another_left_in_a_bolt(tmp_path: Path) -> None:
    """The bolt is behind the committer, and the first task that commits is too late a failure."""
    journal = Notes()
    journal.faults["state.committed"] = [unavailable()]
    tester = _tester(journal, tmp_path, is_behind=True)
    tester.run(events(*_VALUES))
    assert journal.faults["state.committed"] == []
    assert sorted(text(value) for _, value in tester.records("out")) == _VALUES


@pytest.mark.promise("process-bolt-transactional-topology")
def test_a_copy_goes_on_after_a_run_that_counted(tmp_path: Path) -> None:
    """It is prepared once; one that was given an event which failed is cleaned up."""
    journal = Notes()
    tester = _tester(journal, tmp_path)
    for value in _VALUES[:3]:
        tester.run(events(value))
    assert journal.noted == ["prepare"]
    journal.faults["a.3"] = [ValueError("503")]
    tester.run(events("3", "4"))
    assert journal.noted == ["prepare"]
    tester.run(events("5"))
    assert journal.noted == ["prepare", "cleanup", "prepare"]
    tester.close()


def test_a_step_that_is_begun_again_takes_later_ones_with_it() -> None:
    """They were made ahead of it; a run is remembered for so many steps."""
    counted = CountedRuns()
    for step in range(3):
        counted.begin(step)
        counted.add(step, [f"{step}.process"])
    counted.add(0, ["0.commit"])
    counted.begin(1)
    assert counted.names == {"0.process", "0.commit"}
    for step in range(1, 200):
        counted.add(step, [f"{step}"])
    assert len(counted.names) == 64
    assert "199" in counted.names
