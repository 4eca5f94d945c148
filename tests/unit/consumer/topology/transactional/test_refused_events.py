"""Events whose keys or values no state holds: they are given up, and nobody else is."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    BasicBolt,
    ProcessSettings,
    TransactionalTopologyBuilder,
    TransactionTester,
    bolt,
)
from sequitur.consumer.topology.state import SQLStore, TransactionalState
from sequitur.errors import TransactionError
from tests.support.transactions import (
    Gather,
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
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Tuple
    from sequitur.consumer.topology.state import State


_BAD = "b\0d"


class Keyed(Gather):
    """Counts by a key that it makes of each value.

    Args:
        journal: Notes its calls.
        key: Makes it.
    """

    def __init__(self, journal: Journal, key: Callable[[str], Any] = str) -> None:
        super().__init__(journal)
        self.key = key

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        super().process(tuple)
        self.values[-1] = self.key(self.values[-1])


class Lasts(Gather):
    """Keeps the last value that came with a key, of `key=value`."""

    def at_end(self) -> None:
        for value in self.values:
            key, _, kept = value.partition("=")
            self.context.state("count").multi_put([key], [kept])


class Both(Gather):
    """Puts a number into two states, of which it is too large for the second."""

    def at_end(self) -> None:
        for value in self.values:
            self.context.state("near").multi_put([value], [1])
            self.context.state("far").multi_put([value], [1 << 70 if value == "large" else 1])


class Always(Gather):
    """Puts what its state does not hold, whatever it is given."""

    def at_end(self) -> None:
        self.context.state("count").multi_put(["always"], ["no number"])


def _refused_third(value: str) -> str:
    return f"{value}\0" if value == "v3" else value


def _loud(value: str) -> str:
    return f"{value}!"


def _tester(
    journal: Journal,
    *committers: tuple[str, Gather, Mapping[str, State], int],
    settings: ProcessSettings | None = None,
) -> TransactionTester:
    builder = TransactionalTopologyBuilder("refused", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    before = "a"
    for name, committer, states, tasks in committers:
        builder.set_bolt(name, committer, tasks, states=states).fields_grouping(before, "value")
        before = name
    builder.set_output("out", key=None, value="value").local_grouping(before)
    return TransactionTester(builder.build(), settings)


def _values(count: int) -> list[str]:
    return [f"v{number}" for number in range(count)]


def _dead(tester: TransactionTester) -> list[str]:
    return [text(letter.event.value) for letter in tester.dead_letters]


@pytest.mark.promise("state-state-database-refuses")
@pytest.mark.parametrize("bad", [_BAD, "x" * 2_001])
@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_an_event_that_a_state_refuses_is_given_up(tmp_path: Path, bad: str, tasks: int) -> None:
    """Whichever task has it: the others of its batch are counted once, and go out."""
    journal, store = Journal(), store_in(tmp_path)
    states = {"count": TransactionalState(store, "counts")}
    tester = _tester(journal, ("sum", Gather(journal), states, tasks))
    values = _values(20)
    tester.run(events(*values[:10], bad, *values[10:]))
    assert _dead(tester) == [bad]
    assert len(tester.acked) == 20
    assert counts(store, "counts") == dict.fromkeys(values, 1)
    assert sorted(value or b"" for _, value in tester.records("out")) == sorted(
        one.encode() for one in values
    )
    # Its key leads to it: three runs, and none on a part of the batch.
    assert len(journal.of("a", "process")) == 21 + 21 + 20
    tester.run(events("v1"))
    assert counts(store, "counts")["v1"] == 2


@pytest.mark.promise("state-state-database-refuses")
def test_the_second_store_refuses_it(tmp_path: Path) -> None:
    """The first has written nothing by then."""
    journal, near, far = Journal(), store_in(tmp_path), store_in(tmp_path, "far")
    states: dict[str, State] = {
        "near": TransactionalState(near, "near"),
        "far": TransactionalState(far, "far", value=int),
    }
    tester = _tester(journal, ("sum", Both(journal), states, 1))
    tester.run(events("x", "large", "y"))
    assert _dead(tester) == ["large"]
    assert counts(near, "near") == counts(far, "far") == {"x": 1, "y": 1}


@pytest.mark.promise("state-state-database-refuses")
def test_the_second_committer_of_a_chain_refuses_it(tmp_path: Path) -> None:
    """It is given what the first has come to in the trial; the first has written nothing."""
    journal, store = Journal(), store_in(tmp_path)
    first = {"count": TransactionalState(store, "firsts", value=int)}
    second = {"count": TransactionalState(store, "seconds")}
    tester = _tester(
        journal,
        ("first", Gather(journal), first, 2),
        ("second", Keyed(journal, _refused_third), second, 2),
    )
    tester.run(events(*_values(9)))
    left = {value: 1 for value in _values(9) if value != "v3"}
    assert _dead(tester) == ["v3"]
    assert counts(store, "firsts") == counts(store, "seconds") == left


@pytest.mark.promise("state-state-database-refuses")
def test_a_key_that_no_tuple_has_is_found_by_halves(tmp_path: Path) -> None:
    """And each of several; nobody else is given up."""
    journal, store = Journal(), store_in(tmp_path)
    states = {"count": TransactionalState(store, "counts")}
    tester = _tester(journal, ("sum", Keyed(journal, _loud), states, 2))
    values = _values(30)
    tester.run(events(*values[:7], _BAD, *values[7:20], "\0", *values[20:]))
    assert sorted(_dead(tester)) == sorted([_BAD, "\0"])
    assert counts(store, "counts") == {f"{value}!": 1 for value in values}


class Friends(Gather):
    """Counts by the first or the second part of `user/friend`, as one of its bolts splits it.

    Args:
        journal: Notes its calls.
        counted: Makes the keys of a pair.
    """

    fields = ("transaction", "value")

    def __init__(self, journal: Journal, counted: Callable[[str, str], Sequence[str]]) -> None:
        super().__init__(journal)
        self.counted = counted

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self.values += self.counted(tuple["user"], tuple["friend"])

    def at_end(self) -> None:
        self.context.state("count").multi_update(self.values, lambda _, count: (count or 0) + 1)


class Pairs(BasicBolt):
    """Splits `user/friend`."""

    fields = ("transaction", "user", "friend")

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        collector.emit((tuple["transaction"], *text(tuple["value"]).split("/")))


def _of_user(user: str, _friend: str) -> Sequence[str]:
    return [user]


def _of_both(user: str, friend: str) -> Sequence[str]:
    return [user, friend]


def _longer(user: str, _friend: str) -> Sequence[str]:
    return [f"{user}d"]


def _joined(user: str, friend: str) -> Sequence[str]:
    return [f"{user}{friend}"]


_BAD_FRIEND = f"good/{_BAD}"


@pytest.mark.promise("state-state-database-refuses")
@pytest.mark.parametrize(
    ("counted", "pairs", "dead"),
    [
        pytest.param(
            _of_user,
            [f"{_BAD}/a", _BAD_FRIEND, f"{_BAD}/{_BAD}", "b/c"],
            [f"{_BAD}/a", f"{_BAD}/{_BAD}"],
            id="one field makes the key",
        ),
        pytest.param(
            _of_both,
            [f"{_BAD}/a", _BAD_FRIEND, "b/c"],
            [f"{_BAD}/a", _BAD_FRIEND],
            id="both do",
        ),
        pytest.param(
            _longer,
            ["b\0/a", _BAD_FRIEND, "b/c", f"c/{_BAD}"],
            ["b\0/a"],
            id="none does",
        ),
        pytest.param(
            _joined,
            ["b\0/d", f"{_BAD}/", f"e/{_BAD}", "b/c"],
            ["b\0/d", f"{_BAD}/", f"e/{_BAD}"],
            id="both together",
        ),
    ],
)
def test_what_a_key_looks_like_in_another_field_blames_nobody(
    tmp_path: Path,
    counted: Callable[[str, str], Sequence[str]],
    pairs: Sequence[str],
    dead: Sequence[str],
) -> None:
    """An event is given up for its key, and for no other field that has the same value."""
    journal, store = Journal(), store_in(tmp_path)
    builder = TransactionalTopologyBuilder("refused", "spout")
    builder.set_bolt("pairs", Pairs()).shuffle_grouping("spout")
    builder.set_bolt(
        "sum", Friends(journal, counted), states={"count": TransactionalState(store, "counts")}
    ).global_grouping("pairs")
    tester = TransactionTester(builder.build())
    tester.run(events(*pairs, *(f"u{number}/f" for number in range(20))))
    assert sorted(_dead(tester)) == sorted(dead)
    assert len(tester.acked) == 20 + len(pairs) - len(dead)
    wanted = Counter[str]()
    for pair in {*pairs}.difference(dead):
        wanted.update(counted(*pair.split("/")))
    found = counts(store, "counts")
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.promise("state-state-database-refuses")
def test_of_the_events_of_a_key_only_that_with_the_refused_value_is_given_up(
    tmp_path: Path,
) -> None:
    journal, store = Journal(), store_in(tmp_path)
    states = {"count": TransactionalState(store, "lasts", value=str)}
    tester = _tester(journal, ("sum", Lasts(journal), states, 2))
    tester.run(events("k=1", "k=2", f"k={_BAD}", "m=3"))
    assert _dead(tester) == [f"k={_BAD}"]
    assert counts(store, "lasts") == {"k": "2", "m": "3"}


@pytest.mark.promise("state-state-database-refuses")
@pytest.mark.parametrize(("refused", "of"), [(11, 40), (30, 2_000)])
def test_too_many_end_the_job(tmp_path: Path, refused: int, of: int) -> None:
    """A database that takes no such keys at all must not send a stream aside."""
    journal, store = Journal(), store_in(tmp_path)
    states = {"count": TransactionalState(store, "counts")}
    tester = _tester(journal, ("sum", Gather(journal), states, 2))
    bad = [f"{_BAD}{number}" for number in range(refused)]
    with pytest.raises(TransactionError, match=rf"refuse {refused} of {of} events"):
        tester.run(events(*_values(of - refused), *bad))
    assert tester.dead_letters == []
    assert counts(store, "counts") == {}


def test_what_no_event_is_to_blame_for_ends_the_job(tmp_path: Path) -> None:
    """A bolt that always puts what its state does not hold."""
    journal, store = Journal(), store_in(tmp_path)
    states = {"count": TransactionalState(store, "counts")}
    tester = _tester(
        journal,
        ("sum", Always(journal), states, 1),
        settings=ProcessSettings(max_attempts=2),
    )
    with pytest.raises(TransactionError, match="failed 2 times"):
        tester.run(events("x", "y"))
    assert tester.dead_letters == []


def test_a_database_that_is_away_blames_nobody(tmp_path: Path) -> None:
    """While tasks write, or before: nothing is given up, and each key counts once."""
    journal = Journal()
    store = faulty_store(tmp_path, "db", journal)
    journal.faults["db.commit"] = [None, unavailable()]
    journal.faults["db.committed"] = [None, None, unavailable()]
    states = {"count": TransactionalState(store, "counts")}
    tester = _tester(journal, ("sum", Gather(journal), states, 3))
    tester.run(events(*_values(12)))
    assert tester.dead_letters == []
    assert counts(store, "counts") == dict.fromkeys(_values(12), 1)
    assert len(tester.failed_tries) >= 1


def test_a_repeat_of_what_was_written_in_part_is_not_tried_first(tmp_path: Path) -> None:
    """Tasks that have written find it, and emit it; records are those of the rows."""
    journal = Journal()
    store = faulty_store(tmp_path, "db", journal)
    journal.faults["db.commit"] = [None, unavailable()]
    states = {"count": TransactionalState(store, "counts")}
    tester = _tester(journal, ("sum", Gather(journal), states, 2))
    tester.run(events(*_values(8)))
    assert journal.finishes_of("a") == [1]
    assert sorted(journal.finishes_of("sum")) == [1, 1, 2, 2]
    assert sorted(json.loads(f'"{text(value)}"') for _, value in tester.records("out")) == _values(
        8
    )


class Windows(BasicBolt):
    """Counts events, and emits the count at each tick."""

    fields = ("transaction", "count")

    def __init__(self) -> None:
        self.count = 0

    def process(self, tuple: Any, collector: Any) -> None:  # noqa: A002
        if not tuple.is_tick:
            self.count += 1
            return
        assert tuple["interval_s"] == 1
        collector.emit((tuple["transaction"], self.count))
        self.count = 0

    def snapshot(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        self.count = state


@bolt(fields=("transaction", "value", "count"))
def said(event: Any) -> Any:
    yield (event[0], f"{event.key} {event.value} {event.headers} {event['value']}", 1)


class Sum(BaseTransactionalBolt):
    """Adds counts up."""

    fields = ("transaction",)

    def __init__(self) -> None:
        self.sum = 0

    def process(self, tuple: Any) -> None:  # noqa: A002
        self.sum += tuple["count"]

    def finish_batch(self) -> None:
        self.context.state("sum").update("all", lambda _, before: (before or 0) + self.sum)


def test_a_basic_bolt_emits_at_ticks(tmp_path: Path) -> None:
    """The tick says which transaction it is of, as events do."""
    store = SQLStore(f"sqlite:///{tmp_path / 'x.db'}")
    builder = TransactionalTopologyBuilder("ticks", "events")
    builder.set_bolt("windows", Windows(), tick_interval="1 s").local_grouping("events")
    builder.set_committer_bolt(
        "sum", Sum(), states={"sum": TransactionalState(store, "sum")}
    ).global_grouping("windows")
    ran = TransactionTester(builder.build())
    for several in (5, 3, 1):
        ran.run([("key", "value")] * several)
        ran.advance(2)
    assert len(ran.acked) == 9
    assert _sum(tmp_path) == 8


@pytest.mark.parametrize("grouping", ["local", "shuffle"])
def test_an_event_has_key_value_and_headers(tmp_path: Path, grouping: str) -> None:
    """Behind the transaction, also in another stage than the spout's."""
    store = SQLStore(f"sqlite:///{tmp_path / 'x.db'}")
    builder = TransactionalTopologyBuilder("events", "events")
    getattr(builder.set_bolt("said", said), f"{grouping}_grouping")("events")
    builder.set_output("out", key=None, value="value").local_grouping("said")
    builder.set_committer_bolt(
        "sum", Sum(), states={"sum": TransactionalState(store, "sum")}
    ).global_grouping("said")
    ran = TransactionTester(builder.build())
    ran.run([("k", "v")])
    assert ran.records("out") == [(None, b"b'k' b'v' () b'v'")]
    assert _sum(tmp_path) == 1


def _sum(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "x.db")) as connection:
        ((found,),) = connection.execute("SELECT value FROM sum").fetchall()
    return int(found)
