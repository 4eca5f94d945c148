"""The states of one task's batch: what the engine makes, hands to the bolt, and commits."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from sequitur.consumer.topology.state.errors import StateError
from sequitur.consumer.topology.state.fence import check_host
from sequitur.consumer.topology.state.map_state import MapState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.state.kinds import State
    from sequitur.consumer.topology.state.store import Change, StateSession, StateStore, Writer


class CommitterStates:
    """All states of one task in one batch. States of one store are committed together.

    Stores are committed one after the other: if one fails, those before it have committed, and
    the batch is to be repeated.

    Args:
        states: By the name that the bolt asks by.
        writer: Whose batch it is.
    """

    def __init__(self, states: Mapping[str, State], writer: Writer) -> None:
        self._states = dict(states)
        self._writer = writer
        self._sessions: dict[StateStore, StateSession] = {}
        for state in self._states.values():
            if state.store not in self._sessions:
                self._sessions[state.store] = state.store.session(writer)
        self._maps = {
            state: MapState(state, self._sessions[state.store], writer)
            for state in self._states.values()
        }

    def check(self) -> None:
        """Check that each database is the one that the transaction before left.

        To be called before the bolt sees a state: a lost database must not look like an empty one.

        Raises:
            StateOwnerError: It is not, or is a file of another host.
            StateOvertakenError: A newer attempt has committed.
            StateUnavailableError: A database does not serve just now.
        """
        for store, session in self._sessions.items():
            if store.is_of_one_host:
                check_host(self._writer, socket.gethostname(), store.title)
            session.check()

    def state(self, name: str) -> MapState:
        """Return a state.

        Raises:
            StateError: The component has none of this name.
        """
        if name not in self._states:
            has = ", ".join(sorted(self._states)) or "none"
            raise StateError(f"there is no state {name!r}: declare it; the component has: {has}")
        return self._maps[self._states[name]]

    def commit(self) -> None:
        """Write everything, to each store in turn; that the batch was here, also without changes.

        Raises:
            StateOwnerError: A topology's rows are another checkpoint's.
            StateOvertakenError: A newer attempt or transaction has committed.
            StateConflictError: Another task wrote one of the keys in this transaction.
            StateUnavailableError: A database does not serve just now: repeat the batch.
        """
        all_changes: dict[StateStore, dict[State, Sequence[Change]]] = {
            store: {} for store in self._sessions
        }
        for state, each in self._maps.items():
            all_changes[state.store][state] = each.changes()
        for store, session in self._sessions.items():
            session.commit(all_changes[store])

    def close(self) -> None:
        """Give back the connections, also when one of them cannot be."""
        with contextlib.ExitStack() as closing:
            for session in self._sessions.values():
                closing.callback(session.close)
