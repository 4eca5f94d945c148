"""One task's batch at an SQL database: what the bolt reads, and the commit.

No transaction is open while the bolt works. Each read is on its own, and the commit is one short
transaction. Its first statement writes the task's row of `sequitur_transactions`, unless a newer
one is there. Two lives of a task wait for each other at that row.

- The task that has locked its row knows what became of the commits before: they are done, or will
  never be.
- A plain read does not know that: a commit whose client has gone may still be done after it.
- So a commit without an answer is settled by its repeat, and a commit checks again what the bolt
  has read.

A key that a bolt removes keeps its row, without a value, until the next transaction of the task: a
repeat of the batch finds there what the row had before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, bindparam, insert, select, text
from sqlalchemy.exc import DBAPIError

from sequitur.base.retry import Backoff, Retry
from sequitur.consumer.topology.state.fence import Found, check_epoch, check_fence, refusal
from sequitur.consumer.topology.state.rows import age_of
from sequitur.consumer.topology.state.sql.database_errors import naming_failures
from sequitur.consumer.topology.state.sql.dialects import (
    PAGE_KEYS,
    Dialect,
    dialect_of,
    encoded,
    pages,
    read_keys,
)
from sequitur.consumer.topology.state.sql.engines import (
    LOCK_TIMEOUT_S,
    engine_of,
    on_connection,
    outlive_connection,
    why_lost,
)
from sequitur.consumer.topology.state.sql.schema import REMOVED
from sequitur.consumer.topology.state.store import Change, State, StateKind, StateSession, Writer
from sequitur.consumer.topology.state.values import is_surely_held
from sequitur.errors import StateUnavailableError, StateValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from sqlalchemy import Connection

    from sequitur.consumer.topology.state.sql.store import SQLStore
    from sequitur.consumer.topology.state.store import Key, Stored

    Rows: TypeAlias = dict[State, list[tuple[Key, Any]]]


_REPEAT: Final = Retry(
    patience_s=LOCK_TIMEOUT_S,  # one commit may take long: the driver logs it, and may be stopped
    most=5,
    backoff=Backoff(initial_ms=300, maximum_ms=1_200, jitter=0),
)

_NUMBERS: Final = [
    bindparam(name, type_=BigInteger()) for name in ("task", "txid", "attempt", "again")
]
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
    "WHERE (t.txid, t.attempt + :again) <= (excluded.txid, excluded.attempt) "
    "AND (t.txid < excluded.txid OR t.batch = excluded.batch OR excluded.batch = '') "
    "RETURNING former_txid, EXISTS (SELECT 1 FROM sequitur_removed"
    " WHERE topology = :topology AND component = :component AND task = :task) AS has_removed"
).bindparams(*_NUMBERS)


class SQLSession(StateSession):
    """Reads and writes of one task's batch."""

    __slots__ = ("_checked", "_dialect", "_page", "_parameters", "_store", "_writer")

    def __init__(self, store: SQLStore, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._dialect = dialect_of(is_sqlite=store.is_sqlite)
        self._checked: Found | None = None
        self._page: tuple[State, Sequence[tuple[Key, Any]]] | None = None  # written last
        self._parameters: dict[str, Any] = {
            "topology": writer.topology,
            "epoch": writer.epoch,
            "component": writer.component,
            "task": writer.task,
            "txid": writer.transaction.transaction_id,
            "attempt": writer.transaction.attempt_id,
            "batch": writer.batch,
            "again": 0,
        }

    @property
    def is_repeat(self) -> bool:
        found = self._checked
        return (
            found is not None and found.own is not None and found.own[0] == self._parameters["txid"]
        )

    def check(self) -> None:
        """Check as `StateSession.check` says. A topology that never committed is registered."""
        with naming_failures(self._store.title):
            found = on_connection(self._store, self._found)
        check_fence(self._writer, found, self._store.title)
        if found.epoch is None:
            with naming_failures(self._store.title):
                found = on_connection(self._store, self._registered)
            check_epoch(self._writer, found.epoch, self._store.title)
        self._checked = found

    def read(self, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:

        def read(connection: Connection) -> dict[Key, Stored]:
            rows: dict[Key, Stored] = {}
            for page in pages(((key, 0) for key in keys), read_keys(state)):
                rows.update(self._dialect.read(connection, state, [key for key, _ in page]))
            return rows

        with naming_failures(self._store.title):
            return on_connection(self._store, read)

    def commit(self, changes: Mapping[State, Sequence[Change]]) -> None:
        with naming_failures(self._store.title):
            try:
                self._commit(changes)
            except _LostAnswerError as lost:
                self._repeat(changes, lost.error)

    def try_out(self, changes: Mapping[State, Sequence[Change]]) -> None:
        self._page = None
        try:
            with naming_failures(self._store.title):
                rows = self._doubtful(changes)
                if rows:
                    self._in_trial(lambda connection: self._write_rows(connection, rows))
        except StateValueError as error:
            if self._page is None:
                raise
            raise StateValueError(str(error), (self._refused(*self._page),)) from error

    def _doubtful(self, changes: Mapping[State, Sequence[Change]]) -> Rows:
        """Return the rows that the database might refuse, by state."""
        takes_unicode = on_connection(self._store, self._dialect.takes_unicode)
        found: Rows = {}
        for state in sorted(changes, key=lambda one: one.name):
            rows = [
                row
                for row in encoded(state, sorted(changes[state]))
                if not all(is_surely_held(one, takes_unicode=takes_unicode) for one in row)
            ]
            if rows:
                found[state] = rows
        return found

    def _write_rows(self, connection: Connection, rows: Rows) -> None:
        for state, own in rows.items():
            for page in pages(own, PAGE_KEYS):
                self._write_page(connection, state, page)

    def _in_trial(self, write: Callable[[Connection], object]) -> None:
        with self._begun() as connection:
            try:
                write(connection)
            finally:
                self._roll_back(connection)

    def _refused(self, state: State, page: Sequence[tuple[Key, Any]]) -> Key:
        """Return the key of the first row that the database refuses. It is found by halves."""
        while len(page) > 1:
            half = page[: len(page) // 2]
            try:
                with naming_failures(self._store.title):
                    self._in_trial(
                        lambda connection, half=half: self._write_page(connection, state, half)  # type: ignore[misc]
                    )
            except StateValueError:
                page = half
            else:
                page = page[len(half) :]
        return page[0][0]

    def close(self) -> None:
        """Do nothing: nothing is held between calls, and the process keeps the connections."""

    def _commit(self, changes: Mapping[State, Sequence[Change]]) -> None:
        with self._begun() as connection:
            try:
                is_new = self._write(connection, changes)
            except BaseException:
                self._roll_back(connection)
                raise
            if not is_new:
                self._roll_back(connection)
                return
            try:
                self._dialect.commit(connection)
            except DBAPIError as error:
                self._roll_back(connection)
                if error.connection_invalidated:
                    raise _LostAnswerError(error) from error
                raise

    def _repeat(self, changes: Mapping[State, Sequence[Change]], lost: DBAPIError) -> None:
        """Repeat a commit that had no answer: the repeat settles whether it was done.

        All repeats of one attempt commit one batch, so it does not matter which of them is done.
        """
        self._parameters["again"] = 1
        try:
            _REPEAT.run(lambda: self._commit(changes), _passes)
        except (_LostAnswerError, DBAPIError):
            raise StateUnavailableError(
                f"{self._writer.title}: {self._store.title} gave no answer to the commit, and does "
                "not let it be repeated now: repeat the batch, which settles it"
            ) from lost

    def _found(self, connection: Connection) -> Found:
        found = connection.execute(_FOUND, self._parameters).one()
        epoch, least, newest, txid, attempt, batch = found
        own = None if txid is None else (txid, attempt)
        return Found(epoch, newest, own, least or 0, batch or "")

    def _registered(self, connection: Connection) -> Found:
        connection.execute(_REGISTER, self._parameters)
        return self._found(connection)

    def _begun(self) -> Connection:
        engine = engine_of(self._store)

        def begun() -> Connection:
            connection = engine.connect()
            try:
                self._dialect.begin(connection)
            except DBAPIError:
                connection.close()
                raise
            return connection

        return outlive_connection(begun)

    def _write(self, connection: Connection, changes: Mapping[State, Sequence[Change]]) -> bool:
        """Write all rows, the task's first; return False if an earlier try committed them."""
        self._dialect.share(connection, self._writer.topology)
        claimed = connection.execute(_CLAIM, self._parameters).one_or_none()
        if claimed is None:
            found = self._found(connection)
            if self._parameters["again"] and found.own == tuple(self._writer.transaction):
                return False
            raise refusal(self._writer, found, self._store.title)
        is_repeat = claimed.former_txid == self._parameters["txid"]
        if is_repeat and self._checked is not None and not self.is_repeat:
            raise StateUnavailableError(
                f"{self._writer.title}: an earlier try was committed in {self._store.title} while "
                "this one was computed: repeat the commit, which finds what is written"
            )
        # All in one order, so that no two tasks block each other.
        states = sorted(changes, key=lambda one: one.name)
        if claimed.has_removed and not is_repeat:
            delete_removed(connection, self._dialect, self._parameters, states)
        for state in states:
            ordered = sorted(changes[state])
            if is_repeat and state.kind is StateKind.OPAQUE:
                self._withdraw(connection, state, {key for key, _ in ordered})
            for page in pages(encoded(state, ordered), PAGE_KEYS):
                self._write_page(connection, state, page)
                note_removed(connection, self._parameters, state, page)
        return True

    def _write_page(
        self, connection: Connection, state: State, page: Sequence[tuple[Key, Any]]
    ) -> None:
        txid, task = self._parameters["txid"], self._parameters["task"]
        self._page = (state, page)
        written = self._dialect.write(connection, state, page, txid, task)
        if written == len(page):
            return
        # Rows that this task wrote in this transaction may be left out; no others.
        rows = self._dialect.read(connection, state, [key for key, _ in page])
        for key, stored in rows.items():
            age_of(state, key, stored, txid=txid, task=task)

    def _withdraw(self, connection: Connection, state: State, kept: set[Key]) -> None:
        """Restore rows that an earlier attempt wrote and this one does not: the batch changed."""
        txid, task = self._parameters["txid"], self._parameters["task"]
        written = self._dialect.written_by(connection, state, txid, task)
        for page in pages(((key, 0) for key in sorted(set(written) - kept)), PAGE_KEYS):
            self._dialect.withdraw(connection, state, [key for key, _ in page], txid)

    def _roll_back(self, connection: Connection) -> None:
        """End the transaction, unless the connection is dead."""
        if connection.invalidated:
            return
        try:
            self._dialect.rollback(connection)
        except DBAPIError:
            # SQLite has ended it by itself, or the connection is of no use: never seen again.
            connection.invalidate()


class _LostAnswerError(Exception):
    """The connection broke during a commit, which may be done or not."""

    def __init__(self, error: DBAPIError) -> None:
        super().__init__(str(error))
        self.error = error


def _passes(error: Exception) -> str | None:
    # Otherwise the server is there, and does not let the commit be repeated now.
    return str(error) if isinstance(error, _LostAnswerError) else why_lost(error)


_TEXT: Final[Mapping[type, Callable[[Any], str]]] = {str: str, int: str, bytes: bytes.hex}
_KEY: Final[Mapping[type, Callable[[str], Any]]] = {str: str, int: int, bytes: bytes.fromhex}
_OF_TASK: Final = (
    (REMOVED.c.topology == bindparam("topology"))
    & (REMOVED.c.component == bindparam("component"))
    & (REMOVED.c.task == bindparam("task"))
)


def note_removed(
    connection: Connection,
    parameters: Mapping[str, Any],
    state: State,
    page: Iterable[tuple[Key, Any]],
) -> None:
    """Note the keys of a page that a task has removed."""
    own = {name: parameters[name] for name in ("topology", "component", "task")}
    text = _TEXT[state.key]
    rows = [{**own, "name": state.name, "key": text(key)} for key, value in page if value is None]
    if rows:
        connection.execute(insert(REMOVED), rows)


def delete_removed(
    connection: Connection, dialect: Dialect, parameters: Mapping[str, Any], states: Sequence[State]
) -> None:
    """Delete the rows of the keys that a task removed in its transaction before."""
    for state in states:
        noted = _OF_TASK & (REMOVED.c.name == state.name)
        texts = set(connection.scalars(select(REMOVED.c.key).where(noted), parameters))
        keys = sorted(map(_KEY[state.key], texts))
        for page in pages(((key, None) for key in keys), PAGE_KEYS):
            dialect.delete(connection, state, [key for key, _ in page], parameters["txid"])
        connection.execute(REMOVED.delete().where(noted), parameters)
