"""Events that fail in the processing phase: the batch is processed again without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import (
    FailReason,
    ProcessSettings,
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
    counts,
    events,
    keyed,
    store_in,
    text,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import Tuple

_POINTS = ["a", "sum", "after"]
_FAILURE = ValueError("cannot use it")
_ALWAYS = [_FAILURE] * 8
"""Of a call that is repeated, as those of a later run of a bolt are."""


class Halves(Noting):
    """Begins something for each value, and ends it again; a batch with an open end it refuses."""

    open = 0

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        """Begin and end it, but for what is bad."""
        self.open += 1
        self.journal.pass_through(f"half.{text(tuple['value'])}")
        self.open -= 1
        self.collector.emit((self.transaction, text(tuple["value"])))

    def at_end(self) -> None:
        if self.open:
            raise ValueError(f"{self.open} open")


def _tester(
    journal: Journal,
    store: SQLStore,
    settings: ProcessSettings | None = None,
    *,
    first: Noting | None = None,
) -> TransactionTester:
    """Return: a, behind it the committer sum, behind that after; what sum emits is written."""
    states = {"count": TransactionalState(store, "counts")}
    builder = TransactionalTopologyBuilder("events", "spout")
    builder.set_bolt("a", first or Noting(journal)).shuffle_grouping("spout")
    builder.set_bolt("sum", GatherAndPassOn(journal), states=states).global_grouping("a")
    builder.set_bolt("after", Noting(journal)).shuffle_grouping("sum")
    builder.set_output("out", key=None, value="value").local_grouping("after")
    return TransactionTester(builder.build(), settings)


def _values(tester: TransactionTester) -> list[str]:
    return [text(value) for _, value in tester.records("out")]


@pytest.mark.promise("state-event-fails-batch")
@pytest.mark.parametrize("point", _POINTS)
def test_the_commit_has_only_the_others(point: str, tmp_path: Path) -> None:
    """Before the committers, in one, and behind one; the event itself is in a later commit."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults[f"{point}.bad"] = [_FAILURE]
    tester = _tester(journal, store)
    tester.run(events("x", "bad", "y"))
    assert counts(store, "counts") == {"x": 1, "y": 1}
    assert _values(tester) == ["x", "y"]
    assert [event.value for event in tester.acked] == [b"x", b"y"]
    assert [event.value for event in tester.failed] == [b"bad"]
    runs = 1 if point == "a" else 2  # a goes on from a copy, but keeps what fails behind it
    assert journal.finishes() == [*[("a", 1)] * runs, ("sum", 1), ("after", 1)]
    assert not tester.failed_tries
    tester.retry_all()
    assert counts(store, "counts") == {"x": 1, "y": 1, "bad": 1}
    assert _values(tester) == ["x", "y", "bad"]
    assert tester.transaction_id == 2


@pytest.mark.promise("state-event-fails-batch")
@pytest.mark.parametrize("point", _POINTS)
def test_later_ones_of_its_key_wait(point: str, tmp_path: Path) -> None:
    """They are in no commit before it, though they have not failed; other keys go on."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults[f"{point}.bad"] = [_FAILURE, _FAILURE]
    tester = _tester(journal, store)
    tester.run(keyed(("k", "before"), ("k", "bad"), ("m", "other"), ("k", "later")))
    assert counts(store, "counts") == {"before": 1, "other": 1}
    assert [event.value for event in tester.held] == [b"later"]
    tester.run([{"key": "k", "value": "last", "event_time_ms": 9}])
    tester.retry_all()
    assert sorted(_values(tester)) == sorted(["before", "other", "bad", "later", "last"])
    of_key = [value for value in _values(tester) if value != "other"]
    assert of_key == ["before", "bad", "later", "last"]
    assert set(counts(store, "counts").values()) == {1}


@pytest.mark.parametrize("point", _POINTS)
def test_an_event_that_never_passes_is_dead_lettered(point: str, tmp_path: Path) -> None:
    """After its attempts, each in a transaction of its own; later ones of its key go on."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults[f"{point}.bad"] = [_FAILURE] * 99
    tester = _tester(journal, store, ProcessSettings(max_attempts=3))
    tester.run(keyed(("k", "bad"), ("k", "later")))
    tester.retry_all()
    (dead,) = tester.dead_letters
    assert (dead.event.value, dead.attempts, dead.reason) == (b"bad", 3, FailReason.EXCEPTION)
    assert dead.path[-1] == point
    assert counts(store, "counts") == {"later": 1}
    assert [event.value for event in tester.acked] == [b"later"]
    assert tester.transaction_id == len(journal.of("sum", "finish"))


