"""The states of one task's batch: what the engine makes, hands to the bolt, and commits."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, TypeAlias

from sequitur.consumer.topology.state.fence import check_host
from sequitur.consumer.topology.state.map_state import MapState
from sequitur.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.state.kinds import State
    from sequitur.consumer.topology.state.store import Change, StateSession, StateStore, Writer

    AllChanges: TypeAlias = dict[StateStore, dict[State, Sequence[Change]]]
    """What a task's batch writes, by database."""


def check_session(store: StateStore, session: StateSession, writer: Writer) -> None:
    """Check that a database is the one that the transaction before left; see `CommitterStates`."""
    if store.is_of_one_host:
        check_host(writer, socket.gethostname(), store.title)
    session.check()


class CommitterStates:
    """All states of one task in one batch. States of one store are committed together.

    Stores are committed one after the other: if one fails, those before it have committed, and
    the batch is to be repeated.

    Args:
        states: By the name that the bolt asks by.
        writer: Whose batch it is.
        task_of: Returns the task that what keys are grouped by goes to, to check writes by.
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
        """How many databases there are."""
        return len(self._sessions)

    def check(self) -> None:
        """Check that each database is the one that the transaction before left.

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
            raise StateError(f"there is no state {name!r}: declare it; the component has: {has}")
        return self._maps[self._states[name]]

    def try_out(self) -> AllChanges:
        """Have each database take what it might refuse, and take it back; return all changes.

        Raises:
            StateValueError: One refuses a key or a value.
            StateError: As `commit` does.
        """
        all_changes = self._changes()
        for store, session in self._sessions.items():
            session.try_out(all_changes[store])
        return all_changes

    def commit(self) -> None:
        """Write everything, to each store in turn; that the batch was here, also without changes.

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
        """Give back the connections, also when one of them cannot be."""
        with contextlib.ExitStack() as closing:
            for session in self._sessions.values():
                closing.callback(session.close)
