"""Connections to a state's database: each process keeps its own, and its forks never use them.

Every connection commits each statement by itself. A transaction begins and ends by statements of
its own, so no transaction is open unnoticed.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import DBAPIError

from sequitur.base.retry import Backoff, Retry, any_of
from sequitur.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

    from sequitur.consumer.topology.state.sql.store import SQLStore


_Result = TypeVar("_Result")

LOCK_TIMEOUT_S: Final = 30
"""How long a statement waits for another transaction, which lasts as long as one commit."""
_CONNECT_TIMEOUT_S: Final = 10
_KEPT: Final = 4
_SQLITE_OLDEST: Final = (3, 35, 0)  # RETURNING
_AT_ONCE: Final = Retry(most=2, backoff=Backoff(initial_ms=0))
_EACH_10_MS: Final = Backoff(initial_ms=10, jitter=0, factor=1)
_POSTGRESQL: Final = {
    "connect_timeout": _CONNECT_TIMEOUT_S,
    "application_name": "sequitur",
    # So that a server is missed that went away without a word.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    # Values come as arrays of other types each time, and poolers do not keep prepared statements.
    "prepare_threshold": None,
    # A standby that is to take over has not applied all yet, and must not look like a backup.
    "target_session_attrs": "read-write",
}

_lock = threading.Lock()
_engines: dict[SQLStore, Engine] = {}
_inherited: list[dict[SQLStore, Engine]] = []  # a fork must not close its parent's connections


def engine_of(store: SQLStore) -> Engine:
    """Return the store's engine in this process."""
    with _lock:
        engine = _engines.get(store)
        if engine is None:
            engine = _engines[store] = _new_engine(store)
        return engine


def on_connection(store: SQLStore, work: Callable[[Connection], _Result]) -> _Result:
    """Return the result of `work` on a connection. It may run twice: see `outlive_connection`."""
    engine = engine_of(store)

    def ask() -> _Result:
        with engine.connect() as connection:
            return work(connection)

    return outlive_connection(ask)


def outlive_connection(ask: Callable[[], _Result]) -> _Result:
    """Ask once more if the kept connection was dead. The engine then drops its others, too."""
    return _AT_ONCE.run(ask, why_lost)


def why_lost(error: Exception) -> str | None:
    """Return why the connection was lost; None if the error does not say that it was."""
    is_lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return str(error) if is_lost else None


def _new_engine(store: SQLStore) -> Engine:
    is_sqlite = store.is_sqlite
    ours: dict[str, Any] = {"timeout": LOCK_TIMEOUT_S}
    if not is_sqlite:  # what the address says wins
        said = make_url(store.url).query
        ours = {name: value for name, value in _POSTGRESQL.items() if name not in said}
    engine = create_engine(
        store.url,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
        connect_args=ours,
        pool_size=_KEPT,
        max_overflow=-1,
        pool_use_lifo=True,
    )
    if is_sqlite:
        if sqlite3.sqlite_version_info < _SQLITE_OLDEST:
            raise StateError(
                f"states need SQLite 3.35, and this Python has {sqlite3.sqlite_version}: "
                "take a newer Python, or PostgreSQL"
            )
        event.listen(engine, "connect", _set_up_sqlite)
    else:
        event.listen(engine, "do_connect", _connecting(store.password_env))
    return engine


def _connecting(password_env: str | None) -> Callable[[Any, Any, Any, dict[str, Any]], Any]:
    from sequitur.consumer.topology.state.sql.postgresql import (  # noqa: PLC0415 - needs psycopg
        AnsweredConnection,
    )

    def connect(_dialect: Any, _record: Any, given: Any, parameters: dict[str, Any]) -> Any:
        if password_env is not None:
            parameters["password"] = _password(password_env)
        return AnsweredConnection.connect(*given, **parameters)

    return connect


def _password(name: str) -> str:
    password = os.environ.get(name)
    if password is None:
        raise StateError(
            f"the environment variable {name} has the password of a state's database, and is "
            "not set here: set it for the driver and for every executor"
        )
    return password


def _set_up_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    """Make commits outlive the machine, and make readers wait for no writer."""
    connection.execute("PRAGMA synchronous = FULL")

    def use_wal() -> None:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            return
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":  # SQLite raises nothing then
            raise StateError(
                "SQLite cannot keep a write-ahead log in the folder of a state's file: it needs "
                "shared memory, which some network and container mounts lack. Put the file on a "
                "local disk, or use PostgreSQL"
            )

    # SQLite does not wait by itself for the lock that this takes.
    retry = Retry(patience_s=LOCK_TIMEOUT_S, backoff=_EACH_10_MS)
    retry.run(use_wal, any_of(sqlite3.OperationalError))


def _forget_in_fork() -> None:
    global _lock, _engines
    _inherited.append(_engines)
    _lock, _engines = threading.Lock(), {}


os.register_at_fork(after_in_child=_forget_in_fork)
