"""States in PostgreSQL: what its rows hold, and what becomes of a batch when something fails."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import psutil
import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    SQLStore,
    State,
    TransactionalState,
)
from sequitur.consumer.topology.state.sql import dialects, postgresql
from sequitur.consumer.topology.state.sql.engines import engine_of
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.errors import StateConflictError, StateError, StateOwnerError, StateUnavailableError
from tests.support.examples import examples
from tests.support.lossy_proxy import LossyProxy
from tests.support.postgres import PASSWORD_USER
from tests.support.state_databases import (
    EPOCH,
    TOPOLOGY,
    add,
    adding,
    create,
    opened,
    values,
    writer,
)
from tests.support.state_history import StateHistory
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.one_process

_KINDS = [TransactionalState, OpaqueState, NonTransactionalState]
_MANY = 100_000
_COMMIT = b"COMMIT\0"  # the statement, and not the level of isolation that others name


@pytest.fixture
def store(database: str) -> Iterator[SQLStore]:
    own = SQLStore(database)
    yield own
    engine_of(own).dispose()


def _name(store: SQLStore) -> str:
    return store.url.rpartition("/")[2]


def _repeated(txid: int, state: State, keys: list[str]) -> list[Any]:
    """Repeat a batch as a job does, until no try of an earlier attempt gets in between."""
    for attempt in itertools.count(1):
        with contextlib.suppress(StateUnavailableError):
            return add(writer(txid, attempt), state, keys)
    raise AssertionError


@pytest.mark.promise("state-commit-tried-already", "state-key-taken-transaction")
def test_each_transaction_counts_once(store: SQLStore) -> None:
    """Whatever fails, is repeated or comes late: the rows are those of one attempt at each."""
    numbers = itertools.count()

    class History(StateHistory):
        def __init__(self) -> None:
            super().__init__(store, next(numbers))

    run_state_machine_as_test(
        History,
        settings=settings(max_examples=examples(0.1), stateful_step_count=15),
    )


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (int, [0, -(1 << 63), (1 << 63) - 1]),
        (float, [0.1, 5e-324, float("inf"), float("-inf"), 1e300]),
        (str, ["", " ", "ä\n\"'\\{},\t", "NULL", "\\x00", "{}"]),
        (bytes, [b"", b'\0\xff\\"x']),
        (bool, [True, False]),
        (object, [{"a": [1, None, '\0"\\']}, "x", 0, False, [], 1 << 80]),
    ],
)
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
        assert list(map(repr, given)) == list(map(repr, values(state, keys, txid=txid)))


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (str, ["", "a", "A", 'ä"\\{},', "NULL", "\n", "x" * 2_000]),
        (int, [0, -(1 << 63), (1 << 63) - 1]),
        (bytes, [b"", b"\0", b"\\", b"\xff" * 2_000]),
    ],
)
def test_keys_come_back(store: SQLStore, kind: type, keys: list[Any]) -> None:
    state = TransactionalState(store, "kept", key=kind)
    create(state)
    batch = opened(writer(1), state)
    batch.state("kept").multi_put(keys, range(len(keys)))
    batch.commit()
    assert list(range(len(keys))) == values(state, keys, txid=2)


@pytest.mark.promise("state-key-taken-transaction")
@pytest.mark.parametrize(
    ("key_type", "keys"),
    [(str, ["NULL", "x" * 2_000]), (int, [-1, 1 << 40]), (bytes, [b"\0", b"\xff" * 2_000])],
)
def test_keys_are_taken_out(store: SQLStore, key_type: type, keys: list[Any]) -> None:
    """Beside others of one page; a repeat finds them, and the next transaction deletes rows."""
    state = OpaqueState(store, "kept", key=key_type, value=str)
    create(state)
    batch = opened(writer(1), state)
    batch.state("kept").multi_put(keys, ["NULL", "a"])
    batch.commit()
    for attempt in range(2):
        batch = opened(writer(2, attempt), state)
        assert batch.state("kept").multi_get(keys) == ["NULL", "a"]
        batch.state("kept").multi_remove(keys[:1])
        batch.state("kept").multi_put(keys[1:], ["NULL"])
        batch.commit()
    opened(writer(3), state).commit()
    assert values(state, keys, txid=4) == [None, "NULL"]
    with engine_of(store).connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM kept").scalar() == 1


def test_columns_are_readable(store: SQLStore, postgres: PostgresServer) -> None:
    """Whoever reads the table by SQL finds values of its own types."""
    state = OpaqueState(store, "kept", value=object)
    create(state)
    for txid in (1, 2):
        batch = opened(writer(txid, task=3), state)
        batch.state("kept").multi_put(["a"], [{"n": txid}])
        batch.commit()
    rows = postgres.sql("SELECT key, value::json ->> 'n', txid, task FROM kept", _name(store))
    assert rows == [("a", "2", 2, 3)]


@pytest.mark.test_all
@pytest.mark.parametrize("kind", _KINDS)
def test_many_keys(store: SQLStore, kind: type[State]) -> None:
    """A batch goes over in pages; its repeat and the next one find all of it."""
    state = kind(store, "counts")
    create(state)
    keys = [f"key-{number}" for number in range(_MANY)]
    assert add(writer(1), state, keys) == [1] * _MANY
    assert add(writer(2, 0), state, keys) == [2] * _MANY
    repeated = 3 if kind is NonTransactionalState else 2
    assert add(writer(2, 1), state, keys) == [repeated] * _MANY
    assert values(state, keys, txid=3) == [repeated] * _MANY


@pytest.mark.promise("state-tasks-committer-update")
def test_conflict_in_a_late_page_leaves_nothing(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written before it in the same commit is taken back."""
    monkeypatch.setattr("sequitur.consumer.topology.state.sql.session.PAGE_KEYS", 2)
    assert dialects.PAGE_KEYS > 2
    state = OpaqueState(store, "counts")
    create(state)
    add(writer(1, task=0), state, ["f"])
    other = opened(writer(1, task=1), state)
    other.state("counts").multi_put(list("abcdef"), range(6))
    with pytest.raises(StateConflictError, match="'counts', key 'f': tasks 0 and 1"):
        other.commit()
    assert values(state, list("abcdef"), txid=2) == [None] * 5 + [1]


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


