"""Stores of SQL databases: addresses, owners and faults, on files."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    SQLStore,
    State,
    TransactionalState,
)
from sequitur.consumer.topology.state.map_state import CommitterStates
from sequitur.consumer.topology.state.sql import engines
from sequitur.consumer.topology.transactional.attempt import (
    TransactionAttempt,
    attempts_of_life,
    life_of_attempt,
)
from sequitur.errors import StateError, StateOvertakenError, StateOwnerError, StateUnavailableError
from tests.support.golden import make_golden_states
from tests.support.state_databases import (
    COMPONENT,
    EPOCH,
    TOPOLOGY,
    add,
    adding,
    create,
    opened,
    values,
    writer,
)
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@pytest.fixture
def store(tmp_path: Path) -> SQLStore:
    return SQLStore(f"sqlite:///{tmp_path}/state.db")


def _file(store: SQLStore) -> Path:
    return Path(store.url.removeprefix("sqlite:///"))


def _sql(store: SQLStore, statement: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(_file(store), isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql+psycopg://u:geheim@host/db", r"psycopg://u:\*\*\*@host/db holds a password"),
        ("postgresql+psycopg://u@host/db?password=geheim", "holds a password"),
        ("postgresql+psycopg://u@host/db?sslpassword=geheim", "holds a password"),
        ("postgresql://u@host/db", r"write postgresql\+psycopg://"),
        ("postgresql+psycopg2://u@host/db", r"'postgresql\+psycopg2'"),
        ("mysql+pymysql://u@host/db", r"not kept in 'mysql\+pymysql'"),
        ("sqlite+aiosqlite:////a.db", r"not kept in 'sqlite\+aiosqlite'"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:////a.db?mode=ro", "leave them out"),
        ("u:geheim@host", "not understood"),
        ("postgresql+psycopg://u:geheim@host:port/db", "not understood"),
    ],
)
def test_odd_addresses_are_refused(url: str, reason: str) -> None:
    """By what is wrong with them, and without a password that stands there."""
    with pytest.raises(StateError, match=reason) as raised:
        SQLStore(url)
    assert "geheim" not in str(raised.value)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, url in (
        ("psycopg", "postgresql+psycopg://u@host/db"),
        ("sqlalchemy", "sqlite:////a.db"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(StateError, match=r"pip install 'sequitur-kafka\[state\]'"):
            SQLStore(url)


def test_sqlite_needs_no_driver_of_postgresql(store: SQLStore) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from sequitur.consumer.topology.state import SQLStore, TransactionalState\n"
        f"store = SQLStore({store.url!r})\n"
        "store.create({'sum': [TransactionalState(store, 'counts')]}, 'counting', 'epoch')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert _sql(store, "SELECT name FROM sequitur_states") == [("counts",)]


def test_stores_are_values() -> None:
    """They are equal by their addresses, and go to other processes without a connection."""
    store = SQLStore("postgresql+psycopg://u@host/db?sslmode=require", password_env="SECRET")
    again = pickle.loads(pickle.dumps(store))
    assert (store, hash(store)) == (again, hash(again))
    assert store.title == "postgresql+psycopg://u@host/db"
    assert repr(store) == "SQLStore('postgresql+psycopg://u@host/db')"


@pytest.mark.promise("state-states-file-sqlite")
def test_relative_path_means_the_folder_in_which_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the task is that writes: on a cluster each has a folder of its own."""
    here, there = tmp_path / "a folder", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    store = SQLStore("sqlite:///counts.db")
    assert store == SQLStore(f"sqlite:///{here}/counts.db")
    assert store.title == f"sqlite:///{here}/counts.db"
    counts = TransactionalState(store, "counts")
    create(counts)
    monkeypatch.chdir(there)
    again = pickle.loads(pickle.dumps(counts))
    assert add(writer(1), again, ["a"]) == [1]
    assert (here / "counts.db").exists()
    assert not [*there.iterdir()]


