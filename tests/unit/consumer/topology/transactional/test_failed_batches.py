"""Tries at a transaction that fail: what is processed again, and what is only committed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    Committer,
    FailReason,
    ProcessSettings,
    TopologyTester,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.state import SQLStore, TransactionalState
from sequitur.errors import FailBatch, StateError, TransactionError
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
    text,
    unavailable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import Tuple
    from sequitur.consumer.topology.transactional.builder import TransactionalTopology


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


@pytest.mark.promise("state-commit-fails-failbatch")
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("point", ["db.commit", "db.committed"])
def test_what_a_database_says_that_is_no_value_s_fault_is_tried_again(
    point: str, tasks: int, tmp_path: Path
) -> None:
    """As often as what a bolt raises, whether one task writes or several."""
    journal = Journal()
    store = faulty_store(tmp_path, "db", journal)
    journal.faults[point] = [StateError("permission denied")] * 4
    builder = TransactionalTopologyBuilder("batches", "spout")
    states = {"count": TransactionalState(store, "counts")}
    declarer = builder.set_bolt("sum", Gather(journal), tasks, states=states)
    declarer.fields_grouping("spout", "value")
    tester = TransactionTester(builder.build())
    tester.run(events("x"))
    assert all("sum: permission denied" in one.detail for one in tester.failed_tries)
    assert tester.failed_tries
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
    with pytest.raises(TransactionError, match=rf"state 'other'.* It has: {has}"):
        tester.run(events("x"))


class UsesState(Noting):
    """Uses a state in `process`, where its value says so."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if text(tuple["value"]) == f"in {self.context.component}":
            self.context.state("count").get("x")
        super().process(tuple)


class UsesStateEarly(UsesState, Gather):
    """A committer that does."""


_SETTINGS = ProcessSettings.model_validate({"max_attempts": 3, "retry_delay": "1 ms"})


class _Total(BaseTransactionalBolt):
    """Adds numbers at the end of a batch."""

    fields = ("transaction", "total")

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self._values: list[bytes] = []

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self._values.append(tuple["value"])

    def finish_batch(self) -> None:
        self.collector.emit((self.transaction, sum(map(int, self._values))))


class _Passes(BaseTransactionalBolt, Committer):
    """Emits what it is given, at the end of a batch; it takes no odd total."""

    fields = ("transaction", "total")

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self._totals: list[int] = []

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if tuple["total"] % 2:
            raise ValueError(f"{tuple['total']} is odd")
        self._totals.append(tuple["total"])

    def finish_batch(self) -> None:
        self.collector.emit((self.transaction, sum(self._totals)))


def _totals() -> TransactionalTopology:
    builder = TransactionalTopologyBuilder("totals", "events")
    builder.set_bolt("total", _Total(), 2).fields_grouping("events", "key")
    builder.set_bolt("passes", _Passes()).global_grouping("total")
    builder.set_output("out", key=None, value="total").local_grouping("passes")
    return builder.build()


def _totals_tester() -> TransactionTester:
    return TransactionTester(_totals(), _SETTINGS, partitions=3)


@pytest.mark.promise("state-bolt-raises-end")
@pytest.mark.parametrize("bad", [{3}, {0}, {19}, {3, 4, 17}])
def test_the_events_to_blame_are_dead_lettered(bad: set[int]) -> None:
    """After as many tries as a bolt has; the batch is committed with all others."""
    tester = _totals_tester()
    tester.run([(f"k{number}", "x" if number in bad else "2", number) for number in range(20)])
    assert tester.records("out") == [(None, b"%d" % (2 * (20 - len(bad))))]
    assert {one.event.event_time_ms for one in tester.dead_letters} == bad
    letter = tester.dead_letters[0]
    assert letter.reason is FailReason.EXCEPTION
    assert "ValueError: invalid literal" in letter.detail
    assert letter.path == ("total",)
    assert len(tester.acked) == 20 - len(bad)
    assert len(tester.failed_tries) == 2


@pytest.mark.promise("state-bolt-raises-end")
def test_a_tuple_of_the_batch_that_fails_further_on_is_traced_back() -> None:
    """What a bolt emits at the end of a batch belongs to all of its events: one is to blame."""
    tester = _totals_tester()
    tester.run([("k", "2"), ("k", "1"), ("k", "4")])
    assert tester.records("out") == [(None, b"6")]
    assert [one.event.value for one in tester.dead_letters] == [b"1"]


@pytest.mark.promise("state-bolt-raises-event")
def test_a_bolt_that_raises_without_events_ends_the_life() -> None:
    builder = TransactionalTopologyBuilder("totals", "events")
    builder.set_bolt("raises", _Raises()).shuffle_grouping("events")
    builder.set_committer_bolt("passes", _Passes()).global_grouping("raises")
    tester = TransactionTester(builder.build(), _SETTINGS)
    with pytest.raises(TransactionError, match=r"failed 3 times, last in raises: [\s\S]*not ready"):
        tester.run([("k", "2")])
    assert tester.dead_letters == []


class _Raises(_Total):
    def finish_batch(self) -> None:
        raise RuntimeError("not ready")
