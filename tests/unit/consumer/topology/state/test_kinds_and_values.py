"""Which states, keys and values there are; what is refused says why."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    SQLStore,
    State,
    TransactionalState,
)
from sequitur.consumer.topology.state import values as limits
from sequitur.consumer.topology.state.fence import Found, check_fence, refusal
from sequitur.consumer.topology.state.store import StateKind, Writer
from sequitur.consumer.topology.state.values import (
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    copy_of,
    fit_key,
    fit_value,
    is_surely_held,
)
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.errors import StateError, StateOvertakenError, StateOwnerError, StateValueError
from tests.support.values import replace

_STORE = SQLStore("sqlite:////nowhere/counts.db")


@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState, NonTransactionalState])
def test_states_are_values(kind: type[State]) -> None:
    """They are equal by what they say, and go to other processes."""
    state = kind(_STORE, "counts", key=int, value=object)
    again = pickle.loads(pickle.dumps(state))
    assert (state, hash(state), state.kind) == (again, hash(again), again.kind)


def test_kinds_differ() -> None:
    """Two states of one name and different kinds are not equal."""
    kinds: list[type[State]] = [TransactionalState, OpaqueState, NonTransactionalState]
    assert len({kind(_STORE, "counts") for kind in kinds}) == 3
    assert {TransactionalState.kind, OpaqueState.kind, NonTransactionalState.kind} == set(StateKind)


@pytest.mark.parametrize(
    "name",
    ["", "Counts", "1st", "a b", 'a"b', "a;--", "a" * 64, "sequitur_states", "sqlite_x", "pg_x"],
)
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(StateError, match="is not a name for a state") as raised:
        TransactionalState(_STORE, name)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize("types", [{"key": float}, {"key": bool}, {"value": list}, {"value": dict}])
def test_odd_types_are_refused(types: dict[str, type]) -> None:
    with pytest.raises(StateError, match=r"state 'counts' has (key|value)=.*take one of"):
        TransactionalState(_STORE, "counts", **types)


def test_state_has_a_kind() -> None:
    """The base class alone is none."""
    with pytest.raises(StateError, match="use TransactionalState"):
        State(_STORE, "counts")


_LONG = "ä" * (KEY_BYTES_MAX // 2)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (str, ""),
        (str, "ä\n"),
        (str, _LONG),
        (int, -(1 << 63)),
        (int, (1 << 63) - 1),
        (bytes, b"\0"),
    ],
)
def test_keys_that_fit(kind: type, key: Any) -> None:
    assert fit_key(TransactionalState(_STORE, "counts", key=kind), key) == key


@pytest.mark.parametrize(
    ("kind", "key", "reason"),
    [
        (str, 1, "is int"),
        (int, "1", "is str"),
        (int, True, "is bool"),
        (int, 1 << 63, "64 bits"),
        (int, -(1 << 63) - 1, "64 bits"),
        (str, "a\0", "NUL"),
        (str, "\ud800", "surrogate"),
        (str, _LONG + "a", "2001 bytes"),
        (bytes, bytes(KEY_BYTES_MAX + 1), "2001 bytes"),
        (str, None, "is NoneType"),
    ],
)
def test_keys_that_do_not_fit(kind: type, key: Any, reason: str) -> None:
    with pytest.raises(StateValueError, match=f"state 'counts'.*{reason}"):
        fit_key(TransactionalState(_STORE, "counts", key=kind), key)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((int, -(1 << 63)), (int, (1 << 63) - 1), (float, 0.1), (float, float("-inf"))),
        *((str, ""), (bytes, b"\0\xff"), (bool, False), (object, 0), (object, 1 << 80)),
        *((object, {"a": [1, None, {"b": "\0"}]}), (object, "x"), (object, False)),
    ],
)
def test_values_that_fit(kind: type, value: Any) -> None:
    """They come back as they are, of the same type."""
    fitted = fit_value(TransactionalState(_STORE, "counts", value=kind), "a", value)
    assert (type(value), value) == (type(fitted), fitted)


def test_whole_numbers_are_floats_where_those_are_asked_for() -> None:
    """An int that a float holds is one; others would change."""
    state = TransactionalState(_STORE, "counts", value=float)
    assert isinstance(fit_value(state, "a", 3), float)
    assert repr(fit_value(state, "a", -0.0)) == "0.0"  # as SQLite gives it back
    with pytest.raises(StateValueError, match="without loss"):
        fit_value(state, "a", (1 << 53) + 1)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        *((int, 1 << 63, "64 bits"), (int, 1.0, "is float"), (int, True, "is bool")),
        *((float, float("nan"), "not a number"), (float, "1", "is str"), (float, True, "is bool")),
        *((str, "\0", "NUL"), (str, "\udfff", "surrogate"), (bytes, "a", "is str")),
        *((bool, 1, "is int"), (int, None, "multi_remove"), (object, None, "multi_remove")),
        *((object, {1}, "no form in JSON"), (object, [float("nan")], "no form in JSON")),
        *((object, (1, 2), "lists for tuples"), (object, {1: 2}, "keys of dicts")),
        (object, b"x", "no form in JSON"),
    ],
)
def test_values_that_do_not_fit(kind: type, value: Any, reason: str) -> None:
    """The error names state, key and reason."""
    with pytest.raises(StateValueError, match=f"state 'counts', key 'a': .*{reason}"):
        fit_value(TransactionalState(_STORE, "counts", value=kind), "a", value)


@pytest.mark.parametrize(
    ("column", "anywhere", "in_unicode"),
    [
        *((None, True, True), (1 << 62, True, True), (0.1, True, True), (False, True, True)),
        *(("", True, True), ("x" * 500, True, True), ("x" * 501, False, False)),
        *(("\u00e4", False, True), ("\u00e4" * 501, False, False)),
        *((b"\xff" * 500, True, True), (bytes(501), False, False)),
    ],
)
def test_what_every_database_holds(column: Any, anywhere: bool, in_unicode: bool) -> None:
    """Encodings lack letters, and indexes have limits; numbers are always taken."""
    held = [is_surely_held(column, takes_unicode=unicode) for unicode in (False, True)]
    assert held == [anywhere, in_unicode]


@pytest.mark.promise("state-state-database-refuses")
def test_values_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes; none is shown in whole."""
    state = TransactionalState(_STORE, "kept", value=bytes)
    with pytest.raises(StateValueError, match=rf"has {VALUE_BYTES_MAX + 1} bytes") as raised:
        fit_value(state, "a", bytes(VALUE_BYTES_MAX + 1))
    assert len(str(raised.value)) < 300
    monkeypatch.setattr(limits, "VALUE_BYTES_MAX", 16)
    cases: list[tuple[type, Any, Any]] = [
        (str, "\u00e4" * 8, "\u00e4" * 8 + "a"),
        (bytes, bytes(16), bytes(17)),
        (object, ["x" * 12], ["x" * 13]),
    ]
    for kind, fits, too_large in cases:
        state = TransactionalState(_STORE, "kept", value=kind)
        assert fit_value(state, "a", fits) == fits
        with pytest.raises(StateValueError, match="a value has at most 16"):
            fit_value(state, "a", too_large)