@pytest.mark.test_all
@pytest.mark.promise("state-answer-commit-lost")
@pytest.mark.parametrize("kind", _KINDS)
def test_lost_answer_to_a_commit_is_found_out(
    store: SQLStore, postgres: PostgresServer, kind: type[State]
) -> None:
    """The database is asked what became of it: it was done, and the batch goes on."""
    with LossyProxy(postgres.port) as proxy:
        far = SQLStore(postgres.url(_name(store), port=proxy.port))
        state = kind(far, "counts")
        create(state)
        add(writer(1), state, ["a"], 5)
        proxy.lose("answer", of=_COMMIT)
        assert add(writer(2), state, ["a", "b"], 1) == [6, 1]
        assert proxy.lost == 1
        assert values(state, ["a", "b"], txid=3) == [6, 1]
        engine_of(far).dispose()


@pytest.mark.promise("state-answer-commit-lost")
@pytest.mark.parametrize("kind", _KINDS)
def test_lost_commit_is_found_out(
    store: SQLStore, postgres: PostgresServer, kind: type[State]
) -> None:
    """It never reached the database: its repeat is what is written, once."""
    with LossyProxy(postgres.port) as proxy:
        far = SQLStore(postgres.url(_name(store), port=proxy.port))
        state = kind(far, "counts")
        create(state)
        add(writer(1), state, ["a"], 5)
        proxy.lose("request", of=_COMMIT)
        assert add(writer(2), state, ["a", "b"], 1) == [6, 1]
        assert proxy.lost == 1
        assert values(state, ["a", "b"], txid=3) == [6, 1]
        engine_of(far).dispose()


