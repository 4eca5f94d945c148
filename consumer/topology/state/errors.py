"""Errors of the state of transactional topologies.

::

    StateError                     a state, a store or its address makes no sense; the base of all
    ├── StateOwnerError            the database is not the one that this topology's job left
    ├── StateOvertakenError        a newer attempt or transaction has committed: this task is late
    ├── StateConflictError         two tasks of a component updated one key in one transaction
    ├── StateValueError            a key or value that its column cannot hold
    └── StateUnavailableError      the database does not serve just now: worth trying again

Nothing of a batch is written when one is raised; but see `StateUnavailableError`.
"""

from __future__ import annotations

from typing import Any

from sequitur.consumer.topology._errors import TopologyError


class StateError(TopologyError):
    """A state, a store or its address makes no sense, or the database refuses it for good."""


class StateOwnerError(StateError):
    """The database is not the one that this topology's job left.

    It belongs to another checkpoint, was lost or restored from a backup, or a table is that of
    another topology, component, kind or type.
    """


class StateOvertakenError(StateError):
    """A newer attempt or transaction has committed: this task lives on too long, and must end."""


class StateConflictError(StateError):
    """Two tasks of one component updated the same key in the same transaction."""


class StateValueError(StateError, ValueError):
    """A key or a value does not fit its type or its column; the message names state and key.

    Attributes:
        keys: The keys whose rows are refused, where that is known.
        is_key: Whether it is the keys themselves, and not the values.
    """

    def __init__(self, message: str, keys: tuple[Any, ...] = (), *, is_key: bool = False) -> None:
        super().__init__(message)
        self.keys = keys
        self.is_key = is_key


class StateUnavailableError(StateError):
    """The database does not serve just now: worth trying again.

    If the answer to a commit was lost, the batch may be written in whole; its repeat settles it.
    """
