"""Connections: kept in each process, and never used by its forks.

Every connection commits each statement by itself. A transaction begins and ends by statements of
its own, so that none is open unnoticed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import DBAPIError

from sequitur.consumer.topology.state.store import OTHER_DATABASE
from sequitur.errors import StateError, StateOwnerError, StateUnavailableError, StateValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from sqlalchemy import Connection, Engine

    from sequitur.consumer.topology.state.sql.store import SQLStore


# Connections to PostgreSQL that do not wait for ever.
#
# A server whose machine has stopped, or whose disk hangs, keeps its connections and says nothing.

ANSWER_TIMEOUT_S: Final = 60
"""How long a server may say nothing: longer than it lets a statement wait for a lock."""


class AnsweredConnection(psycopg.Connection[Any]):
    """Is closed, and says so, when its server has said nothing for `ANSWER_TIMEOUT_S`."""

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """See `psycopg.Connection`."""
        return super().wait(self._within_limit(gen), *args, **options)

    def _within_limit(self, gen: Any) -> Generator[Any, Any, Any]:
        """Pass on what the driver waits for, and what has come of it: nothing each 0.1 s."""
        heard_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now_s = time.monotonic()
                if ready:
                    heard_s = now_s
                elif now_s - heard_s > ANSWER_TIMEOUT_S:
                    self.close()
                    raise psycopg.OperationalError(
                        f"the server has not answered for {now_s - heard_s:.0f} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


_Result = TypeVar("_Result")

LOCK_TIMEOUT_S: Final = 30
"""How long a statement waits for another transaction, which lasts as long as one commit."""
_CONNECT_TIMEOUT_S: Final = 10
_KEPT: Final = 4
_SQLITE_OLDEST: Final = (3, 35, 0)  # RETURNING
_WAIT_S: Final = 0.01
_POSTGRESQL: Final = {
    "connect_timeout": _CONNECT_TIMEOUT_S,
    "application_name": "sequitur",
    # A server that went away without a word is noticed.
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
    """Do what may be done twice, since a kept connection may turn out to be dead."""
    engine = engine_of(store)
    try:
        with engine.connect() as connection:
            return work(connection)
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
    # The engine has dropped its other connections, too.
    with engine.connect() as connection:
        return work(connection)


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
    from sequitur.consumer.topology.state.sql.engines import (  # noqa: PLC0415 - needs psycopg
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
    """Make what is committed outlive the machine, and readers wait for no writer."""
    connection.execute("PRAGMA synchronous = FULL")
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    # SQLite does not wait by itself for the lock that this takes.
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_WAIT_S)


def _forget_in_fork() -> None:
    global _lock, _engines
    _inherited.append(_engines)
    _lock, _engines = threading.Lock(), {}


os.register_at_fork(after_in_child=_forget_in_fork)


_TRY_AGAIN: Final = "the batch is worth another try"
# PostgreSQL: classes of SQLSTATE, and single ones. Appendix A of its manual.
_UNAVAILABLE_CLASSES: Final = ("08", "53", "57", "58", "40")
_UNAVAILABLE: Final = ("55P03", "25P03", "25P04", "25006")
_VALUE_CLASSES: Final = ("22", "54")
_NO_TABLE: Final = ("42P01", "42703", "3F000")
# What a server says for good when a client comes; everything else may pass.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist|"
    r"permission denied|not permitted to log in|certificate"
)
_SQLITE_UNAVAILABLE: Final = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL),
)


@contextlib.contextmanager
def naming_failures(title: str) -> Iterator[None]:
    """Raise the database's errors as our own."""
    try:
        yield
    except DBAPIError as error:
        raise meaning(error, title) from error
    except UnicodeEncodeError as error:  # of the connection's encoding
        raise StateValueError(f"{title} does not take it: {error}") from error


def meaning(error: DBAPIError, title: str) -> StateError:
    """Return our own error for a database's."""
    said = " ".join(str(error.orig).split())
    if isinstance(error.orig, sqlite3.Error):
        kind = _of_sqlite(error.orig, said)
    else:
        kind = _of_postgresql(error, said)
    advice = {
        StateUnavailableError: _TRY_AGAIN,
        StateValueError: "keep smaller or other values",
        StateOwnerError: f"the database was lost, or is another one. To continue, {OTHER_DATABASE}",
    }.get(kind, "mend what it names")
    return kind(f"{title} says: {said}; {advice}")


def _of_sqlite(error: sqlite3.Error, said: str) -> type[StateError]:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in _SQLITE_UNAVAILABLE:
        return StateUnavailableError
    if primary == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return StateValueError
    if said.startswith(("no such table", "no such column")):
        return StateOwnerError
    return StateError


def _of_postgresql(error: DBAPIError, said: str) -> type[StateError]:
    code = getattr(error.orig, "sqlstate", None)
    if code is None:
        if error.connection_invalidated or not _REFUSED.search(said):
            return StateUnavailableError
        return StateError
    if code[:2] in _UNAVAILABLE_CLASSES or code in _UNAVAILABLE:
        return StateUnavailableError
    if code[:2] in _VALUE_CLASSES:
        return StateValueError
    return StateOwnerError if code in _NO_TABLE else StateError
