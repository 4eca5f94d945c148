"""What a bolt sees of a state, on a real file."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology.api.groupings import (
    Emitter,
    FieldsGrouping,
    task_of_group,
)
from sequitur.consumer.topology.api.tuple import Stream
from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    SQLStore,
    State,
    TransactionalState,
)
from sequitur.consumer.topology.state.map_state import CommitterStates
from sequitur.consumer.topology.state.sql.session import SQLSession
from sequitur.consumer.topology.state.store import StateSession, Stored
from sequitur.errors import StateConflictError, StateError, StateOvertakenError, StateValueError
from tests.support.state_databases import add, adding, create, opened, values, writer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sequitur.consumer.topology.state.store import Key, Writer


@pytest.fixture
def store(tmp_path: Path) -> SQLStore:
    return SQLStore(f"sqlite:///{tmp_path}/state.db")


@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState, NonTransactionalState])
def test_batches_add_up(store: SQLStore, kind: type[State]) -> None:
    """Each finds what those before left; a key that was never written has no value."""
    state = kind(store, "counts")
    create(state)
    assert values(state, ["a", "b"], txid=1) == [None, None]
    assert add(writer(1), state, ["a"], 5) == [5]
    assert add(writer(2), state, ["a", "b"], 2) == [7, 2]
    assert values(state, ["b", "c", "a", "b"], txid=3) == [2, None, 7, 2]


def test_own_writes_are_seen(store: SQLStore) -> None:
    """By reads and updates of the same batch, before it commits; by no other batch."""
    state = TransactionalState(store, "counts")
    create(state)
    batch = opened(writer(1), state)
    counts = batch.state("counts")
    assert counts.update("a", adding(1)) == (None, 1)
    assert counts.multi_update(["a", "b", "a"], adding(2)) == [(1, 3), (None, 2), (3, 5)]
    counts.multi_put(["c", "b"], [7, 8])
    assert counts.multi_get(["a", "b", "c"]) == [5, 8, 7]
    assert values(state, ["a", "b", "c"], txid=1) == [None, None, None]
    batch.commit()
    assert values(state, ["a", "b", "c"], txid=2) == [5, 8, 7]


@pytest.mark.promise("state-commit-tried-already")
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState])
def test_repeats_return_what_they_returned(store: SQLStore, kind: type[State]) -> None:
    """Updates begin from the value before the first attempt, so that the bolt emits the same."""
    state = kind(store, "counts")
    create(state)
    add(writer(1), state, ["a"], 5)
    first = add(writer(2, 0), state, ["a", "a"], 1)
    repeat = opened(writer(2, 1), state)
    assert repeat.state("counts").get("a") == (5 if kind is OpaqueState else 7)
    pairs = repeat.state("counts").multi_update(["a", "a"], adding(1))
    assert first == [after for _, after in pairs] == [6, 7]
    repeat.commit()
    assert values(state, ["a"], txid=3) == [7]


def test_repeats_count_twice_without_transactions(store: SQLStore) -> None:
    """Which is what the third kind is: each attempt finds what the one before left."""
    state = NonTransactionalState(store, "counts")
    create(state)
    assert add(writer(1, 0), state, ["a"], 5) == [5]
    assert add(writer(1, 1), state, ["a"], 5) == [10]
    assert values(state, ["a"], txid=2) == [10]


def test_repeat_that_differs_is_told_of(store: SQLStore, caplog: pytest.LogCaptureFixture) -> None:
    """A transactional state keeps what was written first, and the log names state and key."""
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1, 0), state, ["a", "b"], 5)
    with caplog.at_level(logging.WARNING):
        add(writer(1, 1), state, ["b", "a"], 5)
        assert caplog.messages == []
        add(writer(1, 2), state, ["a"], 6)
    assert ["'counts'" in said and "'a'" in said for said in caplog.messages] == [True]
    assert values(state, ["a", "b"], txid=2) == [5, 5]


def test_opaque_repeat_may_differ(store: SQLStore) -> None:
    """It begins from the values before, and what it leaves out is as if it had never been there."""
    state = OpaqueState(store, "counts")
    create(state)
    add(writer(1), state, ["a", "b"], 1)
    add(writer(2, 0), state, ["a", "b", "new"], 10)
    add(writer(2, 1), state, ["a"], 20)
    assert values(state, ["a", "b", "new"], txid=3) == [21, 1, None]
    add(writer(3, 0), state, ["b", "new"], 5)
    assert values(state, ["a", "b", "new"], txid=4) == [21, 6, 5]


def test_every_opaque_repeat_begins_from_the_same(store: SQLStore) -> None:
    """The value before the transaction is kept, however often it is repeated."""
    state = OpaqueState(store, "counts")
    create(state)
    add(writer(1), state, ["a"], 1)
    for attempt in range(4):
        assert add(writer(2, attempt), state, ["a"], 10 * attempt) == [1 + 10 * attempt]
    assert values(state, ["a"], txid=3) == [31]


def test_opaque_repeat_without_a_change_takes_all_back(store: SQLStore) -> None:
    """The commit is told of each state, also of one that the batch does not touch this time."""
    state = OpaqueState(store, "counts")
    create(state)
    add(writer(1), state, ["a", "older"], 4)
    add(writer(2, 0), state, ["a", "new"], 6)
    opened(writer(2, 1), state).commit()
    assert values(state, ["a", "new"], txid=3) == [4, None]
    assert _stored(state, 3) == {"a": Stored(4, 4, 1, 0), "older": Stored(4, None, 1, 0)}


def _stored(state: State, txid: int) -> dict[Key, Stored]:
    return state.store.session(writer(txid)).read(state, ["a", "older", "new"])


_ROW = Stored(10, 4, 2, 0)


@pytest.mark.parametrize(
    ("kind", "before", "txid", "expected"),
    [
        (TransactionalState, [], 1, Stored(5, None, 1, 0)),
        (TransactionalState, [4, 10], 3, Stored(15, 10, 3, 0)),
        (TransactionalState, [4, 10], 2, _ROW),
        (TransactionalState, [4, 10], 9, Stored(15, 10, 9, 0)),
        (OpaqueState, [], 1, Stored(5, None, 1, 0)),
        (OpaqueState, [4, 10], 3, Stored(15, 10, 3, 0)),
        (OpaqueState, [4, 10], 2, Stored(9, 4, 2, 0)),
        (OpaqueState, [None, 10], 2, Stored(5, None, 2, 0)),
        (OpaqueState, [4, 10], 9, Stored(15, 10, 9, 0)),
        (NonTransactionalState, [], 1, Stored(5, None, 1, 0)),
        (NonTransactionalState, [4, 10], 3, Stored(15, None, 3, 0)),
        (NonTransactionalState, [4, 10], 2, Stored(15, None, 2, 0)),
    ],
)
def test_row_after_an_update_that_adds_5(
    store: SQLStore, kind: type[State], before: list[int | None], txid: int, expected: Stored
) -> None:
    """New transactions apply; repeats apply by the state's kind; a row may miss some."""
    state = kind(store, "counts")
    create(state)
    for earlier in range(1, max(txid, len(before) + 1)):
        value = before[earlier - 1] if earlier <= len(before) else None
        batch = opened(writer(earlier), state)
        if value is not None:
            batch.state("counts").multi_put(["a"], [value])
        batch.commit()
    add(writer(txid, 1), state, ["a"], 5)
    assert _stored(state, txid + 1) == {"a": expected}


