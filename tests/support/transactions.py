"""What tests of transactional topologies share: bolts that note what they are asked, and fail.

Bolts are pickled for each task. A `Journal` is not: it stays the same object in this process.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from sequitur.consumer.topology import BaseTransactionalBolt, BasicBolt, Committer
from sequitur.consumer.topology.state import SQLStore
from sequitur.errors import StateUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, TransactionAttempt, Tuple
    from sequitur.consumer.topology.state import State
    from sequitur.consumer.topology.state.store import Change, StateSession, Writer

_journals: dict[str, dict[str, Any]] = {}


class Call(NamedTuple):
    """A call of a bolt.

    Attributes:
        component: The bolt.
        task: Number of its task.
        what: `process` or `finish`.
        value: What it was given; None in `finish`.
        attempt: The try at the transaction: that of the tuple, or of the bolt.
    """

    component: str
    task: int
    what: str
    value: Any
    attempt: TransactionAttempt


class Journal:
    """What bolts were asked, and what is to go wrong; all copies of it are one.

    Attributes:
        calls: The calls, in order.
        faults: By a point that bolts come to, what they raise there, one each time they do. A
            None lets it pass.
    """

    def __init__(self) -> None:
        self.__dict__["key"] = uuid4().hex
        _journals[self.__dict__["key"]] = {}
        self.calls: list[Call] = []
        self.faults: dict[str, list[BaseException | None]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        _journals[self.__dict__["key"]][name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return _journals[self.__dict__["key"]][name]
        except KeyError:
            raise AttributeError(name) from None

    def pass_through(self, point: str) -> None:
        planned = self.faults.get(point)
        if planned and (error := planned.pop(0)) is not None:
            raise error

    def finishes(self) -> list[tuple[str, int]]:
        return [(one.component, one.attempt.attempt_id) for one in self.calls if one.value is None]

    def finishes_of(self, component: str) -> list[int]:
        return [attempt for name, attempt in self.finishes() if name == component]

    def of(self, component: str, what: str) -> list[Call]:
        """Return the calls of one kind of a bolt."""
        return [one for one in self.calls if one.component == component and one.what == what]

    def clear(self) -> None:
        self.calls.clear()


class Noting(BaseTransactionalBolt):
    """Passes on what it is given, notes each call, and fails where the journal plans it.

    Points are `<component>`, before `process`; `<component>.<value>`, before `process` of this
    value; `<component>.finish` and `<component>.<task>.finish`, at the end of `finish_batch`.
    """

    fields: Sequence[str] = ("transaction", "value")

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.values: list[Any] = []

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        value = text(tuple["value"])
        self._note("process", value, tuple["transaction"])
        self.journal.pass_through(self.context.component)
        self.journal.pass_through(f"{self.context.component}.{value}")
        self.values.append(value)
        self.pass_on(value)

    def pass_on(self, value: Any) -> None:
        self.collector.emit((self.transaction, value))

    def finish_batch(self) -> None:
        self._note("finish", None, self.transaction)
        self.at_end()
        self.journal.pass_through(f"{self.context.component}.finish")
        self.journal.pass_through(f"{self.context.component}.{self.context.task}.finish")

    def at_end(self) -> None:
        """Emit what the batch comes to."""

    def _note(self, what: str, value: Any, attempt: TransactionAttempt) -> None:
        one = Call(self.context.component, self.context.task, what, value, attempt)
        self.journal.calls.append(one)


class NotingAtEnd(Noting):
    """Emits all that it was given in `finish_batch`, and its own name."""

    def pass_on(self, value: Any) -> None:
        """Not yet."""

    def at_end(self) -> None:
        for value in (*self.values, f"end of {self.context.component}"):
            self.collector.emit((self.transaction, value))


class Gather(Noting, Committer):
    """Counts the values of its batches in all its states, and emits value, count before and after.

    Args:
        journal: Notes its calls.
        states: Names of its states.
    """

    fields: Sequence[str] = ("transaction", "value", "before", "after")

    def __init__(self, journal: Journal, states: Sequence[str] = ("count",)) -> None:
        super().__init__(journal)
        self.names = states

    def pass_on(self, value: Any) -> None:
        """Not yet."""

    def at_end(self) -> None:
        """Count, and emit the counts of the last state."""
        pairs: Any = ()
        for name in self.names:
            pairs = self.context.state(name).multi_update(
                self.values, lambda _, count: (count or 0) + 1
            )
        for value, (before, after) in zip(self.values, pairs, strict=True):
            self.collector.emit((self.transaction, value, before, after))


class GatherAndPassOn(Gather):
    """Emits in `process` already; at the end it emits no more."""

    fields = ("transaction", "value")

    def pass_on(self, value: Any) -> None:
        self.collector.emit((self.transaction, value))

    def at_end(self) -> None:
        for name in self.names:
            self.context.state(name).multi_update(self.values, lambda _, count: (count or 0) + 1)


class PassOn(BasicBolt):
    """Passes on what it is given, with the transaction attempt that came with it."""

    fields = ("transaction", "value")

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        collector.emit((tuple["transaction"], text(tuple["value"])))


@dataclass(frozen=True)
class FaultyStore(SQLStore):
    """A database of SQLite that fails at commits where the journal plans it.

    Points are `<name>.commit`, before it is sent, and `<name>.committed`, when it is done.

    Args:
        name: Its name in the journal.
        journal: Plans its failures.
    """

    name: str = ""
    journal: Journal | None = None

    def session(self, writer: Writer) -> StateSession:
        """Return a session whose commit may fail."""
        session: Any = _FaultySession(super().session(writer), self)
        return session  # type: ignore[no-any-return]


class _FaultySession:
    def __init__(self, session: StateSession, store: FaultyStore) -> None:
        self._session = session
        self._store = store

    def commit(self, changes: Mapping[State, Sequence[Change]]) -> None:
        journal = self._store.journal
        assert journal is not None
        journal.pass_through(f"{self._store.name}.commit")
        self._session.commit(changes)
        journal.pass_through(f"{self._store.name}.committed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def unavailable() -> StateUnavailableError:
    """What a database says that is away for a moment."""
    return StateUnavailableError("away for a moment")


def text(value: Any) -> Any:
    """Return a value that may be an event's, as plain text."""
    if isinstance(value, bytes):
        return value.decode()
    return str(value) if isinstance(value, str) else value


def store_in(folder: Path, name: str = "state") -> SQLStore:
    return SQLStore(f"sqlite:///{folder}/{name}.db")


def faulty_store(folder: Path, name: str, journal: Journal) -> FaultyStore:
    """Return such a database whose commits may fail."""
    return FaultyStore(f"sqlite:///{folder}/{name}.db", name=name, journal=journal)


def events(*values: str) -> list[Mapping[str, Any]]:
    """Return events without keys, in this order."""
    return [{"value": value, "event_time_ms": place} for place, value in enumerate(values)]


def keyed(*pairs: tuple[str, str]) -> list[Mapping[str, Any]]:
    """Return events with keys, in this order."""
    return [
        {"key": key, "value": value, "event_time_ms": place}
        for place, (key, value) in enumerate(pairs)
    ]


def rows(store: SQLStore, table: str) -> dict[Any, tuple[Any, Any, int]]:
    """Return value, previous value and transaction id by key, as the database has them."""
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as connection:
        found = connection.execute(f'SELECT "key", "value", "previous", "txid" FROM "{table}"')
        return {key: (value, previous, txid) for key, value, previous, txid in found}


def counts(store: SQLStore, table: str) -> dict[Any, Any]:
    """Return the value by key, as the database has them."""
    return {key: value for key, (value, _, _) in rows(store, table).items()}
