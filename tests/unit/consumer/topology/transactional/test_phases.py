"""Which bolts are given what in which phase, and what the first field of their tuples is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    Committer,
    FailBatch,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    TransactionTester,
)
from sequitur.consumer.topology.state import TransactionalState
from tests.support.transactions import (
    Gather,
    Journal,
    Noting,
    NotingAtEnd,
    PassOn,
    counts,
    events,
    store_in,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import Tuple


class EmitsFirst(BaseTransactionalBolt):
    """Emits something as the first value; once what it is given says so, the attempt.

    Args:
        first: The wrong value.
    """

    fields = ("transaction", "value")

    def __init__(self, first: Any) -> None:
        self.first = first

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        is_right = tuple["value"] != b"bad"
        self.collector.emit((self.transaction if is_right else self.first, tuple["value"]))


class EmitsOldAtEnd(NotingAtEnd):
    """Emits the attempt of the try before in its second try."""

    def at_end(self) -> None:
        number, tried = self.transaction
        told = TransactionAttempt(number, 1) if tried == 2 else self.transaction
        self.collector.emit((told, "total"))


class Committing(NotingAtEnd, Committer):
    """Commits."""


def _a_b_c_d(journal: Journal) -> TransactionTester:
    """Return the example of Storm's documentation: B and D commit, C stands behind B."""
    builder = TransactionalTopologyBuilder("example", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    builder.set_bolt("b", Committing(journal)).global_grouping("a")
    builder.set_bolt("c", Noting(journal), 1).global_grouping("a").global_grouping("b")
    builder.set_committer_bolt("d", NotingAtEnd(journal)).global_grouping("c")
    builder.set_output("out", key=None, value="value").local_grouping("d")
    return TransactionTester(builder.build())


def test_the_example_of_storms_documentation() -> None:
    """Only A finishes in the processing phase; B, then C behind it, then D in the commit phase."""
    journal = Journal()
    tester = _a_b_c_d(journal)
    tester.run(events("x"))
    assert [(one.component, one.what, one.value) for one in journal.calls] == [
        # The processing phase.
        ("a", "process", "x"),
        ("a", "finish", None),
        ("b", "process", "x"),
        ("c", "process", "x"),
        ("d", "process", "x"),
        # The commit phase.
        ("b", "process", "x"),
        ("b", "finish", None),
        ("c", "process", "x"),
        ("d", "process", "x"),
        ("c", "process", "x"),
        ("d", "process", "x"),
        ("c", "process", "end of b"),
        ("d", "process", "end of b"),
        ("c", "finish", None),
        ("d", "finish", None),
    ]
    assert [value for _, value in tester.records("out")] == [b"x", b"x", b"end of b", b"end of d"]
    assert len(tester.acked) == 1


@pytest.mark.promise("state-later-batches-processed")
def test_commits_come_one_after_the_other() -> None:
    """All committers of a batch have finished before any bolt is given the next."""
    journal = Journal()
    tester = _a_b_c_d(journal)
    for value in ("x", "y", "z"):
        tester.run(events(value))
    ids = [one.attempt.transaction_id for one in journal.calls]
    assert ids == sorted(ids)
    finished = [one.attempt.transaction_id for one in journal.of("d", "finish")]
    assert finished == [1, 2, 3]


def test_an_empty_run_is_a_transaction_too() -> None:
    """Every bolt that has batches finishes one, in each task."""
    journal = Journal()
    tester = _a_b_c_d(journal)
    tester.run()
    assert journal.finishes() == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert tester.transaction_id == 1


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("x", id="text"),
        pytest.param(None, id="none"),
        pytest.param((1, 1), id="plain tuple"),
        pytest.param(TransactionAttempt(1, 2), id="another try"),
        pytest.param(TransactionAttempt(7, 1), id="another transaction"),
    ],
)
def test_what_begins_with_something_else_fails_its_event(first: Any, tmp_path: Path) -> None:
    """It is an EmitError that names the attempt; all other events are committed."""
    store, journal = store_in(tmp_path), Journal()
    builder = TransactionalTopologyBuilder("first", "spout")
    builder.set_bolt("emits", EmitsFirst(first)).shuffle_grouping("spout")
    builder.set_bolt(
        "sum", Gather(journal), states={"count": TransactionalState(store, "counts")}
    ).global_grouping("emits")
    tester = TransactionTester(builder.build())
    tester.run(events("good", "bad"))
    assert [event.value for event in tester.failed] == [b"bad"]
    tester.retry_all()
    (dead,) = tester.dead_letters
    assert dead.event.value == b"bad"
    assert "EmitError" in dead.detail
    assert "TransactionAttempt" in dead.detail
    assert counts(store, "counts") == {"good": 1}