@pytest.mark.promise("state-tasks-committer-update")
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState, NonTransactionalState])
def test_rows_of_others_are_refused(store: SQLStore, kind: type[State]) -> None:
    """Where they are updated, and where they are written without being read; nothing is written."""
    state = kind(store, "counts")
    create(state)
    add(writer(1, task=0), state, ["a"])
    other = opened(writer(1, task=1), state)
    with pytest.raises(StateConflictError, match="'counts', key 'a': tasks 0 and 1"):
        other.state("counts").update("a", adding(1))
    other = opened(writer(1, task=1), state)
    other.state("counts").multi_put(["a", "b"], [5, 6])
    with pytest.raises(StateConflictError, match="'counts', key 'a': tasks 0 and 1"):
        other.commit()
    assert values(state, ["a", "b"], txid=2) == [1, None]
    add(writer(2, task=1), state, ["a"])  # of an older one it is taken over
    assert (_stored(state, 3)["a"].value, _stored(state, 3)["a"].task) == (2, 1)


@pytest.mark.promise("state-tasks-committer-update")
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState])
def test_a_row_that_another_task_writes_is_read_as_it_was(
    store: SQLStore, kind: type[State]
) -> None:
    """Whether that task was first or not: a total, a setting."""
    state = kind(store, "counts")
    create(state)
    add(writer(1, task=0), state, ["total"], 5)
    early = opened(writer(2, task=1), state).state("counts").get("total")
    add(writer(2, task=0), state, ["total"], 1)
    other = opened(writer(2, task=1), state)
    assert (early, other.state("counts").get("total")) == (5, 5)
    with pytest.raises(StateConflictError, match="tasks 0 and 1"):
        other.state("counts").multi_put(["total"], [9])
    other.commit()
    assert values(state, ["total"], txid=3) == [6]


