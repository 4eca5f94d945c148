"""What committers keep in databases: each change once, whatever fails, and at what price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event

from sequitur.consumer.topology import (
    ProcessSettings,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    SQLStore,
    State,
    TransactionalState,
)
from sequitur.consumer.topology.state.sql.engines import engine_of
from sequitur.errors import FailBatch, StateOwnerError, TopologyBuildError, TransactionError
from tests.support.transactions import (
    Gather,
    Journal,
    Noting,
    NotingAtEnd,
    counts,
    events,
    faulty_store,
    rows,
    store_in,
    unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sequitur.consumer.topology import TransactionalTopology


_KINDS: list[type[State]] = [TransactionalState, OpaqueState]


def _topology(journal: Journal, states: Mapping[str, State]) -> TransactionalTopology:
    """Return: a, behind it the committer sum with states, behind that end, which also writes."""
    builder = TransactionalTopologyBuilder("kept", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    builder.set_bolt("sum", Gather(journal, list(states)), states=states).global_grouping("a")
    builder.set_output("out", key=None, value=None).local_grouping("sum")
    builder.set_bolt("end", NotingAtEnd(journal)).shuffle_grouping("sum")
    return builder.build()


def _statements(store: SQLStore) -> list[str]:
    """Return a list that gets each statement that the store's database is given."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(engine_of(store), "before_cursor_execute", note)
    return found


@pytest.mark.promise("state-commit-tried-already")
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("point", ["end.finish", "db.committed"])
def test_a_skipped_commit_emits_what_it_emitted_before(
    kind: type[State], point: str, tmp_path: Path
) -> None:
    """It is there already: known or not, what goes out is as if it had been committed once."""
    outputs = []
    for name, faults in (("calm", []), ("rough", [None, unavailable(), unavailable()])):
        journal = Journal()
        folder = tmp_path / name
        folder.mkdir()
        store = faulty_store(folder, "db", journal)
        tester = TransactionTester(_topology(journal, {"count": kind(store, "counts")}))
        journal.faults[point] = list(faults)
        for values in (["x"], ["x", "y", "x"], ["y"]):
            tester.run(events(*values))
        outputs.append(tester.records("out"))
        assert rows(store, "counts") == {"x": (3, 1, 2), "y": (2, 1, 3)}
    assert outputs[0] == outputs[1]
    assert outputs[0][-1] == (None, b'{"value":"y","before":1,"after":2}')


@pytest.mark.parametrize("kind", _KINDS)
def test_a_later_life_emits_what_the_one_before_emitted(kind: type[State], tmp_path: Path) -> None:
    """The one before ended when its state was committed, and nobody had taken note of that."""
    journal, store = Journal(), store_in(tmp_path)
    topology = _topology(journal, {"count": kind(store, "counts")})
    first = TransactionTester(topology)
    first.run(events("x"))
    second = TransactionTester(topology, ProcessSettings(max_attempts=1), resumes_after=1, life=2)
    journal.faults["end.finish"] = [ValueError("ends here")]
    with pytest.raises(TransactionError):
        second.run(events("x", "y"))
    assert rows(store, "counts") == {"x": (2, 1, 2), "y": (1, None, 2)}
    third = TransactionTester(topology, resumes_after=1, life=3)
    third.run(events("x", "y"))
    third.run(events("x"))
    assert third.records("out") == [
        (None, b'{"value":"x","before":1,"after":2}'),
        (None, b'{"value":"y","before":null,"after":1}'),
        (None, b'{"value":"x","before":2,"after":3}'),
    ]


def test_a_life_needs_a_larger_number_than_the_one_before(tmp_path: Path) -> None:
    """An earlier life's tries are told from its own by it, however many there were."""
    journal = Journal()
    journal.faults["sum.finish"] = [FailBatch("again")] * 5
    topology = _topology(journal, {"count": TransactionalState(store_in(tmp_path), "counts")})
    TransactionTester(topology).run(events("x"))
    TransactionTester(topology, life=2).run(events("x"))
    assert counts(store_in(tmp_path), "counts") == {"x": 1}


@pytest.mark.promise("state-several-states-several")
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    "point", ["urls.commit", "urls.committed", "domains.commit", "domains.committed"]
)
def test_of_several_stores_one_fails(kind: type[State], point: str, tmp_path: Path) -> None:
    """The repeat writes each row once, in those that were written and in those that were not."""
    journal = Journal()
    urls, domains = (faulty_store(tmp_path, name, journal) for name in ("urls", "domains"))
    states = {"url": kind(urls, "urls"), "domain": kind(domains, "domains")}
    tester = TransactionTester(_topology(journal, states))
    tester.run(events("x"))
    journal.faults[point] = [unavailable(), unavailable()]
    tester.run(events("x", "y"))
    expected = {"x": (2, 1, 2), "y": (1, None, 2)}
    assert (rows(urls, "urls"), rows(domains, "domains")) == (expected, expected)
    assert journal.finishes_of("a") == [1, 1]
    assert journal.finishes_of("sum") == [1, 1, 2, 3]
    assert tester.records("out")[1:] == [
        (None, b'{"value":"x","before":1,"after":2}'),
        (None, b'{"value":"y","before":null,"after":1}'),
    ]


def test_several_states_of_one_store_are_one_transaction_of_it(tmp_path: Path) -> None:
    journal, store = Journal(), store_in(tmp_path)
    states = {name: TransactionalState(store, f"{name}_counts") for name in ("one", "two")}
    tester = TransactionTester(_topology(journal, states))
    statements = _statements(store)
    tester.run(events("x", "y"))
    assert statements.count("COMMIT") == 1
    for name in states:
        assert counts(store, f"{name}_counts") == {"x": 1, "y": 1}


