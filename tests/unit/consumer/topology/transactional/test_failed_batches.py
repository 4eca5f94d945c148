"""Tries at a transaction that fail: what is processed again, and what is only committed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    Committer,
    FailBatch,
    ProcessSettings,
    TopologyTester,
    TransactionalTopologyBuilder,
    TransactionError,
    TransactionTester,
)
from sequitur.consumer.topology.state import SQLStore, TransactionalState
from tests.support.transactions import (
    Gather,
    GatherAndPassOn,
    Journal,
    Noting,
    NotingAtEnd,
    counts,
    events,
    faulty_store,
    keyed,
    rows,
    store_in,
    unavailable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import TransactionalTopology, Tuple

_VALUES = ("x", "y", "x")
_COUNTS = {"x": 2, "y": 1}
_FIRST = ["a.x", "a.finish", "sum.x", "sum.finish", "after.x"]
"""Points that are reached before any state is written."""


class SlowToCommit(Gather):
    """Takes longer than a tree may for the first value that it is given in the commit phase."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        super().process(tuple)
        if len(self.journal.of("sum", "process")) == len(_VALUES) + 1:
            TopologyTester.running().advance(3600)


class Fragile(str):
    """Text that cannot be unpickled where its journal says so."""

    __slots__ = ("journal",)
    journal: Journal

    def __reduce__(self) -> Any:
        """Be unpickled by a function that may raise."""
        return _thawed, (self.journal, str(self))


def _thawed(journal: Journal, value: str) -> Fragile:
    journal.pass_through("thaw")
    return fragile(journal, value)


def fragile(journal: Journal, value: str) -> Fragile:
    made = Fragile(value)
    made.journal = journal
    return made


class EmitsFragile(Noting):
    """Emits what may be found broken."""

    def pass_on(self, value: Any) -> None:
        self.collector.emit((self.transaction, fragile(self.journal, value)))


class BreaksThem(Gather):
    """In the processing phase sees to it that the commit phase finds one broken."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        super().process(tuple)
        if len(self.journal.of("sum", "process")) == 1:
            self.journal.faults["thaw"] = [None, None, ValueError("broken")]


class OwnDatabase(Noting, Committer):
    """Keeps what it counts by itself, with the transaction id, as Storm's documentation does."""

    def pass_on(self, value: Any) -> None:
        """Not yet."""

    def at_end(self) -> None:
        known = [one.attempt.transaction_id for one in self.journal.of("database", "write")]
        if self.transaction.transaction_id not in known:
            for value in self.values:
                self.journal.calls.append(
                    self.journal.calls[-1]._replace(
                        component="database",
                        what="write",
                        value=value,
                        attempt=self.transaction,
                    )
                )