def test_without_transactions_a_row_that_another_task_writes_is_not_read(store: SQLStore) -> None:
    state = NonTransactionalState(store, "counts")
    create(state)
    add(writer(1, task=0), state, ["total"])
    with pytest.raises(StateConflictError, match="tasks 0 and 1"):
        opened(writer(1, task=1), state).state("counts").get("total")
    assert values(state, ["total"], txid=2) == [1]


def _lower(key: str) -> str:
    return key.lower()


@pytest.mark.parametrize("group", ["word", 7, b"x", ("a", 1), ("a",), Decimal("1.10")])
def test_a_group_goes_where_its_tuples_go(group: Any) -> None:
    """As the grouping by the fields of these values says."""
    parts = group if isinstance(group, tuple) else (group,)
    names = tuple(f"f{number}" for number in range(len(parts)))
    stream = Stream("bolt", "default", ("transaction", *names))
    grouping = FieldsGrouping(names)
    choose = grouping.chooser(stream, 7, Emitter())
    assert list(choose((None, *parts), None)) == [task_of_group(group, 7)]


def test_writes_are_checked_by_what_keys_are_grouped_by(store: SQLStore) -> None:
    """In each of them, and not only once two spellings meet; reads are free."""
    state = TransactionalState(store, "counts", grouped_by=_lower)
    create(state)
    owners: dict[str, int] = {"the": 0, "of": 1}
    batch = CommitterStates({"counts": state}, writer(1, task=0), owners.__getitem__)
    batch.check()
    counts = batch.state("counts")
    assert counts.update("The", adding(1)) == (None, 1)
    assert counts.get("Of") is None
    for write in (
        lambda: counts.update("Of", adding(1)),
        lambda: counts.multi_put(["the", "of"], [1, 2]),
    ):
        with pytest.raises(StateConflictError, match="grouped as 'of', which goes to task 1"):
            write()
    batch.commit()
    assert values(state, ["The", "of"], txid=2) == [1, None]


@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState, NonTransactionalState])
def test_rows_of_the_future_are_refused(store: SQLStore, kind: type[State]) -> None:
    """Of a batch that read before the newer one committed, and of one that reads after it."""
    state = kind(store, "counts")
    create(state)
    late = opened(writer(1), state)
    add(writer(1), state, ["a"])
    add(writer(2), state, ["a"])
    if kind is not NonTransactionalState:
        with pytest.raises(StateOvertakenError, match="'counts', key 'a': transaction 2"):
            late.state("counts").get("a")
    late.state("counts").multi_put(["b"], [5])
    with pytest.raises(StateOvertakenError, match="transaction 2"):
        late.commit()
    assert values(state, ["a", "b"], txid=3) == [2, None]