@pytest.mark.promise("state-states-file-sqlite")
def test_task_on_another_host_than_the_file_is_refused(store: SQLStore) -> None:
    """Before it makes a file of that name there; where nothing is to be checked, it is taken."""
    counts = TransactionalState(store, "counts")
    far = replace(writer(1), host="far")
    said = rf"task 0 of 'sum' .* runs on host '{gethostname()}', .*state.db is a file of host 'far'"
    with pytest.raises(StateOwnerError, match=said):
        opened(far, counts)
    assert not _file(store).exists()
    create(counts)
    assert add(replace(writer(1), host=gethostname()), counts, ["a"]) == [1]


def test_commits_outlive_the_machine(store: SQLStore) -> None:
    """The settings of the connection say so: a log that is synced at each commit."""
    create(TransactionalState(store, "counts"))
    with engines.engine_of(store).connect() as connection:
        said = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        ]
    assert said == ["wal", 2, engines.LOCK_TIMEOUT_S * 1000]


@pytest.mark.promise("state-sqlite-shared-memory")
def test_a_folder_without_shared_memory_is_refused(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect: Callable[..., sqlite3.Connection] = sqlite3.dbapi2.connect

    def connect_without(path: str, **options: Any) -> sqlite3.Connection:
        return connect(f"file:{path}?vfs=unix-none", uri=True, **options)

    monkeypatch.setattr(sqlite3.dbapi2, "connect", connect_without)
    with pytest.raises(StateError, match=r"cannot keep a write-ahead log.* local disk"):
        create(TransactionalState(store, "counts"))


def test_many_create_at_once(store: SQLStore) -> None:
    """Whoever is first makes the tables; the others find them."""
    states = [TransactionalState(store, f"state_{number}") for number in range(3)]
    start = threading.Barrier(6)

    def at_once(_number: int) -> None:
        start.wait()
        create(*states)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(at_once, range(6)))
    assert add(writer(1), states[2], ["a"]) == [1]


def test_states_belong_to_the_store_that_creates_them(store: SQLStore, tmp_path: Path) -> None:
    """A state of another store is refused, with both named."""
    other = SQLStore(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(StateError, match=r"'counts' is of .*other\.db, and not of .*state\.db"):
        store.create({COMPONENT: [TransactionalState(other, "counts")]}, TOPOLOGY, EPOCH)


def _create(store: SQLStore, **given: Any) -> None:
    kind: type[State] = given.pop("kind", TransactionalState)
    topology, component = given.pop("topology", TOPOLOGY), given.pop("component", COMPONENT)
    epoch = given.pop("epoch", EPOCH)
    store.create({component: [kind(store, "counts", **given)]}, topology, epoch)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"epoch": "e2"}, "belongs to checkpoint 'e1', and this is checkpoint 'e2'"),
        ({"topology": "other"}, "has topology 'words', and here it is 'other'"),
        ({"component": "other"}, "has component 'sum', and here it is 'other'"),
        ({"kind": OpaqueState}, "has kind 'transactional', and here it is 'opaque'"),
        ({"kind": NonTransactionalState}, "has kind 'transactional'"),
        ({"key": int}, "has key_type 'str', and here it is 'int'"),
        ({"value": object}, "has value_type 'int', and here it is 'object'"),
    ],
)
def test_tables_of_others_are_refused(store: SQLStore, given: dict[str, Any], reason: str) -> None:
    """By what differs; what is there stays, and its owner goes on."""
    _create(store)
    _create(store)
    with pytest.raises(StateOwnerError, match=reason):
        _create(store, **given)
    _create(store)


def test_other_schema_version_is_refused(store: SQLStore) -> None:
    _create(store)
    _sql(store, "UPDATE sequitur_schema SET version = 3")
    with pytest.raises(
        StateOwnerError, match="schema version 3, this version reads 2: let the version"
    ):
        _create(store)


def test_tables_that_are_no_states_are_left_alone(store: SQLStore) -> None:
    """A user's own table of that name is not written, and nothing else is made."""
    _sql(store, "CREATE TABLE counts (number INTEGER)")
    with pytest.raises(StateOwnerError, match="a table 'counts' that is not a state"):
        _create(store)
    assert _sql(store, "SELECT name FROM sqlite_master") == [("counts",)]


@pytest.mark.promise("state-database-checkpoint-lost")
def test_lost_database_is_told_from_a_new_one(store: SQLStore) -> None:
    """A job that has committed refuses an empty one, with tables and without."""
    state = TransactionalState(store, "counts")
    for _ in range(2):
        with pytest.raises(StateOwnerError, match="database was lost, or is another one"):
            opened(writer(7), state)
        create(state)


