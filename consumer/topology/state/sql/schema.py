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
out in its newest transaction: `value` of these is NULL. In version 1 no key could be taken out.
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
    insert,
    inspect,
    select,
    update,
)

from sequitur.consumer.topology.state.fence import lost_topology, other_epoch, taken_over
from sequitur.consumer.topology.state.sql.dialects import dialect_of
from sequitur.consumer.topology.state.sql.engines import naming_failures, on_connection
from sequitur.errors import StateOwnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from sequitur.consumer.topology.state.kinds import State
    from sequitur.consumer.topology.state.sql.store import SQLStore
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt

_Result = TypeVar("_Result")

SCHEMA_VERSION: Final = 2
_WITHOUT_REMOVAL: Final = 1
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
        elif version == _WITHOUT_REMOVAL:
            for name in connection.scalars(select(_states.c.name)).all():
                dialect_of(is_sqlite=store.is_sqlite).allow_null(connection, name)
            connection.execute(update(_schema).values(version=SCHEMA_VERSION))
        _register_topology(connection, store, topology, epoch, least_attempt)
        for component, states in owners.items():
            for state in states:
                _register(connection, store, state, topology, component)

    _in_transaction(store, create)


def give_up(store: SQLStore, topology: str, epoch: str, last: TransactionAttempt) -> bool:
    """Refuse what tries have not committed yet; returns and raises what `StateStore.give_up` does.

    Each commit holds a shared lock on the topology's row, so that this waits for it.
    """

    def given_up(connection: Connection) -> bool:
        row = TOPOLOGIES.c.topology == topology
        if connection.scalar(select(TOPOLOGIES.c.epoch).where(row)) is None:
            raise lost_topology(topology, store.title)
        _register_topology(connection, store, topology, epoch, last.attempt_id + 1)
        is_its = (TRANSACTIONS.c.topology == topology) & (
            TRANSACTIONS.c.txid == last.transaction_id
        )
        return connection.scalar(select(TRANSACTIONS.c.task).where(is_its).limit(1)) is not None

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
    if version not in {None, _WITHOUT_REMOVAL, SCHEMA_VERSION}:
        raise StateOwnerError(
            f"{store.title} has states of schema version {version}, and this is version "
            f"{SCHEMA_VERSION}: use the release of Sequitur that wrote it, or another database"
        )
    return version


def _register_topology(
    connection: Connection, store: SQLStore, topology: str, epoch: str, least_attempt: int
) -> None:
    row = TOPOLOGIES.c.topology == topology
    known = connection.execute(
        select(TOPOLOGIES.c.epoch, TOPOLOGIES.c.least_attempt).where(row)
    ).one_or_none()
    if known is None:
        values = {"topology": topology, "epoch": epoch, "least_attempt": least_attempt}
        connection.execute(insert(TOPOLOGIES).values(values))
    elif known.epoch != epoch:
        raise other_epoch(topology, known.epoch, epoch, store.title)
    elif known.least_attempt > least_attempt:
        raise taken_over(f"topology {topology!r}", least_attempt, store.title)
    else:
        connection.execute(update(TOPOLOGIES).where(row).values(least_attempt=least_attempt))


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
                f"{store.title} has a table {state.name!r} that is no state: give the state "
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