def test_failed_update_changes_nothing(store: SQLStore) -> None:
    """All keys of a call or none: a bolt may go on after an error of its own."""
    state = TransactionalState(store, "counts")
    create(state)
    batch = opened(writer(1), state)
    counts = batch.state("counts")
    with pytest.raises(ZeroDivisionError):
        counts.multi_update(["a", "b"], lambda key, _: 1 if key == "a" else 1 // 0)
    with pytest.raises(StateValueError, match="key 'b'"):
        counts.multi_put(["a", "b"], [1, 1 << 63])
    with pytest.raises(StateError, match="2 keys and 1 values"):
        counts.multi_put(["a", "b"], [1])
    batch.commit()
    assert values(state, ["a", "b"], txid=2) == [None, None]


_VALUES: list[tuple[type, list[Any]]] = [
    (int, [0, -(1 << 63), (1 << 63) - 1]),
    (float, [0.1, 0.0, 5e-324, float("inf"), float("-inf"), 1e300]),
    (str, ["", "ä\n\"'\\{},", "NULL"]),
    (bytes, [b"", b"\0\xff\\"]),
    (bool, [True, False]),
    (object, [{"a": [1, None, "\0"]}, "x", 0, False, [], 1 << 80]),
]


@pytest.mark.parametrize(("kind", "given"), _VALUES)
def test_values_come_back(store: SQLStore, kind: type, given: list[Any]) -> None:
    """With their types; the value before, too, where a repeat begins from it."""
    state = OpaqueState(store, "kept", key=int, value=kind)
    create(state)
    keys = list(range(len(given)))
    for txid in (1, 2):
        batch = opened(writer(txid), state)
        batch.state("kept").multi_put(keys, given)
        batch.commit()
    for txid in (2, 3):
        found = values(state, keys, txid=txid)
        assert list(map(repr, given)) == list(map(repr, found))


def test_what_a_bolt_changes_in_its_hands_is_its_own(store: SQLStore) -> None:
    state = TransactionalState(store, "kept", value=object)
    create(state)
    batch = opened(writer(1), state)
    kept = batch.state("kept")
    _, after = kept.update("a", lambda *_: {"n": 1})
    after["n"] = 2
    found = kept.get("a")
    assert found is not None
    found["n"] = 3
    assert kept.get("a") == {"n": 1}


def test_known_keys_are_not_read_again(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are asked for once, those that are missing, too; written keys not at all."""
    state = TransactionalState(store, "counts")
    create(state)
    asked: list[list[Key]] = []
    read = SQLSession.read

    def noting(session: StateSession, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:
        asked.append(list(keys))
        assert isinstance(session, SQLSession)
        return read(session, state, keys)

    monkeypatch.setattr(SQLSession, "read", noting)
    counts = opened(writer(1), state).state("counts")
    counts.multi_put(["w"], [1])
    counts.multi_get(["a", "b", "a", "w"])
    counts.multi_update(["b", "c"], adding(1))
    counts.multi_get(["a", "b", "c", "w"])
    assert asked == [["a", "b"], ["c"]]


def _remove(who: Writer, state: State, keys: Sequence[Key]) -> None:
    batch = opened(who, state)
    batch.state(state.name).multi_remove(keys)
    batch.commit()


def _rows(state: State) -> list[Any]:
    with contextlib.closing(sqlite3.connect(state.store.title.removeprefix("sqlite:///"))) as file:
        return file.execute(f"SELECT key, value FROM {state.name} ORDER BY key").fetchall()


@pytest.mark.promise("state-key-taken-transaction")
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState, NonTransactionalState])
@pytest.mark.parametrize(
    ("key_type", "keys"), [(str, ["a", "b"]), (int, [-1, 1 << 40]), (bytes, [b"\0", b"\xff"])]
)
def test_keys_are_taken_out(
    store: SQLStore, kind: type[State], key_type: type, keys: list[Any]
) -> None:
    """They have no value then, in the batch and behind it; the next transaction deletes rows."""
    state = kind(store, "counts", key=key_type)
    create(state)
    add(writer(1), state, keys, 5)
    batch = opened(writer(2), state)
    counts = batch.state("counts")
    counts.multi_remove([keys[0], keys[0]])
    assert counts.multi_get(keys) == [None, 5]
    assert counts.update(keys[1], adding(1)) == (5, 6)
    batch.commit()
    assert _rows(state) == [(keys[0], None), (keys[1], 6)]
    assert values(state, keys, txid=3) == [None, 6]
    opened(writer(3), state).commit()
    assert _rows(state) == [(keys[1], 6)]
    assert add(writer(4), state, keys[:1]) == [1]
    assert values(state, keys, txid=5) == [1, 6]


def test_a_key_that_was_taken_out_begins_anew(store: SQLStore) -> None:
    """In the same batch, and in the next one, which deletes its row and writes another."""
    state = TransactionalState(store, "counts", value=bool)
    create(state)
    for txid in (1, 2):
        batch = opened(writer(txid), state)
        counts = batch.state("counts")
        counts.multi_put(["a"], [True])
        counts.multi_remove(["a", "b"])
        assert counts.update("b", lambda _key, before: before is None) == (None, True)
        batch.commit()
        assert values(state, ["a", "b"], txid=txid + 1) == [None, True]
    batch = opened(writer(3), state)
    batch.state("counts").multi_put(["a"], [False])
    batch.commit()
    assert values(state, ["a", "b"], txid=4) == [False, True]


@pytest.mark.promise("state-key-taken-transaction")
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState])
def test_a_repeat_finds_what_was_taken_out(store: SQLStore, kind: type[State]) -> None:
    """And gives the same again, however often it comes; also what it updated before that."""
    state = kind(store, "counts")
    create(state)
    add(writer(1), state, ["a"], 5)
    for attempt in range(3):
        batch = opened(writer(2, attempt), state)
        counts = batch.state("counts")
        assert counts.update("a", adding(1)) == (5, 6)
        counts.multi_remove(["a"])
        batch.commit()
    assert values(state, ["a"], txid=3) == [None]
    opened(writer(3), state).commit()
    assert _rows(state) == []


@pytest.mark.promise("state-key-taken-transaction")
def test_an_opaque_repeat_takes_a_removal_back(store: SQLStore) -> None:
    """A batch that differs may lack it; the next transaction deletes nothing then."""
    state = OpaqueState(store, "counts")
    create(state)
    add(writer(1), state, ["a", "b"], 5)
    _remove(writer(2, 0), state, ["a", "b", "never"])
    assert add(writer(2, 1), state, ["b"]) == [6]
    opened(writer(3), state).commit()
    assert _rows(state) == [("a", 5), ("b", 6)]


def test_a_transactional_repeat_does_not_take_out_what_was_put(
    store: SQLStore, caplog: pytest.LogCaptureFixture
) -> None:
    """What was written first stands, either way round, and the log tells."""
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1, 0), state, ["a"], 5)
    again = opened(writer(1, 1), state)
    assert again.state("counts").get("a") == 5
    again.state("counts").multi_remove(["a"])
    with caplog.at_level(logging.WARNING):
        again.commit()
    assert "gives None, but 5 was written" in caplog.text
    _remove(writer(2, 0), state, ["a"])
    add(writer(2, 1), state, ["a"])
    assert "gives 6, but None was written" in caplog.text
    assert values(state, ["a"], txid=3) == [None]


def test_keys_of_another_task_are_not_taken_out(store: SQLStore) -> None:
    state = NonTransactionalState(store, "counts")
    create(state)
    add(writer(1, task=0), state, ["a", "b"])
    _remove(writer(2, task=0), state, ["a"])
    removing, putting = (opened(writer(2, task=1), state) for _ in range(2))
    removing.state("counts").multi_remove(["a"])
    putting.state("counts").multi_put(["a"], [1])
    for other in (removing, putting):
        with pytest.raises(StateConflictError, match="tasks 0 and 1"):
            other.commit()


def test_unknown_state_is_named(store: SQLStore) -> None:
    state = TransactionalState(store, "counts")
    create(state)
    with pytest.raises(StateError, match=r"no state 'count'.*has: counts"):
        opened(writer(1), state).state("count")


@pytest.mark.promise("state-commit-tried-already")
def test_a_repeat_gives_what_is_stored(store: SQLStore) -> None:
    """Also where it comes to something else, or asks first: what goes out is what the row has."""
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a"], 3)
    add(writer(2), state, ["a", "b"], 4)
    again = opened(writer(2, 1), state).state("counts")
    assert again.multi_get(["a", "b", "c"]) == [7, 4, None]
    assert again.update("a", adding(5)) == (3, 7)
    assert again.multi_update(["b", "b"], adding(2)) == [(None, 2), (2, 4)]
    again.multi_put(["a", "c"], [100, 1])
    assert again.multi_get(["a", "b", "c"]) == [7, 4, 1]


def test_a_repeat_that_puts_unseen_gives_what_is_stored(store: SQLStore) -> None:
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a"], 3)
    again = opened(writer(1, 1), state)
    again.state("counts").multi_put(["a"], [5])
    assert again.state("counts").get("a") == 3
    again.commit()
    assert values(state, ["a"], txid=2) == [3]


def test_each_update_of_a_repeat_gives_what_is_stored(store: SQLStore) -> None:
    """As in Storm: of updates one by one nobody knows which is the last."""
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a", "a"], 2)
    again = opened(writer(1, 1), state).state("counts")
    assert [again.update("a", adding(1))[1] for _ in range(3)] == [4, 4, 4]


def test_a_repeat_of_an_opaque_batch_computes_anew(store: SQLStore) -> None:
    state = OpaqueState(store, "counts")
    create(state)
    add(writer(1), state, ["a"], 3)
    add(writer(2), state, ["a"], 4)
    again = opened(writer(2, 1), state).state("counts")
    assert again.get("a") == 3
    assert again.update("a", adding(5)) == (3, 8)
