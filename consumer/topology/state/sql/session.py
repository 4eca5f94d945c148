"""One task's batch at an SQL database.

No transaction is open while the bolt works: reads are on their own, and the commit is one short
transaction. Its first statement writes the task's row of `sequitur_transactions`, if nothing newer
is there: two lives of a task wait for each other at that row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import BigInteger, bindparam, text
from sqlalchemy.exc import DBAPIError

from sequitur.consumer.topology.state.errors import StateUnavailableError
from sequitur.consumer.topology.state.fence import Found, check_epoch, check_fence, refusal
from sequitur.consumer.topology.state.kinds import State, StateKind
from sequitur.consumer.topology.state.rules import age_of
from sequitur.consumer.topology.state.sql.dialects import PAGE_KEYS, dialect_of
from sequitur.consumer.topology.state.sql.engines import engine_of, on_connection
from sequitur.consumer.topology.state.sql.failures import naming_failures
from sequitur.consumer.topology.state.store import Change, StateSession, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from sequitur.consumer.topology.state.rules import Stored
    from sequitur.consumer.topology.state.sql.store import SQLStore
    from sequitur.consumer.topology.state.values import Key

_One = TypeVar("_One")

_SETTLE_TRIES: Final = 5
_SETTLE_WAIT_S: Final = 0.3

_NUMBERS: Final = [bindparam(name, type_=BigInteger()) for name in ("task", "txid", "attempt")]
_FOUND: Final = text(
    "SELECT (SELECT epoch FROM sequitur_topologies WHERE topology = :topology), "
    "(SELECT least_attempt FROM sequitur_topologies WHERE topology = :topology), "
    "max(txid), max(CASE WHEN task = :task THEN txid END), "
    "max(CASE WHEN task = :task THEN attempt END), "
    "max(CASE WHEN task = :task THEN batch END) "
    "FROM sequitur_transactions WHERE topology = :topology AND component = :component"
).bindparams(_NUMBERS[0])
_REGISTER: Final = text(
    "INSERT INTO sequitur_topologies (topology, epoch, least_attempt) "
    "VALUES (:topology, :epoch, 0) "
    "ON CONFLICT (topology) DO NOTHING"
)
_CLAIM: Final = text(
    "INSERT INTO sequitur_transactions AS t "
    "(topology, component, task, txid, attempt, batch) "
    "SELECT :topology, :component, :task, :txid, :attempt, :batch "
    "WHERE EXISTS (SELECT 1 FROM sequitur_topologies"
    " WHERE topology = :topology AND epoch = :epoch AND least_attempt <= :attempt) "
    "AND NOT EXISTS (SELECT 1 FROM sequitur_transactions"
    " WHERE topology = :topology AND component = :component AND txid > :txid) "
    "ON CONFLICT (topology, component, task) DO UPDATE "
    "SET txid = excluded.txid, attempt = excluded.attempt, batch = excluded.batch, "
    "former_txid = t.txid "
    "WHERE (t.txid, t.attempt) <= (excluded.txid, excluded.attempt) "
    "AND (t.txid < excluded.txid OR t.batch = excluded.batch OR excluded.batch = '') "
    "RETURNING former_txid"
).bindparams(*_NUMBERS)


class SQLSession(StateSession):
    """Reads and writes of one task's batch.

    Args:
        store: The database.
        writer: Whose batch it is.
    """

    __slots__ = ("_dialect", "_given", "_store", "_writer")

    def __init__(self, store: SQLStore, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._dialect = dialect_of(is_sqlite=store.is_sqlite)
        self._given: dict[str, Any] = {
            "topology": writer.topology,
            "epoch": writer.epoch,
            "component": writer.component,
            "task": writer.task,
            "txid": writer.transaction.transaction_id,
            "attempt": writer.transaction.attempt_id,
            "batch": writer.batch,
        }

    def check(self) -> None:
        """See `StateSession.check`; a topology that is not known and never committed is registered.

        Raises:
            StateOwnerError: The database is not the one that the transaction before left.
            StateOvertakenError: A newer attempt has committed.
            StateUnavailableError: The database does not serve just now.
        """
        with naming_failures(self._store.title):
            found = on_connection(self._store, self._found)
        check_fence(self._writer, found, self._store.title)
        if found.epoch is None:
            with naming_failures(self._store.title):
                found = on_connection(self._store, self._registered)
            check_epoch(self._writer, found.epoch, self._store.title)

    def read(self, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:
        """See `StateSession.read`.

        Raises:
            StateOwnerError: The table is not there.
            StateUnavailableError: The database does not serve just now.
        """

        def read(connection: Connection) -> dict[Key, Stored]:
            rows: dict[Key, Stored] = {}
            for page in _pages(keys):
                rows.update(self._dialect.read(connection, state, page))
            return rows

        with naming_failures(self._store.title):
            return on_connection(self._store, read)

    def commit(self, changes: Mapping[State, Sequence[Change]]) -> None:
        """See `StateSession.commit`.

        Raises:
            StateOwnerError: The topology's rows are another checkpoint's.
            StateOvertakenError: A newer attempt or transaction has committed.
            StateConflictError: Another task wrote one of the keys in this transaction.
            StateUnavailableError: The database does not serve just now.
        """
        with naming_failures(self._store.title), self._begun() as connection:
            try:
                self._write(connection, changes)
            except BaseException:
                self._roll_back(connection)
                raise
            try:
                self._dialect.commit(connection)
            except DBAPIError as error:
                self._roll_back(connection)
                self._settle(error)

    def close(self) -> None:
        """Nothing is held between calls: the process keeps the connections."""

    def _found(self, connection: Connection) -> Found:
        found = connection.execute(_FOUND, self._given).one()
        epoch, least, newest, txid, attempt, batch = found
        own = None if txid is None else (txid, attempt)
        return Found(epoch, newest, own, least or 0, batch or "")

    def _registered(self, connection: Connection) -> Found:
        connection.execute(_REGISTER, self._given)
        return self._found(connection)

    def _begun(self) -> Connection:
        """Return a connection on which a transaction has begun: a new one if the kept is dead."""
        engine = engine_of(self._store)
        for is_last in (False, True):
            connection = engine.connect()
            try:
                self._dialect.begin(connection)
            except DBAPIError as error:
                connection.close()
                if is_last or not error.connection_invalidated:
                    raise
            else:
                return connection
        raise AssertionError("unreachable")

    def _write(self, connection: Connection, changes: Mapping[State, Sequence[Change]]) -> None:
        claimed = connection.execute(_CLAIM, self._given).one_or_none()
        if claimed is None:
            raise refusal(self._writer, self._found(connection), self._store.title)
        is_repeat = claimed.former_txid == self._given["txid"]
        # All in one order, so that no two tasks block each other.
        for state in sorted(changes, key=lambda one: one.name):
            ordered = sorted(changes[state])
            if is_repeat and state.kind is StateKind.OPAQUE:
                self._withdraw(connection, state, {key for key, _ in ordered})
            for page in _pages(ordered):
                self._write_page(connection, state, page)

    def _write_page(self, connection: Connection, state: State, page: Sequence[Change]) -> None:
        txid, task = self._given["txid"], self._given["task"]
        written = self._dialect.write(connection, state, page, txid, task)
        if written == len(page):
            return
        # Rows that this task wrote in this transaction may be left out; no others.
        rows = self._dialect.read(connection, state, [key for key, _ in page])
        for key, stored in rows.items():
            age_of(state, key, stored, txid=txid, task=task)

    def _withdraw(self, connection: Connection, state: State, kept: set[Key]) -> None:
        """Take back what an attempt before wrote and this one does not: the batch has changed."""
        txid, task = self._given["txid"], self._given["task"]
        written = self._dialect.written_by(connection, state, txid, task)
        for page in _pages(sorted(set(written) - kept)):
            self._dialect.withdraw(connection, state, page, txid)

    def _roll_back(self, connection: Connection) -> None:
        """End the transaction, if the connection can still be told."""
        if connection.invalidated:
            return
        try:
            self._dialect.rollback(connection)
        except DBAPIError:
            # SQLite has ended it by itself, or the connection is of no use: never seen again.
            connection.invalidate()

    def _settle(self, error: DBAPIError) -> None:
        """Find out whether a commit without an answer was done; raise if not, or if nobody knows.

        Repeats of one attempt have one batch: whichever of them wrote the row, its rows are there.
        """
        for number in range(_SETTLE_TRIES):
            time.sleep(_SETTLE_WAIT_S * number)
            try:
                found = on_connection(self._store, self._found)
            except DBAPIError:
                continue
            if found.own == tuple(self._writer.transaction):
                return
            raise error
        raise StateUnavailableError(
            f"{self._writer.title}: {self._store.title} gave no answer to the commit, and cannot "
            "be asked what became of it: repeat the batch, which settles it"
        ) from error


def _pages(items: Sequence[_One]) -> Iterator[Sequence[_One]]:
    for start in range(0, len(items), PAGE_KEYS):
        yield items[start : start + PAGE_KEYS]
