"""What a bolt sees of its states in one batch: maps whose updates wait for the commit."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sequitur.consumer.topology.state.fence import check_host
from sequitur.consumer.topology.state.rows import (
    RowAge,
    age_of,
    before_update,
    check_group,
    conflict,
    is_others,
)
from sequitur.consumer.topology.state.store import Change, StateKind
from sequitur.consumer.topology.state.values import copy_of, fit_keys, fit_value, shown
from sequitur.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sequitur.consumer.topology.state.store import (
        Key,
        State,
        StateSession,
        StateStore,
        Stored,
        Writer,
    )

    Update: TypeAlias = Callable[[Key, Any], Any]
    AllChanges: TypeAlias = dict[StateStore, dict[State, Sequence[Change]]]
    """What a task's batch writes, by database."""


_logger: Final = logging.getLogger("sequitur.topology.state")


class MapState:
    """Keys and values, as the batch finds and leaves them.

    Reads see the batch's own updates. Updates are written when the batch commits. A repeated batch
    finds the values that it found the first time, so its updates and the bolt's output are the
    same. A row of a transactional state that the batch wrote before is not written again. A read
    returns it as it is stored, whatever the repeat computes.

    `Committer` has a sample.

    Args:
        state: Which one.
        session: Where rows are read.
        writer: Whose batch it is.
        task_of: Returns the task of the value that keys are grouped by. Writes are checked with it.
    """

    def __init__(
        self,
        state: State,
        session: StateSession,
        writer: Writer,
        task_of: Callable[[Any], int] | None = None,
    ) -> None:
        self._state = state
        self._session = session
        self._txid = writer.transaction.transaction_id
        self._task = writer.task
        self._task_of = task_of
        # Keys are in `_found` once they were read, and in `_first` if this transaction wrote them.
        self._found: dict[Key, Any | None] = {}  # the value before this transaction
        self._first: dict[Key, Stored] = {}  # their rows, of an attempt before
        self._others: dict[Key, Stored] = {}  # rows that another task wrote in this transaction
        self._written: dict[Key, Any] = {}  # by this batch

    def get(self, key: Key) -> Any | None:
        """Return the value of a key, or None.

        Of a key that another task writes in this transaction it is the value before.

        Raises:
            StateValueError: The key does not fit.
            StateConflictError: Another task wrote it in this transaction, and its value before is
                not known: the state is not transactional.
            StateOvertakenError: A newer transaction wrote it.
            StateUnavailableError: The database does not serve just now.
        """
        return self.multi_get([key])[0]

    def multi_get(self, keys: Iterable[Key]) -> list[Any | None]:
        """Return the value of each key, or None. Raises what `get` raises."""
        fitted = self._known(keys)
        return [
            copy_of(self._state, self._first[key].value if self._stands(key) else self._value(key))
            for key in fitted
        ]

    def update(self, key: Key, function: Update) -> tuple[Any | None, Any]:
        """Give a key the value that a function returns for the one it has.

        Args:
            key: Which one.
            function: Is given key and value, None if it has none; returns the new value, which is
                not None.

        Returns:
            The value before, and after. In a repeat of a transactional state the value after is as
            stored; of several updates of a key those before the last give what they come to again,
            and so do those of a key that was taken out behind them.

        Raises:
            StateValueError: The key or the new value does not fit.
            StateConflictError: Another task wrote it in this transaction.
            StateOvertakenError: A newer transaction wrote it.
            StateUnavailableError: The database does not serve just now.
        """
        return self.multi_update([key], function)[0]

    def multi_update(self, keys: Iterable[Key], function: Update) -> list[tuple[Any | None, Any]]:
        """Update all keys or none. A key that is given twice is updated twice.

        Returns:
            The values before and after, in the order of the keys.

        Raises:
            StateError: As `update` does.
        """
        state = self._state
        fitted = self._known(keys)
        updated: dict[Key, Any] = {}
        pairs: list[tuple[Any | None, Any]] = []
        for key in fitted:
            self._check_own(key)
            before = updated[key] if key in updated else self._value(key)
            after = fit_value(state, key, function(key, copy_of(state, before)))
            updated[key] = after
            pairs.append((copy_of(state, before), copy_of(state, after)))
        self._written.update(updated)
        others = {key for key, after in updated.items() if self._is_another(key, after)}
        return [
            self._as_stored(key) if key in others else pair
            for key, pair in zip(fitted, pairs, strict=True)
        ]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Give each key a value, all or none, without reading them.

        Raises:
            StateError: There are more keys than values, or fewer.
            StateValueError: A key or a value does not fit.
        """
        if len(keys) != len(values):
            raise StateError(
                f"state {self._state.name!r}: {len(keys)} keys and {len(values)} values: "
                "give one value for each key"
            )
        fitted = fit_keys(self._state, keys)
        for key in fitted:
            self._check_own(key)
        put = {
            key: fit_value(self._state, key, value)
            for key, value in zip(fitted, values, strict=True)
        }
        self._written.update(put)

    def multi_remove(self, keys: Iterable[Key]) -> None:
        """Remove all keys or none, without reading them.

        Raises:
            StateValueError: A key does not fit.
            StateConflictError: Another task wrote it in this transaction.
        """
        fitted = fit_keys(self._state, keys)
        for key in fitted:
            self._check_own(key)
        self._written.update(dict.fromkeys(fitted))

    def changes(self) -> list[Change]:
        """Return the changes that the commit writes, by key. For the engine.

        A transactional row that this transaction wrote before stands. It is warned of one that
        came out otherwise this time.
        """
        stands = {key: self._first[key] for key in self._written if self._stands(key)}
        for key, stored in stands.items():
            if self._written[key] != stored.value:
                _logger.warning(
                    "state %r, key %s: the repeat of transaction %d gives %s, but %s was "
                    "written the first time and stays. Its bolt or spout does not repeat "
                    "itself. Use OpaqueState if batches differ",
                    *(self._state.name, shown(key), self._txid),
                    *(shown(self._written[key]), shown(stored.value)),
                )
        return [
            Change(key, value) for key, value in sorted(self._written.items()) if key not in stands
        ]

    def _check_own(self, key: Key) -> None:
        if key in self._others:
            raise conflict(self._state, key, self._others[key], self._task)
        check_group(self._state, key, self._task_of, task=self._task)

    @property
    def _keeps_first(self) -> bool:
        return self._state.kind is StateKind.TRANSACTIONAL

    def _stands(self, key: Key) -> bool:
        """Return whether an earlier attempt has written a key's row for good."""
        return self._keeps_first and key in self._first

    def _is_another(self, key: Key, after: Any) -> bool:
        """Return whether a row has another value. The row of a removed key has none."""
        stored = self._first[key].value if self._stands(key) else None
        return stored is not None and bool(after != stored)

    def _as_stored(self, key: Key) -> tuple[Any | None, Any]:
        stored = self._first[key]
        return copy_of(self._state, stored.previous), copy_of(self._state, stored.value)

    def _known(self, keys: Iterable[Key]) -> list[Key]:
        """Return fitted keys, after reading the rows that were not read yet."""
        fitted = fit_keys(self._state, keys)
        unknown = [
            key
            for key in dict.fromkeys(fitted)
            if key not in self._found
            and (key not in self._written or (self._keeps_first and self._session.is_repeat))
        ]
        if unknown:
            rows = self._session.read(self._state, unknown)
            found: dict[Key, Any | None] = dict.fromkeys(unknown)
            for key, stored in rows.items():
                if is_others(stored, txid=self._txid, task=self._task) and (
                    self._state.kind is not StateKind.NON_TRANSACTIONAL
                ):
                    found[key], self._others[key] = stored.previous, stored
                    continue
                # Raises here, and not at the commit.
                age = age_of(self._state, key, stored, txid=self._txid, task=self._task)
                found[key] = before_update(stored, age)
                if age is RowAge.SAME:
                    self._first[key] = stored
            self._found.update(found)
        return fitted

    def _value(self, key: Key) -> Any | None:
        return self._written[key] if key in self._written else self._found[key]