@pytest.mark.promise("state-database-checkpoint-lost")
def test_database_from_a_backup_is_refused(store: SQLStore, tmp_path: Path) -> None:
    """Its newest transaction is older than the one before."""
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a"])
    _sql(store, "PRAGMA wal_checkpoint(TRUNCATE)")
    old = SQLStore(f"sqlite:///{tmp_path}/old.db")
    shutil.copy(_file(store), _file(old))
    with pytest.raises(StateOwnerError, match=r"transaction 1 of component.*from a backup"):
        opened(writer(3), TransactionalState(old, "counts"))
    add(writer(2), TransactionalState(old, "counts"), ["a"])


@pytest.mark.promise("state-database-checkpoint-lost")
def test_ids_that_go_back_are_refused(store: SQLStore) -> None:
    state = TransactionalState(store, "counts")
    create(state)
    for txid in (1, 2):
        add(writer(txid), state, ["a"])
    with pytest.raises(StateOwnerError, match="ids went back"):
        opened(writer(1), state)


def test_topology_that_was_never_there_is_registered(store: SQLStore) -> None:
    """Once, by whoever checks first; another checkpoint is refused from then on."""
    state = TransactionalState(store, "counts")
    create(state)
    _sql(store, "DELETE FROM sequitur_topologies")
    batch = opened(writer(1), state)
    with pytest.raises(StateOwnerError, match="belongs to checkpoint 'e1'"):
        opened(writer(1, epoch="e2"), state)
    batch.commit()


@pytest.mark.parametrize(
    "statement", ["DELETE FROM sequitur_topologies", "UPDATE sequitur_topologies SET epoch = 'e2'"]
)
def test_owner_that_changes_in_the_middle_is_noticed(store: SQLStore, statement: str) -> None:
    """The commit looks again, and writes nothing."""
    state = TransactionalState(store, "counts")
    create(state)
    batch = opened(writer(1), state)
    batch.state("counts").update("a", adding(1))
    _sql(store, statement)
    with pytest.raises(StateOwnerError):
        batch.commit()
    assert _sql(store, "SELECT * FROM counts") == []
    assert _sql(store, "SELECT * FROM sequitur_transactions") == []


@pytest.mark.promise("state-older-life-older")
def test_older_attempt_is_overtaken(store: SQLStore) -> None:
    """At its commit, and at the check of its next life."""
    state = OpaqueState(store, "counts")
    create(state)
    late = opened(writer(1, 0), state)
    late.state("counts").update("a", adding(5))
    add(writer(1, 1), state, ["a"], 1)
    with pytest.raises(StateOvertakenError, match="attempt 1 already: end this task"):
        late.commit()
    with pytest.raises(StateOvertakenError, match="attempt 1 already: end this task"):
        opened(writer(1, 0), state)
    assert values(state, ["a"], txid=2) == [1]


def test_task_that_is_no_more_is_overtaken(store: SQLStore) -> None:
    """Its number is not used any more: the other tasks' transactions are newer than its own."""
    state = OpaqueState(store, "counts")
    create(state)
    late = opened(writer(1, task=7), state)
    late.state("counts").update("a", adding(5))
    for txid in (1, 2):
        opened(writer(txid), state).commit()
    with pytest.raises(StateOvertakenError, match="transaction 2 of the component already"):
        late.commit()
    assert values(state, ["a"], txid=3) == [None]


def test_batches_without_changes_are_noted(store: SQLStore) -> None:
    """So that the next one finds the id before its own; a new task number is welcome."""
    state = TransactionalState(store, "counts")
    create(state)
    for txid in range(1, 4):
        opened(writer(txid), state).commit()
    opened(writer(4, task=5), state).commit()
    rows = _sql(store, "SELECT task, txid FROM sequitur_transactions ORDER BY task")
    assert rows == [(0, 3), (5, 4)]


