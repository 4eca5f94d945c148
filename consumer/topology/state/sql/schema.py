"""The tables of a database: five that say whose it is, and one for each state.

::

    sequitur_schema        version
    sequitur_topologies    topology, epoch, least_attempt
    sequitur_states        name, topology, component, kind, key_type, value_type
    sequitur_transactions  topology, component, task, txid, attempt, former_txid, batch
    sequitur_removed       topology, component, task, name, key
    <state>                key, value, previous, txid, task

- `least_attempt`: attempts with a smaller id commit nothing any more.
- `former_txid` is the transaction id that the row had before its last update. A commit sees by it
  that the same transaction was committed before.
- `sequitur_removed` has the keys that a task removed in its newest transaction. Their `value` is
  NULL.
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
    func,
    insert,
    inspect,
    select,
    update,
)

from sequitur.consumer.topology.state.fence import lost_topology, other_epoch, taken_over, went_back
from sequitur.consumer.topology.state.sql.database_errors import naming_failures
from sequitur.consumer.topology.state.sql.dialects import dialect_of
from sequitur.consumer.topology.state.sql.engines import on_connection
from sequitur.errors import StateOwnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from sequitur.consumer.topology.state.sql.store import SQLStore
    from sequitur.consumer.topology.state.store import State
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


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


def create_schema(
    store: SQLStore,
    owners: Mapping[str, Sequence[State]],
    topology: str,
    epoch: str,
    least_attempt: int,
) -> None:
    """Make missing tables and register their owners. Raises what `StateStore.create` raises."""

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
    """Refuse later commits of earlier tries; returns and raises what `StateStore.give_up` does.

    Each commit holds a shared lock on the topology's row, so this waits for commits in progress.
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


def table_of(state: State) -> Table:
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
    """Return whether a database knows a topology. Refuse that of another checkpoint or life."""
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