def check_session(store: StateStore, session: StateSession, writer: Writer) -> None:
    """Raise unless a database is as the transaction before left it; see `CommitterStates`."""
    if store.is_of_one_host:
        check_host(writer, socket.gethostname(), store.title)
    session.check()


class CommitterStates:
    """All states of one task in one batch. States of one store are committed together.

    Stores are committed one after the other. If one fails, those before it have committed, and the
    batch must be repeated.

    Args:
        states: States by the name that the bolt uses.
        writer: Whose batch it is.
        task_of: Returns the task of the value that keys are grouped by. Writes are checked with it.
    """

    def __init__(
        self,
        states: Mapping[str, State],
        writer: Writer,
        task_of: Callable[[Any], int] | None = None,
    ) -> None:
        self._states = dict(states)
        self._writer = writer
        self._sessions: dict[StateStore, StateSession] = {}
        for state in self._states.values():
            if state.store not in self._sessions:
                self._sessions[state.store] = state.store.session(writer)
        self._maps = {
            state: MapState(state, self._sessions[state.store], writer, task_of)
            for state in self._states.values()
        }

    @property
    def stores(self) -> int:
        return len(self._sessions)

    def check(self) -> None:
        """Check that each database is as the transaction before left it.

        To be called before the bolt sees a state: a lost database must not look like an empty one.

        Raises:
            StateOwnerError: It is not, or is a file of another host.
            StateOvertakenError: A newer attempt has committed.
            StateUnavailableError: A database does not serve just now.
        """
        for store, session in self._sessions.items():
            check_session(store, session, self._writer)

    def state(self, name: str) -> MapState:
        """Return a state.

        Raises:
            StateError: The component has none of this name.
        """
        if name not in self._states:
            has = ", ".join(sorted(self._states)) or "none"
            raise StateError(f"there is no state {name!r}: declare it. The component has: {has}")
        return self._maps[self._states[name]]

    def try_out(self) -> AllChanges:
        """Write to each database and roll back, so that it can refuse changes. Return all changes.

        Raises:
            StateValueError: One refuses a key or a value.
            StateError: As `commit` does.
        """
        all_changes = self._changes()
        for store, session in self._sessions.items():
            session.try_out(all_changes[store])
        return all_changes

    def commit(self) -> None:
        """Write all changes to each store in turn. Without changes, only the batch is noted.

        Raises:
            StateOwnerError: A topology's rows are another checkpoint's.
            StateOvertakenError: A newer attempt or transaction has committed.
            StateConflictError: Another task wrote one of the keys in this transaction.
            StateUnavailableError: A database does not serve just now: repeat the batch.
        """
        all_changes = self._changes()
        for store, session in self._sessions.items():
            session.commit(all_changes[store])

    def _changes(self) -> AllChanges:
        all_changes: AllChanges = {store: {} for store in self._sessions}
        for state, each in self._maps.items():
            all_changes[state.store][state] = each.changes()
        return all_changes

    def close(self) -> None:
        """Close all connections, even if closing one fails."""
        with contextlib.ExitStack() as closing:
            for session in self._sessions.values():
                closing.callback(session.close)
