"""The statements that SQLite and PostgreSQL need in different forms: begin, read, write pages."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.portions import portions
from sequitur.consumer.topology.state.sql.engines import LOCK_TIMEOUT_S
from sequitur.consumer.topology.state.store import State, StateKind, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection

    from sequitur.consumer.topology.state.store import Change, Key


ARRAY_TYPES: Final[dict[type, str]] = {
    str: "text[]",
    int: "bigint[]",
    bytes: "bytea[]",
    float: "double precision[]",
    bool: "boolean[]",
    object: "text[]",
}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _hexadecimal(data: bytes) -> str:
    return f'"\\\\x{data.hex()}"'


_ITEM: Final[dict[type, Callable[[Any], str]]] = {
    str: _quoted,
    int: str,
    bytes: _hexadecimal,
    float: repr,
    bool: str,
    object: _quoted,
}


def array_literal(kind: type, items: Iterable[Any]) -> str:
    """Return an array's text form, for a parameter that is cast to `ARRAY_TYPES`."""
    said = _ITEM[kind]
    return f"{{{','.join(['NULL' if item is None else said(item) for item in items])}}}"


PAGE_KEYS: Final = 10_000
"""Rows of one round trip, at most."""
PAGE_BYTES: Final = 4 << 20
"""Bytes of one round trip, at most: a server that works for long looks like one that hangs."""
_LARGE_KEYS: Final = 1_000
"""Rows that are read at a time where values may be large."""
_COLUMNS: Final = '"key", "value", "previous", "txid", "task"'
# A row of another task or of a newer transaction is not written: the count of rows shows it.
_RULES: Final = {
    StateKind.TRANSACTIONAL: 'WHERE t."txid" < excluded."txid"',
    StateKind.OPAQUE: 'WHERE t."txid" < excluded."txid"'
    ' OR (t."txid" = excluded."txid" AND t."task" = excluded."task")',
    StateKind.NON_TRANSACTIONAL: 'WHERE t."txid" <> excluded."txid" OR t."task" = excluded."task"',
}
_PREVIOUS: Final = 'CASE WHEN t."txid" < excluded."txid" THEN t."value" ELSE t."previous" END'


def _upsert(state: State, rows: str) -> str:
    previous = "NULL" if state.kind is StateKind.NON_TRANSACTIONAL else _PREVIOUS
    return (
        f'INSERT INTO "{state.name}" AS t ("key", "value", "txid", "task") {rows} '
        f'ON CONFLICT ("key") DO UPDATE SET "previous" = {previous}, "value" = excluded."value", '
        f'"txid" = excluded."txid", "task" = excluded."task" {_RULES[state.kind]}'
    )


def encoded(state: State, changes: Sequence[Change]) -> Iterator[tuple[Key, Any]]:
    """Return each key with its column's content; None for a removed key."""
    if state.value is object:
        return ((key, None if value is None else json.dumps(value)) for key, value in changes)
    return iter(changes)


def read_keys(state: State) -> int:
    """Return how many rows are read at a time."""
    return _LARGE_KEYS if state.value in {str, bytes, object} else PAGE_KEYS


def pages(rows: Iterable[tuple[Key, Any]], most: int) -> Iterator[list[tuple[Key, Any]]]:
    """Return pages of at most `most` rows and `PAGE_BYTES`. A larger row is a page by itself."""
    return portions(rows, _size_of, PAGE_BYTES, most_items=most)


def _size_of(row: tuple[Key, Any]) -> int:
    return sum(len(one) for one in row if isinstance(one, str | bytes))