@pytest.mark.promise("state-event-fails-batch")
def test_two_waves_of_failures(tmp_path: Path) -> None:
    """Some fail once the others are without the first that failed: they are taken out, too."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults["sum.first"] = [_FAILURE]
    journal.faults["sum.second"] = [None, *_ALWAYS]
    journal.faults["after.third"] = [None, None, *_ALWAYS]
    tester = _tester(journal, store)
    tester.run(events("first", "x", "second", "third", "y"))
    assert counts(store, "counts") == {"x": 1, "y": 1}
    assert _values(tester) == ["x", "y"]
    assert sorted(event.value or b"" for event in tester.failed) == [b"first", b"second", b"third"]
    assert len(journal.of("a", "finish")) == 4
    assert journal.finishes_of("sum") == [1]
    tester.retry_all()
    assert counts(store, "counts") == dict.fromkeys(["first", "x", "second", "third", "y"], 1)
    assert len(tester.acked) == 5


def test_a_wave_holds_back_what_ran_in_the_one_before(tmp_path: Path) -> None:
    """An event fails only in the second wave: later ones of its key, done in the first, wait."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults["sum.elsewhere"] = [_FAILURE]
    journal.faults["after.bad"] = [None, *_ALWAYS]
    tester = _tester(journal, store)
    tester.run(keyed(("m", "elsewhere"), ("k", "bad"), ("k", "later"), ("n", "x")))
    assert counts(store, "counts") == {"x": 1}
    tester.retry_all()
    assert [value for value in _values(tester) if value in {"bad", "later"}] == ["bad", "later"]
    assert set(counts(store, "counts").values()) == {1}


def test_all_events_of_a_batch_fail(tmp_path: Path) -> None:
    """The transaction is committed nevertheless, and holds nothing."""
    journal, store = Journal(), store_in(tmp_path)
    journal.faults["a"] = [_FAILURE] * 2
    tester = _tester(journal, store)
    tester.run(events("x", "y"))
    assert (tester.transaction_id, counts(store, "counts")) == (1, {})
    tester.retry_all()
    assert counts(store, "counts") == {"x": 1, "y": 1}


def test_what_a_bolt_raises_over_part_of_a_failed_event(tmp_path: Path) -> None:
    journal, store = Journal(), store_in(tmp_path)
    journal.faults["half.bad"] = [_FAILURE] * 99
    settings = ProcessSettings(max_attempts=2)
    tester = _tester(journal, store, settings, first=Halves(journal))
    tester.run(events("x", "bad"))
    assert counts(store, "counts") == {"x": 1}
    assert not tester.failed_tries
    tester.retry_all()
    assert [dead.event.value for dead in tester.dead_letters] == [b"bad"]


def test_a_state_is_there_in_finish_batch_alone(tmp_path: Path) -> None:
    """In `process` of a committer, and in other bolts, it fails the event by name."""
    journal, store = Journal(), store_in(tmp_path)
    builder = TransactionalTopologyBuilder("states", "spout")
    builder.set_bolt("a", UsesState(journal)).shuffle_grouping("spout")
    states = {"count": TransactionalState(store, "counts")}
    builder.set_bolt("sum", UsesStateEarly(journal), states=states).global_grouping("a")
    tester = TransactionTester(builder.build(), ProcessSettings(max_attempts=1))
    tester.run(events("x", "in a", "in sum"))
    assert counts(store, "counts") == {"x": 1}
    details = {dead.event.value: dead.detail for dead in tester.dead_letters}
    assert details.keys() == {b"in a", b"in sum"}
    for value, detail in details.items():
        component = (value or b"").decode().removeprefix("in ")
        assert f"StateError: bolt '{component}', state 'count': a state is used in" in (
            detail.replace("sequitur.errors.", "")
        )


@pytest.mark.parametrize("has", ["count", "none"])
def test_an_unknown_state_fails_the_batch_by_name(has: str, tmp_path: Path) -> None:
    """It is a fault of the bolt: the transaction fails for good."""
    journal, store = Journal(), store_in(tmp_path)
    builder = TransactionalTopologyBuilder("states", "spout")
    states = {"count": TransactionalState(store, "counts")} if has == "count" else {}
    builder.set_bolt("sum", Gather(journal, ["other"]), states=states).global_grouping("spout")
    tester = TransactionTester(builder.build())
    with pytest.raises(TransactionError, match=rf"state 'other'.* it has: {has}"):
        tester.run(events("x"))


class UsesState(Noting):
    """Uses a state in `process`, where its value says so."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if text(tuple["value"]) == f"in {self.context.component}":
            self.context.state("count").get("x")
        super().process(tuple)


class UsesStateEarly(UsesState, Gather):
    """A committer that does."""