@pytest.mark.promise("state-postgresql-says-nothing")
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState])
def test_commit_to_a_server_that_hangs_counts_once(
    store: SQLStore, postgres: PostgresServer, kind: type[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a limit; what hung may be committed later all the same, and its repeats wait for it.

    A repeat that has read the rows before that computes nothing from them.
    """
    monkeypatch.setattr(postgresql, "ANSWER_TIMEOUT_S", 1)
    committing = (
        "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' "
        f"AND datname = '{_name(store)}' AND application_name = 'sequitur'"
    )
    hanging: list[psutil.Process] = []

    def hang() -> None:
        ((pid,),) = postgres.sql(committing)
        hanging.append(psutil.Process(cast("int", pid)))
        hanging[0].suspend()
        # For others alone: what hangs would be ended for its idleness when it goes on.
        monkeypatch.setattr(dialects, "LOCK_TIMEOUT_S", 1)

    with LossyProxy(postgres.port) as proxy:
        far = SQLStore(postgres.url(_name(store), port=proxy.port))
        state, near = kind(far, "counts"), kind(store, "counts")
        create(state)
        add(writer(1), state, ["a"], 5)
        proxy.before(_COMMIT, hang)
        try:
            with pytest.raises(StateUnavailableError, match="no answer to the commit"):
                add(writer(2), state, ["a"], 1)
            assert hanging
            monkeypatch.setattr(postgresql, "ANSWER_TIMEOUT_S", PATIENCE_S)  # the lock's ends first
            assert values(near, ["a"], txid=2) == [5]
            late = opened(writer(2, 1), near)
            assert late.state("counts").update("a", adding(1)) == (5, 6)
            with pytest.raises(StateUnavailableError, match="lock timeout"):
                late.commit()
        finally:
            for one in hanging:
                one.resume()
        while postgres.sql("SELECT value FROM counts", _name(store)) == [(5,)]:
            time.sleep(0.01)
        with pytest.raises(StateUnavailableError, match="an earlier try was committed"):
            late.commit()
        assert add(writer(2, 2), near, ["a"], 1) == [6]
        assert values(near, ["a"], txid=3) == [6]
        engine_of(far).dispose()


@pytest.mark.promise("state-older-life-older")
def test_who_gives_a_try_up_waits_for_what_is_being_committed(
    store: SQLStore, postgres: PostgresServer
) -> None:
    """And is told that it was committed: what was prepared for it is still needed."""
    is_waited_for = threading.Event()
    with LossyProxy(postgres.port) as proxy, ThreadPoolExecutor(2) as pool:
        far = SQLStore(postgres.url(_name(store), port=proxy.port))
        state = TransactionalState(far, "counts")
        create(state)
        proxy.before(_COMMIT, is_waited_for.wait)
        committing = pool.submit(add, writer(1, 5), state, ["a"])
        claimed = (
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' "
            f"AND datname = '{_name(store)}'"
        )
        while postgres.sql(claimed) == [(0,)] and not committing.done():
            time.sleep(0.01)
        giving_up = pool.submit(store.give_up, TOPOLOGY, EPOCH, TransactionAttempt(1, 5))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            f"AND datname = '{_name(store)}'"
        )
        while postgres.sql(waiting) == [(0,)] and not giving_up.done():
            time.sleep(0.01)
        assert not giving_up.done()
        is_waited_for.set()
        assert committing.result() == [1]
        assert giving_up.result()
        engine_of(far).dispose()


def test_large_values_go_over_in_pages(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has so many bytes, or one row that has more."""
    monkeypatch.setattr(dialects, "PAGE_BYTES", 1_000)
    state = OpaqueState(store, "kept", value=object)
    create(state)
    given = ["x" * size for size in (0, 400, 400, 400, 5_000, 10)]
    pages = [
        [len(str(key)) for key, _ in page]
        for page in dialects.pages(((one, 0) for one in given), 9)
    ]
    assert pages == [[0, 400, 400], [400], [5_000], [10]]
    keys = [f"k{number}" for number in range(len(given))]
    batch = opened(writer(1), state)
    batch.state("kept").multi_put(keys, given)
    batch.commit()
    assert values(state, keys, txid=2) == given


@pytest.mark.promise("state-answer-commit-lost")
@pytest.mark.parametrize("what", ["request", "answer"])
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState])
def test_commit_that_nobody_knows_of_is_settled_by_its_repeat(
    store: SQLStore, postgres: PostgresServer, kind: type[State], what: Any
) -> None:
    """The database cannot be asked any more: the repeat counts once, done or not."""
    with LossyProxy(postgres.port) as proxy:
        far = SQLStore(postgres.url(_name(store), port=proxy.port))
        state = kind(far, "counts")
        create(state)
        add(writer(1), state, ["a"], 5)
        proxy.lose(what, of=_COMMIT, and_go_down=True)
        with pytest.raises(StateUnavailableError, match="no answer to the commit"):
            add(writer(2), state, ["a", "b"], 1)
        proxy.come_up()
        assert _repeated(2, state, ["a", "b"]) == [6, 1]
        assert values(state, ["a", "b"], txid=3) == [6, 1]
        engine_of(far).dispose()