def test_a_state_that_is_not_transactional_counts_a_repeat_twice(tmp_path: Path) -> None:
    journal, store = Journal(), store_in(tmp_path)
    journal.faults["end.finish"] = [FailBatch("again")]
    tester = TransactionTester(_topology(journal, {"count": NonTransactionalState(store, "c")}))
    tester.run(events("x"))
    assert counts(store, "c") == {"x": 2}


def test_a_thousand_tuples_cost_one_write(tmp_path: Path) -> None:
    """One transaction of the database for each batch, with a row for each key."""
    journal, store = Journal(), store_in(tmp_path)
    tester = TransactionTester(_topology(journal, {"count": TransactionalState(store, "counts")}))
    tester.run(events("x"))
    statements = _statements(store)
    tester.run(events(*["x"] * 1000))
    assert counts(store, "counts") == {"x": 1001}
    assert [one for one in statements if one.startswith(("BEGIN", "COMMIT"))] == [
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]
    writes = [one.split(" AS ")[0] for one in statements if one.startswith("INSERT")]
    assert writes == ["INSERT INTO sequitur_transactions", 'INSERT INTO "counts"']
    reads = [one for one in statements if one.startswith("SELECT") and '"counts"' in one]
    assert len(reads) == 1


def test_an_empty_batch_writes_its_transaction_id(tmp_path: Path) -> None:
    journal, store = Journal(), store_in(tmp_path)
    topology = _topology(journal, {"count": TransactionalState(store, "counts")})
    tester = TransactionTester(topology)
    for values in (["x"], [], [], ["x"]):
        tester.run(events(*values))
    assert rows(store, "counts") == {"x": (2, 1, 4)}


@pytest.mark.parametrize(
    ("resumes_after", "message"),
    [(0, "transaction ids went back"), (4, "restored from a backup"), (2, None), (1, None)],
)
def test_a_database_of_another_time_is_refused(
    resumes_after: int, message: str | None, tmp_path: Path
) -> None:
    """Ids that go back, and ids that leave one out; the same and the next are taken."""
    journal, store = Journal(), store_in(tmp_path)
    topology = _topology(journal, {"count": TransactionalState(store, "counts")})
    tester = TransactionTester(topology)
    for value in ("x", "y"):
        tester.run(events(value))
    again = TransactionTester(topology, resumes_after=resumes_after, life=2)
    if message is None:
        again.run(events("y"))
        assert counts(store, "counts") == {"x": 1, "y": resumes_after}
        return
    with pytest.raises(StateOwnerError, match=message):
        again.run(events("y"))
    assert counts(store, "counts") == {"x": 1, "y": 1}


@pytest.mark.promise("state-database-checkpoint-lost")
def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    topology = _topology(Journal(), {"count": TransactionalState(store_in(tmp_path), "counts")})
    TransactionTester(topology, epoch="one").run(events("x"))
    with pytest.raises(StateOwnerError, match=r"'one'.*'other'"):
        TransactionTester(topology, epoch="other")


class Lower(Gather):
    """Counts words in lower case."""

    def at_end(self) -> None:
        self.values = [value.lower() for value in self.values]
        super().at_end()


def _same(key: str) -> str:
    return key


def _builder(journal: Journal) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder("grouped", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    return builder


def _tester(bolt: Gather, states: Mapping[str, State]) -> TransactionTester:
    builder = _builder(bolt.journal)
    builder.set_bolt("sum", bolt, 8, states=states).fields_grouping("a", "value")
    return TransactionTester(builder.build(), ProcessSettings(max_attempts=2))


@pytest.mark.promise("state-tasks-committer-update")
def test_a_key_that_is_not_the_tasks_is_told_in_the_first_batch(tmp_path: Path) -> None:
    """Before both spellings meet; nothing is written."""
    store = store_in(tmp_path)
    states = {"count": TransactionalState(store, "counts", grouped_by=_same)}
    with pytest.raises(TransactionError, match=r"it is grouped as '(the|of|and|to)', which"):
        _tester(Lower(Journal()), states).run(events("The", "Of", "And", "To"))
    assert counts(store, "counts") == {}


def test_keys_that_are_grouped_as_they_say_go_on(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    states = {"count": TransactionalState(store, "counts", grouped_by=_same)}
    values = [f"word {number}" for number in range(40)]
    _tester(Gather(Journal()), states).run(events(*values))
    assert counts(store, "counts") == dict.fromkeys(values, 1)


@pytest.mark.promise("state-tasks-committer-update")
@pytest.mark.parametrize("kind", [TransactionalState, NonTransactionalState])
def test_undeclared_two_tasks_of_one_key_are_told(tmp_path: Path, kind: type[State]) -> None:
    """Of states without transactions, too: no update is lost silently."""
    states = {"count": kind(store_in(tmp_path), "counts")}
    tester = _tester(Lower(Journal()), states)
    with pytest.raises(TransactionError, match=r"key 'and'.*both update it"):
        tester.run(events("And", "and", "AND", "aND"))


def test_what_is_grouped_otherwise_is_refused_when_it_is_built(tmp_path: Path) -> None:
    builder = _builder(Journal())
    states = {"count": TransactionalState(store_in(tmp_path), "counts", grouped_by=_same)}
    builder.set_bolt("sum", Gather(Journal()), 2, states=states).shuffle_grouping("a")
    with pytest.raises(TopologyBuildError, match="'sum', state 'count' has grouped_by"):
        builder.build()