def test_copies_are_ones_own() -> None:
    """A bolt that changes what it was given does not change what is kept."""
    kept = {"a": [1]}
    given = copy_of(TransactionalState(_STORE, "counts", value=object), kept)
    given["a"].append(2)
    assert kept == {"a": [1]}


def _writer(txid: int = 5, attempt: int = 1, *, has_committed: bool = True) -> Writer:
    transaction = TransactionAttempt(txid, attempt)
    return Writer("words", "e1", "sum", 0, transaction, has_committed, batch="b1")


@pytest.mark.parametrize(
    ("writer", "found"),
    [
        (_writer(1, has_committed=False), Found(None, None, None)),
        (_writer(1, has_committed=False), Found("e1", None, None)),
        (_writer(9, has_committed=False), Found("e1", None, None)),  # came into a topology later
        (_writer(), Found("e1", 4, (4, 3))),
        (_writer(), Found("e1", 5, (4, 3))),
        (_writer(), Found("e1", 5, (5, 0), 0, "b1")),
        (_writer(), Found("e1", 5, (5, 1), 0, "b1")),
        (_writer(), Found("e1", 4, None)),  # a new task number
        (_writer(), Found("e1", 4, (2, 7))),  # a number that was away for a while
    ],
)
def test_goes_on(writer: Writer, found: Found) -> None:
    check_fence(writer, found, "the store")


@pytest.mark.parametrize(
    ("found", "error", "reason"),
    [
        (Found(None, None, None), StateOwnerError, "does not know topology 'words'.*was lost"),
        (Found("e2", 4, (4, 0)), StateOwnerError, "belongs to checkpoint 'e2'"),
        (Found("e1", None, None), StateOwnerError, "has no transaction.*was lost"),
        (Found("e1", 3, (3, 0)), StateOwnerError, "restored from a backup"),
        (Found("e1", 6, (4, 0)), StateOwnerError, "went back"),
        (Found("e1", 5, (5, 2), 0, "b1"), StateOvertakenError, "attempt 2 already: end this task"),
        (Found("e1", 4, (4, 0), 9), StateOvertakenError, "newer process of the job has taken over"),
        (Found("e1", 5, (5, 0), 0, "b0"), StateOwnerError, "another batch .* an older copy"),
    ],
)
def test_does_not_go_on(found: Found, error: type[StateError], reason: str) -> None:
    """With another database, another state of it, and beside a newer attempt."""
    with pytest.raises(error, match=reason):
        check_fence(_writer(), found, "the store")


@pytest.mark.promise("state-database-checkpoint-lost")
@pytest.mark.parametrize("own", [None, (3, 7)])
def test_database_of_a_time_between_the_commits_of_two_tasks(own: tuple[int, int] | None) -> None:
    """It has the newest transaction of the component, and lacks that of this task."""
    writer = replace(_writer(), has_task_committed=True)
    with pytest.raises(StateOwnerError, match=r"of task 0 .* restored from a backup"):
        check_fence(writer, Found("e1", 4, own), "the store")


@pytest.mark.parametrize("own", [(4, 3), (5, 1)])
def test_task_that_committed_the_transaction_before(own: tuple[int, int]) -> None:
    writer = replace(_writer(), has_task_committed=True)
    check_fence(writer, Found("e1", 5, own, 0, "b1"), "the store")


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (Found(None, 4, (4, 0)), StateOwnerError),
        (Found("e2", 4, (4, 0)), StateOwnerError),
        (Found("e1", 5, (5, 2), 0, "b1"), StateOvertakenError),
        (Found("e1", 6, (6, 0)), StateOvertakenError),
        (Found("e1", 6, (4, 0)), StateOvertakenError),
        (Found("e1", 4, (4, 0), 9), StateOvertakenError),
        (Found("e1", 5, (5, 0), 0, "b0"), StateOwnerError),
    ],
)
def test_why_a_commit_was_refused(found: Found, error: type[StateError]) -> None:
    """Another owner, or a newer life."""
    assert type(refusal(_writer(), found, "the store")) is error