@pytest.mark.promise("state-answer-commit-lost")
def test_full_disk_leaves_nothing(store: SQLStore) -> None:
    """The batch is worth another try, which counts once when there is room."""
    state = TransactionalState(store, "counts", value=str)
    create(state)
    batch = opened(writer(1), state)
    batch.state("counts").multi_put([f"key-{number}" for number in range(500)], ["x" * 500] * 500)
    with engines.engine_of(store).connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StateUnavailableError, match=r"full.*another try"):
        batch.commit()
    assert _sql(store, "SELECT * FROM sequitur_transactions") == []
    with engines.engine_of(store).connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 100000")
    batch.commit()
    assert _sql(store, "SELECT count(*) FROM counts") == [(500,)]


def test_locked_database_is_worth_another_try(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else writes for longer than a commit takes; reading goes on."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_S", 0.1)
    state = TransactionalState(store, "counts")
    create(state)
    batch = opened(writer(1), state)
    with contextlib.closing(sqlite3.connect(_file(store), isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        assert batch.state("counts").update("a", adding(1)) == (None, 1)
        with pytest.raises(StateUnavailableError, match=r"locked.*another try"):
            batch.commit()
    batch.commit()
    assert values(state, ["a"], txid=2) == [1]


@pytest.mark.promise("state-state-database-refuses")
def test_a_trial_asks_only_for_what_a_database_might_refuse(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers and short text need no transaction: somebody else may write meanwhile."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_S", 0.1)
    state = TransactionalState(store, "kept", value=str)
    create(state)
    batch = opened(writer(1), state)
    batch.state("kept").multi_put(["a", "\u017c"], ["x" * 500, "y"])
    with contextlib.closing(sqlite3.connect(_file(store), isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        assert batch.try_out() == {store: {state: [("a", "x" * 500), ("\u017c", "y")]}}
        batch.state("kept").multi_put(["a"], ["x" * 501])
        with pytest.raises(StateUnavailableError, match="locked"):
            batch.try_out()
    batch.try_out()
    assert _sql(store, "SELECT count(*) FROM kept") == [(0,)]


def test_no_transaction_is_open_while_a_bolt_works(store: SQLStore) -> None:
    """Another process writes in the meantime, without waiting."""
    state = TransactionalState(store, "counts")
    create(state)
    batch = opened(writer(1), state)
    batch.state("counts").update("a", adding(1))
    with contextlib.closing(sqlite3.connect(_file(store), timeout=0)) as other:
        other.execute("CREATE TABLE other (number INTEGER)")
    batch.commit()


def test_forks_have_connections_of_their_own(store: SQLStore) -> None:
    """A child that commits leaves its parent's connection as it was."""
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a"])
    child = multiprocessing.get_context("fork").Process(target=add, args=(writer(2), state, ["a"]))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert add(writer(3), state, ["a"]) == [3]


@pytest.mark.promise("state-several-states-several")
def test_states_of_two_stores_are_committed_in_turn(store: SQLStore, tmp_path: Path) -> None:
    """If the second fails the first has committed, and the repeat counts once in both."""
    near = TransactionalState(store, "near")
    far = OpaqueState(SQLStore(f"sqlite:///{tmp_path}/far.db"), "far")
    also = OpaqueState(store, "also")
    states: Sequence[State] = (near, far, also)
    create(near, also)
    create(far)

    def batch(attempt: int) -> CommitterStates:
        one = opened(writer(1, attempt), *states)
        for state in states:
            one.state(state.name).update("a", adding(1))
        return one

    first = batch(0)
    _sql(SQLStore(far.store.title), "ALTER TABLE far RENAME TO away")
    with pytest.raises(StateOwnerError, match="no such table: far"):
        first.commit()
    assert values(near, ["a"], txid=2) == [1]
    _sql(SQLStore(far.store.title), "ALTER TABLE away RENAME TO far")
    batch(1).commit()
    assert [values(state, ["a"], txid=2) for state in states] == [[1], [1], [1]]


@pytest.mark.promise("state-older-life-older")
def test_a_life_that_was_taken_over_commits_nothing_more(store: SQLStore) -> None:
    """Its tasks are refused by the statement that writes, also if they were checked before."""
    counts = TransactionalState(store, "counts")
    owners = {COMPONENT: [counts]}
    store.create(owners, TOPOLOGY, EPOCH, least_attempt=10)
    late = opened(writer(1, 11), counts)
    late.state("counts").update("a", adding(1))
    store.create(owners, TOPOLOGY, EPOCH, least_attempt=20)
    with pytest.raises(StateOvertakenError, match="newer process of the job has taken over"):
        late.commit()
    assert _sql(store, "SELECT * FROM counts") == []
    assert add(writer(1, 21), counts, ["a"]) == [1]
    with pytest.raises(StateOvertakenError, match="newer process"):
        store.create(owners, TOPOLOGY, EPOCH, least_attempt=10)


@pytest.mark.promise("state-older-life-older")
def test_tries_that_were_given_up_commit_nothing_more(store: SQLStore) -> None:
    """A task of one that lives on is refused; a later try at the transaction is not."""
    counts = TransactionalState(store, "counts")
    create(counts)
    late = opened(writer(1, 5), counts)
    late.state("counts").update("a", adding(1))
    assert not store.give_up(TOPOLOGY, EPOCH, TransactionAttempt(1, 5))
    with pytest.raises(StateOvertakenError, match="takes nothing of attempt 5"):
        late.commit()
    assert _sql(store, "SELECT * FROM counts") == []
    assert add(writer(1, 6), counts, ["a"]) == [1]


def test_a_transaction_that_a_task_has_committed_is_not_given_up(store: SQLStore) -> None:
    """It is said so, and nothing is written; other and older checkpoints ask in vain."""
    counts = TransactionalState(store, "counts")
    create(counts)
    assert add(writer(1, 5), counts, ["a"]) == [1]
    fences = _sql(store, "SELECT least_attempt FROM sequitur_topologies")
    assert store.give_up(TOPOLOGY, EPOCH, TransactionAttempt(1, 5))
    with pytest.raises(StateOwnerError, match="ids went back"):
        store.give_up(TOPOLOGY, EPOCH, TransactionAttempt(0, 9))
    assert _sql(store, "SELECT least_attempt FROM sequitur_topologies") == fences
    assert not store.give_up(TOPOLOGY, EPOCH, TransactionAttempt(2, 6))
    with pytest.raises(StateOwnerError, match="belongs to checkpoint"):
        store.give_up(TOPOLOGY, "other", TransactionAttempt(2, 7))
    with pytest.raises(StateOwnerError, match="does not know topology 'none' any more"):
        store.give_up("none", EPOCH, TransactionAttempt(2, 7))
    with pytest.raises(StateOvertakenError):
        store.give_up(TOPOLOGY, EPOCH, TransactionAttempt(2, 3))


def test_lives_do_not_run_into_each_other() -> None:
    """A life may make very many tries."""
    first, second = attempts_of_life(1), attempts_of_life(2)
    assert first < first + (1 << 30) < second
    assert life_of_attempt(first + (1 << 30)) == 1


@pytest.mark.promise("state-version-changed-step")
def test_a_database_of_an_older_version_is_refused_and_left_as_it_is(store: SQLStore) -> None:
    make_golden_states(_file(store))
    with contextlib.closing(sqlite3.connect(_file(store))) as connection:
        before = list(connection.iterdump())
    counts = TransactionalState(store, "counts")
    refused = "state.db.* has states of schema version 1, this version reads 2: let .*--drain"
    with pytest.raises(StateOwnerError, match=refused):
        store.create({COMPONENT: [counts]}, TOPOLOGY, EPOCH, least_attempt=attempts_of_life(2))
    with contextlib.closing(sqlite3.connect(_file(store))) as connection:
        assert list(connection.iterdump()) == before


@pytest.mark.promise("state-database-checkpoint-lost")
def test_another_batch_of_a_transaction_is_refused(store: SQLStore) -> None:
    """A checkpoint that is an older copy makes another batch of the events that it reads again."""
    counts = TransactionalState(store, "counts")
    create(counts)
    first, other = (replace(writer(1, 1), batch=batch) for batch in ("b1", "b2"))
    assert add(first, counts, ["a"]) == [1]
    assert add(first, counts, ["a"]) == [1]  # a repeat
    with pytest.raises(StateOwnerError, match="with another batch than the checkpoint"):
        opened(other, counts)
    late = CommitterStates({"counts": counts}, other)
    late.state("counts").multi_put(["b"], [5])
    with pytest.raises(StateOwnerError, match="with another batch"):
        late.commit()
    assert _sql(store, "SELECT key, value FROM counts") == [("a", 1)]