def _topology(journal: Journal, store: SQLStore) -> TransactionalTopology:
    """Return: a, behind it the committer sum, behind that after."""
    states = {"count": TransactionalState(store, "counts")}
    builder = TransactionalTopologyBuilder("batches", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    builder.set_bolt("sum", GatherAndPassOn(journal), states=states).global_grouping("a")
    builder.set_bolt("after", NotingAtEnd(journal)).shuffle_grouping("sum")
    builder.set_output("out", key=None, value="value").local_grouping("after")
    return builder.build()


def _counting(first: Noting, last: Gather, store: SQLStore) -> TransactionTester:
    """Run a bolt, and a committer behind it."""
    builder = TransactionalTopologyBuilder("batches", "spout")
    builder.set_bolt("a", first).shuffle_grouping("spout")
    states = {"count": TransactionalState(store, "counts")}
    builder.set_bolt("sum", last, states=states).global_grouping("a")
    return TransactionTester(builder.build())


@pytest.mark.promise("state-commit-fails-failbatch")
@pytest.mark.parametrize("point", _FIRST)
@pytest.mark.parametrize("error", [FailBatch("not now"), FailBatch()])
def test_before_any_state_is_written_all_is_processed_again(
    point: str, error: FailBatch, tmp_path: Path
) -> None:
    """FailBatch fails this try at the batch, whoever raises it; no event has failed."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults[point] = [error]
    tester = TransactionTester(_topology(journal, store))
    tester.run(events(*_VALUES))
    assert journal.finishes_of("a")[-1] == 2
    assert journal.finishes_of("sum")[-1] == 2
    assert counts(store, "counts") == _COUNTS
    assert [value for _, value in tester.records("out")] == [b"x", b"y", b"x", b"end of after"]
    assert [event.value for event in tester.acked] == [b"x", b"y", b"x"]
    assert [one.attempt.attempt_id for one in tester.failed_tries] == [1]
    assert (tester.transaction_id, tester.now_s) == (1, 0.1)
    assert not tester.dead_letters
    assert not tester.failed


@pytest.mark.promise("state-commit-fails-failbatch")
@pytest.mark.parametrize("error", [FailBatch("not now"), ValueError("cannot")])
def test_once_state_may_be_written_only_the_commit_is_repeated(
    error: Exception, tmp_path: Path
) -> None:
    """The bolt behind the committer fails: what was processed stays, and is committed again."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults["after.finish"] = [error, error]
    tester = TransactionTester(_topology(journal, store))
    tester.run(events(*_VALUES))
    assert journal.finishes() == [
        ("a", 1), ("sum", 1), ("after", 1), ("sum", 2), ("after", 2), ("sum", 3), ("after", 3),
    ]  # fmt: skip
    assert rows(store, "counts") == {"x": (2, None, 1), "y": (1, None, 1)}
    assert [value for _, value in tester.records("out")] == [b"x", b"y", b"x", b"end of after"]
    assert len(tester.acked) == 3


@pytest.mark.parametrize("error", [FailBatch("not now"), ValueError("cannot")])
@pytest.mark.parametrize("point", ["first.finish", "second.finish"])
def test_of_two_committers_one_fails(error: Exception, point: str, tmp_path: Path) -> None:
    """Both compute before any writes: all is processed again."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults[point] = [error]
    builder = TransactionalTopologyBuilder("batches", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    for name, before in (("first", "a"), ("second", "first")):
        states = {"count": TransactionalState(store, f"{name}_counts")}
        declarer = builder.set_bolt(name, Gather(journal), states=states)
        declarer.global_grouping(before)
    tester = TransactionTester(builder.build())
    tester.run(events(*_VALUES))
    tester.run(events("z"))
    assert journal.finishes_of("a") == [1, 2, 1]
    assert journal.finishes_of("first") == [1, 2, 1]
    assert journal.finishes_of("second") == ([2, 1] if point == "first.finish" else [1, 2, 1])
    for name in ("first", "second"):
        assert counts(store, f"{name}_counts") == {**_COUNTS, "z": 1}


@pytest.mark.promise("state-commit-fails-failbatch")
@pytest.mark.parametrize("task", [0, 1])
def test_of_two_tasks_one_fails(task: int, tmp_path: Path) -> None:
    """The other has not written either: all is processed again, and each key is counted once."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults[f"sum.{task}.finish"] = [FailBatch("not now")]
    builder = TransactionalTopologyBuilder("batches", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    states = {"count": TransactionalState(store, "counts")}
    builder.set_bolt("sum", Gather(journal), 2, states=states).fields_grouping("a", "value")
    tester = TransactionTester(builder.build())
    values = [str(number) for number in range(20)]
    tester.run(events(*values))
    assert {one.task for one in journal.of("sum", "process")} == {0, 1}
    assert journal.finishes_of("a") == [1, 2]
    assert sorted(journal.finishes_of("sum")) == [1, 1, 2, 2]
    assert counts(store, "counts") == dict.fromkeys(values, 1)


@pytest.mark.promise("state-bolt-raises-event")
@pytest.mark.parametrize("point", ["a.finish", "sum.finish", "after.finish"])
def test_a_bolt_that_always_raises_ends_the_life(point: str, tmp_path: Path) -> None:
    """After max_attempts by name; the next life goes on with the transaction."""
    journal, store = Journal(), store_in(tmp_path)
    topology = _topology(journal, store)
    tester = TransactionTester(topology)
    tester.run(events("x"))
    journal.faults[point] = [ValueError("cannot")] * 50  # without any event, too
    tester = TransactionTester(topology, ProcessSettings(max_attempts=3), resumes_after=1, life=2)
    component = point.split(".", maxsplit=1)[0]
    with pytest.raises(TransactionError, match=rf"transaction 2 .* 3 times, last in {component}:"):
        tester.run(events("y"))
    assert (tester.transaction_id, tester.acked) == (1, [])
    journal.faults[point].clear()
    tester = TransactionTester(topology, resumes_after=1, life=3)
    tester.run(events("y"))
    assert tester.transaction_id == 2
    assert counts(store, "counts") == {"x": 1, "y": 1}


def test_the_same_tester_goes_on_too(tmp_path: Path) -> None:
    """With the same events, in further tries at the same transaction."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults["after.finish"] = [ValueError("cannot")] * 7
    tester = TransactionTester(_topology(journal, store), ProcessSettings(max_attempts=3))
    for _ in range(2):
        with pytest.raises(TransactionError):
            tester.run(events("x"))
    tester.run(events("x"))
    assert journal.finishes_of("after") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (tester.transaction_id, len(tester.acked)) == (1, 1)
    assert counts(store, "counts") == {"x": 1}


def test_what_is_asked_for_and_what_is_away_are_not_counted(tmp_path: Path) -> None:
    """A bolt may ask for any number of tries, and a database be away for any time."""
    journal = Journal()
    store = faulty_store(tmp_path, "db", journal)
    journal.faults["sum.finish"] = [FailBatch("not now")] * 9
    journal.faults["db.commit"] = [unavailable()] * 9
    tester = TransactionTester(_topology(journal, store), ProcessSettings(max_attempts=1))
    tester.run(events("x"))
    assert len(tester.failed_tries) == 18
    assert counts(store, "counts") == {"x": 1}


def test_waits_grow(tmp_path: Path) -> None:
    journal = Journal()
    journal.faults["a.finish"] = [FailBatch("not now")] * 4
    tester = TransactionTester(_topology(journal, store_in(tmp_path)))
    tester.run(events("x"))
    assert tester.now_s == pytest.approx(0.1 + 0.2 + 0.4 + 0.8)


@pytest.mark.promise("state-commit-takes-longer")
def test_a_slow_commit_leaves_nothing_out(tmp_path: Path) -> None:
    """A tree takes longer than call_timeout there, and later ones of its key come behind it."""
    journal, store = Journal(), store_in(tmp_path)
    tester = _counting(Noting(journal), SlowToCommit(journal), store)
    tester.run(keyed(*(("k", value) for value in _VALUES)))
    assert tester.now_s >= 3600
    assert counts(store, "counts") == _COUNTS
    assert len(tester.acked) == 3


def test_what_cannot_be_unpickled_in_the_commit_phase_fails_it(tmp_path: Path) -> None:
    """It could be before: without it the commit would lack it, and nobody would know."""
    journal, store = Journal(), store_in(tmp_path)
    tester = _counting(EmitsFragile(journal), BreaksThem(journal), store)
    tester.run(keyed(*(("k", value) for value in _VALUES)))
    assert "broken" in tester.failed_tries[0].detail
    assert counts(store, "counts") == _COUNTS
    assert len(tester.acked) == 3


def test_a_committer_with_a_database_of_its_own_commits_the_same_again() -> None:
    """Nobody but itself knows whether it has written: it is not given another batch."""
    journal = Journal()
    journal.faults["sum.finish"] = [ValueError("written, but not told")]
    journal.faults["a.x"] = [None, ValueError("would fail now")]
    builder = TransactionalTopologyBuilder("own", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    builder.set_bolt("sum", OwnDatabase(journal)).global_grouping("a")
    tester = TransactionTester(builder.build())
    tester.run(events("x", "y"))
    tester.retry_all()
    assert [one.value for one in journal.of("database", "write")] == ["x", "y"]
    assert journal.finishes_of("a") == [1]
    assert len(tester.acked) == 2