def test_connection_that_broke_while_it_rested_is_made_anew(
    store: SQLStore, postgres: PostgresServer
) -> None:
    """The server ended it: neither reading nor committing fails for it."""
    state = TransactionalState(store, "counts")
    create(state)
    batch = opened(writer(1), state)
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{_name(store)}' AND application_name = 'sequitur'"
    )
    assert postgres.sql(end) == [(True,)]
    batch.state("counts").update("a", adding(1))
    assert postgres.sql(end) == [(True,)]
    batch.commit()
    assert values(state, ["a"], txid=2) == [1]


@pytest.mark.promise("state-driver-python-worker")
@pytest.mark.kill
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState])
def test_killed_server_keeps_what_was_committed(
    make_postgres: Callable[[], PostgresServer], kind: type[State]
) -> None:
    """SIGKILL between batches, and in the middle of one: repeats go on where it was."""
    server = make_postgres()
    store = SQLStore(server.url())
    state = kind(store, "counts")
    create(state)
    for txid in range(1, 5):
        batch = opened(writer(txid, 0), state)
        batch.state("counts").multi_update(["a", "b"], adding(txid))
        server.kill()
        with pytest.raises(StateUnavailableError):
            batch.commit()
        server.start()
        expected = sum(range(txid + 1))
        assert add(writer(txid, 1), state, ["a", "b"], txid) == [expected] * 2
        server.kill()
        server.start()
        assert add(writer(txid, 2), state, ["a", "b"], txid) == [expected] * 2
    assert values(state, ["a", "b"], txid=5) == [10, 10]
    engine_of(store).dispose()


@pytest.mark.test_all
def test_server_that_is_away_is_worth_another_try(
    make_postgres: Callable[[], PostgresServer],
) -> None:
    """Everything says so, from the first call on."""
    server = make_postgres()
    store = SQLStore(server.url())
    state = TransactionalState(store, "counts")
    create(state)
    batch = opened(writer(1), state)
    server.stop()
    calls: list[Callable[[], object]] = [
        lambda: create(state),
        batch.check,
        lambda: batch.state("counts").get("a"),
        batch.commit,
    ]
    for call in calls:
        with pytest.raises(StateUnavailableError, match="another try"):
            call()
    server.start()
    batch.check()
    batch.commit()
    engine_of(store).dispose()


@pytest.mark.promise("state-answer-commit-lost")
def test_deadlock_is_worth_another_try(store: SQLStore, postgres: PostgresServer) -> None:
    """With a stranger, who locks rows in another order: nothing is written, then everything."""
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a", "b"])
    batch = opened(writer(2), state)
    batch.state("counts").multi_update(["a", "b"], adding(1))
    stranger = psycopg.connect(postgres.url(_name(store)).replace("+psycopg", ""))
    with stranger, ThreadPoolExecutor(1) as pool:
        # The stranger looks for deadlocks much later: so he is not the one who is ended.
        stranger.execute("SET deadlock_timeout = '1h'")
        stranger.execute("UPDATE counts SET task = task WHERE key = 'b'")
        committing = pool.submit(batch.commit)
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            f"AND datname = '{_name(store)}'"
        )
        while postgres.sql(waiting) == [(0,)]:
            assert not committing.done()
        stranger.execute("UPDATE counts SET task = task WHERE key = 'a'")
        with pytest.raises(StateUnavailableError, match="deadlock"):
            committing.result()
        stranger.rollback()
    assert values(state, ["a", "b"], txid=2) == [1, 1]
    batch.commit()
    assert values(state, ["a", "b"], txid=3) == [2, 2]


