"""The tables: those that say whose the database is, and one for each state.

::

    sequitur_schema        version
    sequitur_topologies    topology, epoch
    sequitur_states        name, topology, component, kind, key_type, value_type
    sequitur_transactions  topology, component, task, txid, attempt, former_txid, batch
    sequitur_removed       topology, component, task, name, key
    <state>                key, value, previous, txid, task

`former_txid` is the transaction id that the row had before its last update: so a commit knows
whether the same transaction was committed before. `sequitur_removed` has the keys that a task took
out in its newest transaction: `value` of these is NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from sequitur.base.retry import Backoff, Retry
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
from sequitur.consumer.topology.state.store import (
    Change,
    Found,
    State,
    StateKind,
    StateSession,
    Writer,
    age_of,
    check_epoch,
    check_fence,
    is_surely_held,
    lost_topology,
    other_epoch,
    refusal,
    taken_over,
    went_back,
)
from sequitur.errors import StateOwnerError, StateUnavailableError, StateValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from sqlalchemy import Connection

    from sequitur.consumer.topology.state.sql.store import SQLStore
    from sequitur.consumer.topology.state.store import Key, Stored
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt

    Rows: TypeAlias = dict[State, list[tuple[Key, Any]]]


_Result = TypeVar("_Result")

SCHEMA_VERSION: Final = 2
"""No release had 1. It is refused, and not used again."""
_FILL: Final = 70
"""Percent of a page that inserts fill: with 100 a batch of updates takes half as long again."""
_TYPES: Final[dict[type, Any]] = {
    str: Text,
    int: BigInteger,
    bytes: LargeBinary,
    float: Double,
    bool: Boolean,
    object: Text,
}

_metadata = MetaData()
_schema = Table("sequitur_schema", _metadata, Column("version", Integer, nullable=False))
TOPOLOGIES: Final = Table(
    "sequitur_topologies",
    _metadata,
    Column("topology", Text, primary_key=True),
    Column("epoch", Text, nullable=False),
    Column("least_attempt", BigInteger, nullable=False),
)
_states = Table(
    "sequitur_states",
    _metadata,
    Column("name", Text, primary_key=True),
    Column("topology", Text, nullable=False),
    Column("component", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("key_type", Text, nullable=False),
    Column("value_type", Text, nullable=False),
)
TRANSACTIONS: Final = Table(
    "sequitur_transactions",
    _metadata,
    Column("topology", Text, primary_key=True),
    Column("component", Text, primary_key=True),
    Column("task", Integer, primary_key=True, autoincrement=False),
    Column("txid", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("former_txid", BigInteger),
    Column("batch", Text, nullable=False),
)
REMOVED: Final = Table(
    "sequitur_removed",
    _metadata,
    Column("topology", Text, nullable=False),
    Column("component", Text, nullable=False),
    Column("task", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("key", Text, nullable=False),
    # A key and all of these names may be more than an index of PostgreSQL takes.
    Index("sequitur_removed_task", "topology", "component", "task"),
)


def table_of(state: State) -> Table:
    """Return the table of a state."""
    return Table(
        state.name,
        MetaData(),
        Column("key", _TYPES[state.key], primary_key=True, autoincrement=False),
        Column("value", _TYPES[state.value]),
        Column("previous", _TYPES[state.value]),
        Column("txid", BigInteger, nullable=False),
        Column("task", Integer, nullable=False),
        sqlite_with_rowid=False,
        # Room for a new version of a row beside the old one: no index is touched.
        postgresql_with={"fillfactor": _FILL},
    )


def create_schema(
    store: SQLStore,
    owners: Mapping[str, Sequence[State]],
    topology: str,
    epoch: str,
    least_attempt: int,
) -> None:
    """Make the tables that are not there and register whose they are; raises what `create` does."""

    def create(connection: Connection) -> None:
        version = _version(connection, store)
        _metadata.create_all(connection)
        if version is None:
            connection.execute(insert(_schema).values(version=SCHEMA_VERSION))
        _register_topology(connection, store, topology, epoch, least_attempt)
        for component, states in owners.items():
            for state in states:
                _register(connection, store, state, topology, component)

    _in_transaction(store, create)


def give_up(store: SQLStore, topology: str, epoch: str, last: TransactionAttempt) -> bool:
    """Refuse what tries have not committed yet; returns and raises what `StateStore.give_up` does.

    Each commit holds a shared lock on the topology's row, so that this waits for it.
    """
    txid, least_attempt = last.transaction_id, last.attempt_id + 1
    newest_of = select(func.max(TRANSACTIONS.c.txid)).where(TRANSACTIONS.c.topology == topology)

    def given_up(connection: Connection) -> bool:
        if not _is_registered(connection, store, topology, epoch, least_attempt):
            raise lost_topology(topology, store.title)
        newest = connection.scalar(newest_of) or 0
        if newest > txid:  # an older copy of the checkpoint must not fence the newest one
            raise went_back(f"topology {topology!r}", newest, txid, store.title)
        if newest == txid:
            return True
        _register_topology(connection, store, topology, epoch, least_attempt)
        return bool(connection.scalar(newest_of) == txid)

    return _in_transaction(store, given_up)


def _in_transaction(store: SQLStore, work: Callable[[Connection], _Result]) -> _Result:
    dialect = dialect_of(is_sqlite=store.is_sqlite)

    def done(connection: Connection) -> _Result:
        dialect.begin_schema(connection)
        try:
            result = work(connection)
        except BaseException:
            if not connection.invalidated:
                dialect.rollback(connection)
            raise
        dialect.commit(connection)
        return result

    with naming_failures(store.title):
        return on_connection(store, done)


def _version(connection: Connection, store: SQLStore) -> int | None:
    if not inspect(connection).has_table(_schema.name):
        return None
    version = connection.scalar(select(_schema.c.version))
    if version not in {None, SCHEMA_VERSION}:
        raise StateOwnerError(
            f"{store.title} has states of schema version {version}, this version reads "
            f"{SCHEMA_VERSION}: let the version that wrote them release the rows that its jobs "
            "hold (--available-now --drain), then give the topology another database and a new "
            "checkpoint"
        )
    return version


def _register_topology(
    connection: Connection, store: SQLStore, topology: str, epoch: str, least_attempt: int
) -> None:
    if _is_registered(connection, store, topology, epoch, least_attempt):
        row = TOPOLOGIES.c.topology == topology
        connection.execute(update(TOPOLOGIES).where(row).values(least_attempt=least_attempt))
    else:
        values = {"topology": topology, "epoch": epoch, "least_attempt": least_attempt}
        connection.execute(insert(TOPOLOGIES).values(values))


def _is_registered(
    connection: Connection, store: SQLStore, topology: str, epoch: str, least_attempt: int
) -> bool:
    """Return whether a database knows a topology; check that it is this checkpoint's and life's."""
    known = connection.execute(
        select(TOPOLOGIES.c.epoch, TOPOLOGIES.c.least_attempt).where(
            TOPOLOGIES.c.topology == topology
        )
    ).one_or_none()
    if known is None:
        return False
    if known.epoch != epoch:
        raise other_epoch(topology, known.epoch, epoch, store.title)
    if known.least_attempt > least_attempt:
        raise taken_over(f"topology {topology!r}", least_attempt, store.title)
    return True


def _register(
    connection: Connection, store: SQLStore, state: State, topology: str, component: str
) -> None:
    wanted = {
        "topology": topology,
        "component": component,
        "kind": str(state.kind),
        "key_type": state.key.__name__,
        "value_type": state.value.__name__,
    }
    row = connection.execute(select(_states).where(_states.c.name == state.name)).one_or_none()
    has_table = inspect(connection).has_table(state.name)
    if row is None:
        if has_table:
            raise StateOwnerError(
                f"{store.title} has a table {state.name!r} that is not a state: give the state "
                "another name"
            )
        connection.execute(insert(_states).values(name=state.name, **wanted))
    else:
        found = row._asdict()
        for what, value in wanted.items():
            if found[what] != value:
                raise StateOwnerError(
                    f"state {state.name!r} in {store.title} has {what} {found[what]!r}, and here "
                    f"it is {value!r}: declare it as it was, or give it another name"
                )
        if not has_table:
            raise StateOwnerError(
                f"{store.title} has lost the table of state {state.name!r}: restore it from a "
                f"backup together with the checkpoint, or delete its row in {_states.name!r}"
            )
    if not has_table:
        table_of(state).create(connection)


# One task's batch at an SQL database.
#
# No transaction is open while the bolt works: reads are on their own, and the commit is one short
# transaction. Its first statement writes the task's row of `sequitur_transactions`, if nothing
# newer is there: two lives of a task wait for each other at that row.
#
# Whoever has that row locked knows what became of the commits before: they are done or will never
# be. A plain read does not know it, since a commit may be done after it whose client has gone. So a
# commit without an answer is settled by its repeat, and what a bolt has read is checked again.


# Keys that were taken out: their rows stay without a value until the next transaction of the task.
#
# By them a repeat finds what was there before.

_TEXT: Final[Mapping[type, Callable[[Any], str]]] = {str: str, int: str, bytes: bytes.hex}
_KEY: Final[Mapping[type, Callable[[str], Any]]] = {str: str, int: int, bytes: bytes.fromhex}
_OF_TASK: Final = (
    (REMOVED.c.topology == bindparam("topology"))
    & (REMOVED.c.component == bindparam("component"))
    & (REMOVED.c.task == bindparam("task"))
)


def note_removed(
    connection: Connection, given: Mapping[str, Any], state: State, page: Iterable[tuple[Key, Any]]
) -> None:
    """Note which keys of a page a task has taken out."""
    own = {name: given[name] for name in ("topology", "component", "task")}
    text = _TEXT[state.key]
    rows = [{**own, "name": state.name, "key": text(key)} for key, value in page if value is None]
    if rows:
        connection.execute(insert(REMOVED), rows)


def delete_removed(
    connection: Connection, dialect: Dialect, given: Mapping[str, Any], states: Sequence[State]
) -> None:
    """Delete the rows of what a task has taken out in its transaction before."""
    for state in states:
        noted = _OF_TASK & (REMOVED.c.name == state.name)
        texts = set(connection.scalars(select(REMOVED.c.key).where(noted), given))
        keys = sorted(map(_KEY[state.key], texts))
        for page in pages(((key, None) for key in keys), PAGE_KEYS):
            dialect.delete(connection, state, [key for key, _ in page], given["txid"])
        connection.execute(REMOVED.delete().where(noted), given)


_REPEAT: Final = Retry(
    patience_s=LOCK_TIMEOUT_S,  # each may take long: the driver tells of it, and may be stopped
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

    __slots__ = ("_checked", "_dialect", "_given", "_page", "_store", "_writer")

    def __init__(self, store: SQLStore, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._dialect = dialect_of(is_sqlite=store.is_sqlite)
        self._checked: Found | None = None
        self._page: tuple[State, Sequence[tuple[Key, Any]]] | None = None  # written last
        self._given: dict[str, Any] = {
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
        """See `StateSession`."""
        found = self._checked
        return found is not None and found.own is not None and found.own[0] == self._given["txid"]

    def check(self) -> None:
        """See `StateSession.check`; a topology that never committed is registered."""
        with naming_failures(self._store.title):
            found = on_connection(self._store, self._found)
        check_fence(self._writer, found, self._store.title)
        if found.epoch is None:
            with naming_failures(self._store.title):
                found = on_connection(self._store, self._registered)
            check_epoch(self._writer, found.epoch, self._store.title)
        self._checked = found

    def read(self, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:
        """See `StateSession.read`."""

        def read(connection: Connection) -> dict[Key, Stored]:
            rows: dict[Key, Stored] = {}
            for page in pages(((key, 0) for key in keys), read_keys(state)):
                rows.update(self._dialect.read(connection, state, [key for key, _ in page]))
            return rows

        with naming_failures(self._store.title):
            return on_connection(self._store, read)

    def commit(self, changes: Mapping[State, Sequence[Change]]) -> None:
        """See `StateSession.commit`."""
        with naming_failures(self._store.title):
            try:
                self._commit(changes)
            except _LostAnswerError as lost:
                self._repeat(changes, lost.error)

    def try_out(self, changes: Mapping[State, Sequence[Change]]) -> None:
        """See `StateSession.try_out`."""
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
        """Return the rows that the database might refuse, of the states that have some."""
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
        """Find the first row of a page that is refused, by halves."""
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
        """Nothing is held between calls: the process keeps the connections."""

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
        """Repeat a commit that had no answer, which settles whether it was done.

        Repeats of one attempt have one batch: whichever of them wrote the row, its rows are there.
        """
        self._given["again"] = 1
        try:
            _REPEAT.run(lambda: self._commit(changes), _passes)
        except (_LostAnswerError, DBAPIError):
            raise StateUnavailableError(
                f"{self._writer.title}: {self._store.title} gave no answer to the commit, and does "
                "not let it be repeated now: repeat the batch, which settles it"
            ) from lost

    def _found(self, connection: Connection) -> Found:
        found = connection.execute(_FOUND, self._given).one()
        epoch, least, newest, txid, attempt, batch = found
        own = None if txid is None else (txid, attempt)
        return Found(epoch, newest, own, least or 0, batch or "")

    def _registered(self, connection: Connection) -> Found:
        connection.execute(_REGISTER, self._given)
        return self._found(connection)

    def _begun(self) -> Connection:
        """Return a connection on which a transaction has begun."""
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
        """Write everything, the task's row first; False if the commit that is repeated was done."""
        self._dialect.share(connection, self._writer.topology)
        claimed = connection.execute(_CLAIM, self._given).one_or_none()
        if claimed is None:
            found = self._found(connection)
            if self._given["again"] and found.own == tuple(self._writer.transaction):
                return False
            raise refusal(self._writer, found, self._store.title)
        is_repeat = claimed.former_txid == self._given["txid"]
        if is_repeat and self._checked is not None and not self.is_repeat:
            raise StateUnavailableError(
                f"{self._writer.title}: an earlier try was committed in {self._store.title} while "
                "this one was computed: repeat the commit, which finds what is written"
            )
        # All in one order, so that no two tasks block each other.
        states = sorted(changes, key=lambda one: one.name)
        if claimed.has_removed and not is_repeat:
            delete_removed(connection, self._dialect, self._given, states)
        for state in states:
            ordered = sorted(changes[state])
            if is_repeat and state.kind is StateKind.OPAQUE:
                self._withdraw(connection, state, {key for key, _ in ordered})
            for page in pages(encoded(state, ordered), PAGE_KEYS):
                self._write_page(connection, state, page)
                note_removed(connection, self._given, state, page)
        return True

    def _write_page(
        self, connection: Connection, state: State, page: Sequence[tuple[Key, Any]]
    ) -> None:
        txid, task = self._given["txid"], self._given["task"]
        self._page = (state, page)
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
        for page in pages(((key, 0) for key in sorted(set(written) - kept)), PAGE_KEYS):
            self._dialect.withdraw(connection, state, [key for key, _ in page], txid)

    def _roll_back(self, connection: Connection) -> None:
        """End the transaction, if the connection can still be told."""
        if connection.invalidated:
            return
        try:
            self._dialect.rollback(connection)
        except DBAPIError:
            # SQLite has ended it by itself, or the connection is of no use: never seen again.
            connection.invalidate()


class _LostAnswerError(Exception):
    """A commit may be done or not."""

    def __init__(self, error: DBAPIError) -> None:
        super().__init__(str(error))
        self.error = error


def _passes(error: Exception) -> str | None:
    # Otherwise the server is there, and does not let the commit be repeated now.
    return str(error) if isinstance(error, _LostAnswerError) else why_lost(error)