def test_an_old_attempt_at_the_end_fails_the_batch() -> None:
    """In the second try a bolt emits that of the first: it is refused, and there is a third."""
    journal = Journal()
    journal.faults["a.finish"] = [FailBatch("once more")]
    builder = TransactionalTopologyBuilder("old", "spout")
    builder.set_bolt("a", EmitsOldAtEnd(journal)).shuffle_grouping("spout")
    builder.set_bolt("d", Committing(journal)).global_grouping("a")
    tester = TransactionTester(builder.build())
    tester.run(events("x"))
    assert [one.attempt.attempt_id for one in tester.failed_tries] == [1, 2]
    assert "EmitError" in tester.failed_tries[1].detail
    given = {one.attempt.attempt_id for one in journal.of("d", "process")}
    assert given == {1, 3}
    assert journal.finishes_of("d") == [3]


def test_a_repeated_commit_gives_the_new_attempt() -> None:
    """What was prepared in the first try has the attempt of the second: bolts may pass it on."""
    journal = Journal()
    journal.faults["end.finish"] = [None, FailBatch("behind the commit")]
    builder = TransactionalTopologyBuilder("new", "spout")
    builder.set_bolt("a", NotingAtEnd(journal)).shuffle_grouping("spout")
    builder.set_committer_bolt("first", NotingAtEnd(journal)).global_grouping("a")
    builder.set_bolt("pass", PassOn(), 1).global_grouping("a").global_grouping("first")
    builder.set_committer_bolt("end", NotingAtEnd(journal)).global_grouping("pass")
    tester = TransactionTester(builder.build())
    tester.run(events("x"))
    journal.clear()
    tester.run(events("y"))
    assert journal.finishes_of("a") == [1]
    given = [one.attempt for one in journal.of("end", "process")]
    assert given[-4:] == [TransactionAttempt(2, 2)] * 4
    assert set(given) == {TransactionAttempt(2, 1), TransactionAttempt(2, 2)}


@pytest.mark.promise("state-later-batches-processed")
def test_transactions_are_counted_without_gaps() -> None:
    """Through failed events, their retries, failed tries, ticks and empty runs."""
    journal = Journal()
    builder = TransactionalTopologyBuilder("ids", "spout", tick_interval=1)
    builder.set_bolt("a", Ticked(journal)).shuffle_grouping("spout")
    builder.set_committer_bolt("end", Ticked(journal)).global_grouping("a")
    tester = TransactionTester(builder.build())
    journal.faults["a.x"] = [ValueError("an event fails")]
    tester.run(events("x", "y"))
    tester.retry_all()
    journal.faults["end.finish"] = [FailBatch("a try fails"), FailBatch("and another")]
    tester.run(events("z"))
    tester.run()
    tester.advance(1)
    tester.run()
    assert tester.transaction_id == 5
    ids = [one.attempt.transaction_id for one in journal.of("end", "finish")]
    assert ids == [1, 2, 3, 3, 3, 4, 5]
    attempts = [one.attempt for one in journal.of("end", "finish")]
    assert len(set(attempts)) == len(attempts)
    assert attempts == sorted(attempts)
    assert "tick" in [one.value for one in journal.of("end", "process")]


class Ticked(NotingAtEnd):
    """Notes ticks, too."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if tuple.is_tick:
            self._note("process", "tick", self.transaction)
        else:
            super().process(tuple)