class Dialect(ABC):
    @abstractmethod
    def begin(self, connection: Connection) -> None:
        """Begin a transaction that writes."""

    @abstractmethod
    def begin_schema(self, connection: Connection) -> None:
        """Begin a transaction that makes tables. Only one runs at a time."""

    @abstractmethod
    def takes_unicode(self, connection: Connection) -> bool:
        """Whether the database's encoding has all of Unicode."""

    @abstractmethod
    def share(self, connection: Connection, topology: str) -> None:
        """Lock a topology's row against `give_up` until the transaction ends."""

    @abstractmethod
    def read(self, connection: Connection, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:
        """Return the rows of a page of keys."""

    @abstractmethod
    def write(
        self,
        connection: Connection,
        state: State,
        page: Sequence[tuple[Key, Any]],
        txid: int,
        task: int,
    ) -> int:
        """Write a page from `encoded`; return how many rows were written."""

    @abstractmethod
    def written_by(self, connection: Connection, state: State, txid: int, task: int) -> list[Key]:
        """Return the keys of the rows that a task wrote in a transaction."""

    @abstractmethod
    def withdraw(
        self, connection: Connection, state: State, keys: Sequence[Key], txid: int
    ) -> None:
        """Restore a page of rows to what they were before a transaction."""

    @abstractmethod
    def delete(self, connection: Connection, state: State, keys: Sequence[Key], txid: int) -> None:
        """Delete the keys of a page that an earlier transaction left without a value."""

    def rollback(self, connection: Connection) -> None:
        connection.exec_driver_sql("ROLLBACK")

    def commit(self, connection: Connection) -> None:
        connection.exec_driver_sql("COMMIT")


def _stored_rows(state: State, rows: Iterable[Any]) -> dict[Key, Stored]:
    decode: Callable[[Any], Any]
    if state.value in {object, bool}:  # SQLite has numbers for the latter
        decode = json.loads if state.value is object else bool
        return {
            key: Stored(
                None if value is None else decode(value),
                None if before is None else decode(before),
                txid,
                task,
            )
            for key, value, before, txid, task in rows
        }
    return {row[0]: Stored._make(row[1:]) for row in rows}


class SQLite(Dialect):
    """A file with one writer at a time."""

    def begin(self, connection: Connection) -> None:
        """Wait for the writer before, then begin."""
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def begin_schema(self, connection: Connection) -> None:
        """Wait for the writer before, then begin."""
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def takes_unicode(self, connection: Connection) -> bool:  # noqa: ARG002 - see `Dialect`
        return True

    def share(self, connection: Connection, topology: str) -> None:
        """Do nothing: there is only one writer."""

    def read(self, connection: Connection, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:
        places = ", ".join("?" * len(keys))
        query = f'SELECT {_COLUMNS} FROM "{state.name}" WHERE "key" IN ({places})'  # noqa: S608
        return _stored_rows(state, connection.exec_driver_sql(query, tuple(keys)).all())

    def write(
        self,
        connection: Connection,
        state: State,
        page: Sequence[tuple[Key, Any]],
        txid: int,
        task: int,
    ) -> int:
        rows = [(key, value, txid, task) for key, value in page]
        return connection.exec_driver_sql(_upsert(state, "VALUES (?, ?, ?, ?)"), rows).rowcount

    def written_by(self, connection: Connection, state: State, txid: int, task: int) -> list[Key]:
        query = f'SELECT "key" FROM "{state.name}" WHERE "txid" = ? AND "task" = ?'  # noqa: S608
        return list(connection.exec_driver_sql(query, (txid, task)).scalars())

    def withdraw(
        self, connection: Connection, state: State, keys: Sequence[Key], txid: int
    ) -> None:
        named = f'"{state.name}"'
        rows = [(key, txid) for key in keys]
        connection.exec_driver_sql(
            f'DELETE FROM {named} WHERE "key" = ? AND "txid" = ? AND "previous" IS NULL',  # noqa: S608
            rows,
        )
        connection.exec_driver_sql(
            f'UPDATE {named} SET "value" = "previous", "txid" = "txid" - 1 '  # noqa: S608
            'WHERE "key" = ? AND "txid" = ?',
            rows,
        )

    def delete(self, connection: Connection, state: State, keys: Sequence[Key], txid: int) -> None:
        connection.exec_driver_sql(
            f'DELETE FROM "{state.name}" WHERE "key" = ? AND "value" IS NULL AND "txid" < ?',  # noqa: S608
            [(key, txid) for key in keys],
        )


class PostgreSQL(Dialect):
    """A server. Rows go to it and come from it as arrays."""

    def begin(self, connection: Connection) -> None:
        """Begin, with limits: a task that is stopped in the middle must not block others."""
        limit_ms = LOCK_TIMEOUT_S * 1000
        connection.exec_driver_sql(
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {limit_ms}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {limit_ms}; "
            "SET LOCAL synchronous_commit = on"
        )

    def begin_schema(self, connection: Connection) -> None:
        """Wait for others that make tables. The lock's number is the name of this project."""
        self.begin(connection)
        number = int.from_bytes(b"sequitur", "big") >> 1
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({number})")

    def takes_unicode(self, connection: Connection) -> bool:
        """Return what the server said when the connection was made."""
        info = connection.connection.dbapi_connection.info  # type: ignore[union-attr]
        return bool(info.parameter_status("server_encoding") == "UTF8")

    def share(self, connection: Connection, topology: str) -> None:
        query = "SELECT 1 FROM sequitur_topologies WHERE topology = %s FOR SHARE"
        connection.exec_driver_sql(query, (topology,))

    def read(self, connection: Connection, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:
        query = (
            f'SELECT {_COLUMNS} FROM "{state.name}" '  # noqa: S608
            f'WHERE "key" = ANY (%s::{ARRAY_TYPES[state.key]})'
        )
        given = (array_literal(state.key, keys),)
        return _stored_rows(state, connection.exec_driver_sql(query, given).all())

    def write(
        self,
        connection: Connection,
        state: State,
        page: Sequence[tuple[Key, Any]],
        txid: int,
        task: int,
    ) -> int:
        """Write in one statement, in the order of the page, so that no tasks block each other."""
        arrays = f"%s::{ARRAY_TYPES[state.key]}, %s::{ARRAY_TYPES[state.value]}"
        rows = f"SELECT k, v, %s::bigint, %s::integer FROM unnest({arrays}) AS given(k, v)"  # noqa: S608
        keys = array_literal(state.key, [key for key, _ in page])
        values = array_literal(state.value, [value for _, value in page])
        return connection.exec_driver_sql(_upsert(state, rows), (txid, task, keys, values)).rowcount

    def written_by(self, connection: Connection, state: State, txid: int, task: int) -> list[Key]:
        query = f'SELECT "key" FROM "{state.name}" WHERE "txid" = %s AND "task" = %s'  # noqa: S608
        return list(connection.exec_driver_sql(query, (txid, task)).scalars())

    def withdraw(
        self, connection: Connection, state: State, keys: Sequence[Key], txid: int
    ) -> None:
        which = f'"txid" = %s AND "key" = ANY (%s::{ARRAY_TYPES[state.key]})'
        given = (txid, array_literal(state.key, keys))
        connection.exec_driver_sql(
            f'DELETE FROM "{state.name}" WHERE "previous" IS NULL AND {which}',  # noqa: S608
            given,
        )
        connection.exec_driver_sql(
            f'UPDATE "{state.name}" SET "value" = "previous", "txid" = "txid" - 1 WHERE {which}',  # noqa: S608
            given,
        )

    def delete(self, connection: Connection, state: State, keys: Sequence[Key], txid: int) -> None:
        connection.exec_driver_sql(
            f'DELETE FROM "{state.name}" WHERE "value" IS NULL AND "txid" < %s '  # noqa: S608
            f'AND "key" = ANY (%s::{ARRAY_TYPES[state.key]})',
            (txid, array_literal(state.key, keys)),
        )


def dialect_of(*, is_sqlite: bool) -> Dialect:
    return SQLite() if is_sqlite else PostgreSQL()