def test_waiting_for_a_lock_ends(
    store: SQLStore, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds the row for ever: the batch is worth another try."""
    monkeypatch.setattr(dialects, "LOCK_TIMEOUT_S", 1)
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a"])
    batch = opened(writer(2), state)
    with psycopg.connect(postgres.url(_name(store)).replace("+psycopg", "")) as stranger:
        stranger.execute("LOCK TABLE sequitur_transactions IN EXCLUSIVE MODE")
        with pytest.raises(StateUnavailableError, match="lock timeout"):
            batch.commit()
        stranger.rollback()
    batch.commit()


def test_lost_table_is_named(store: SQLStore, postgres: PostgresServer) -> None:
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a"])
    batch = opened(writer(2), state)
    postgres.sql("DROP TABLE counts", _name(store))
    with pytest.raises(StateOwnerError, match=r'"counts" does not exist.*database was lost'):
        batch.state("counts").get("a")
    batch.state("counts").multi_put(["a"], [1])
    with pytest.raises(StateOwnerError, match=r'"counts" does not exist.*database was lost'):
        batch.commit()
    with pytest.raises(StateOwnerError, match="lost the table of state 'counts'"):
        create(state)


def test_empty_database_is_not_the_one(store: SQLStore) -> None:
    state = TransactionalState(store, "counts")
    with pytest.raises(StateOwnerError, match="database was lost, or is another one"):
        opened(writer(7), state)
    create(state)
    with pytest.raises(StateOwnerError, match="database was lost, or is another one"):
        opened(writer(7), state)


def test_missing_database_is_no_matter_of_time(postgres: PostgresServer) -> None:
    """It has to be made: trying again changes nothing."""
    store = SQLStore(postgres.url("nowhere"))
    with pytest.raises(StateError, match='"nowhere" does not exist') as raised:
        create(TransactionalState(store, "counts"))
    assert type(raised.value) is StateError


def test_password_comes_from_the_environment(
    store: SQLStore, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for by name, and stands in no message and no pickle."""
    postgres.sql(f"DROP ROLE IF EXISTS {PASSWORD_USER}")
    postgres.sql(f"CREATE ROLE {PASSWORD_USER} SUPERUSER LOGIN PASSWORD 'open-sesame'")
    own = SQLStore(postgres.url(_name(store), PASSWORD_USER), password_env="COUNTS_PASSWORD")
    state = TransactionalState(own, "counts")
    with pytest.raises(StateError, match=r"COUNTS_PASSWORD.*not set here"):
        create(state)
    monkeypatch.setenv("COUNTS_PASSWORD", "wrong-word")
    with pytest.raises(StateError, match="authentication failed") as raised:
        create(state)
    assert type(raised.value) is StateError
    assert "wrong-word" not in str(raised.value)
    monkeypatch.setenv("COUNTS_PASSWORD", "open-sesame")
    create(state)
    assert add(writer(1), state, ["a"]) == [1]
    said = f"{pickle.dumps(own)!r}{own!r}{own.title}{engine_of(own).url!r}{state!r}"
    assert "open-sesame" not in said
    engine_of(own).dispose()


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


@pytest.mark.promise("state-fail-standby-applied")
def test_a_standby_is_waited_for_until_it_is_promoted(
    make_postgres: Callable[..., PostgresServer],
) -> None:
    """It lacks the newest transactions until then, as a database from a backup does."""
    primary = make_postgres()
    store = SQLStore(primary.url())
    state = TransactionalState(store, "counts")
    create(state)
    add(writer(1), state, ["a"])
    with primary.standby() as standby:
        # What it has received and not applied, as in each fail-over under load.
        standby.sql("SELECT pg_wal_replay_pause()")
        for txid in (2, 3):
            add(writer(txid), state, ["a"])
        primary.stop()
        other = SQLStore(standby.url())
        far = TransactionalState(other, "counts")
        with pytest.raises(StateUnavailableError, match="read-only"):
            add(writer(4), far, ["a"])
        standby.sql("SELECT pg_wal_replay_resume()")
        standby.sql("SELECT pg_promote()")
        assert add(writer(4), far, ["a"]) == [4]
        engine_of(other).dispose()
    engine_of(store).dispose()


def test_options_of_the_address_win(postgres: PostgresServer) -> None:
    """Over those that are given else."""
    for said, expected in (("", "sequitur"), ("?application_name=mine", "mine")):
        store = SQLStore(postgres.url() + said)
        with engine_of(store).connect() as connection:
            shown = connection.exec_driver_sql("SHOW application_name").scalar()
        assert shown == expected
        engine_of(store).dispose()
