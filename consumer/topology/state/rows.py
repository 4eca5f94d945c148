"""What a transaction finds in a row, and may do with it: the rules of the three kinds, pure.

::

    count 10, txid 2, previous 4, and an update that adds 5:
      of txid 3: 15, 3, 10                      a new transaction
      of txid 2: opaque 9, 2, 4                 a repeat: computed again from the previous value
                 transactional 10, 2, 4         a repeat: the same already, nothing is written
      of txid 1: refused                        overtaken

After "Transactional Topologies" of Storm's documentation.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.state.store import StateKind
from sequitur.consumer.topology.state.values import shown
from sequitur.errors import StateConflictError, StateOvertakenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.topology.state.store import Key, State, Stored


class RowAge(enum.Enum):
    """How a row relates to the transaction that reads or updates it."""

    ABSENT = enum.auto()
    OLDER = enum.auto()
    SAME = enum.auto()


def age_of(state: State, key: Key, stored: Stored | None, *, txid: int, task: int) -> RowAge:
    if stored is None:
        return RowAge.ABSENT
    if is_others(stored, txid=txid, task=task):
        raise conflict(state, key, stored, task)
    if state.kind is StateKind.NON_TRANSACTIONAL or stored.txid < txid:
        return RowAge.OLDER
    if stored.txid > txid:
        raise overtaken(state, key, stored, txid)
    return RowAge.SAME


def is_others(stored: Stored, *, txid: int, task: int) -> bool:
    """Return whether another task wrote a row in the same transaction."""
    return stored.txid == txid and stored.task != task


def before_update(stored: Stored | None, age: RowAge) -> Any | None:
    """Return the value that a transaction finds. A repeat finds that before its first attempt."""
    if stored is None:
        return None
    return stored.previous if age is RowAge.SAME else stored.value


def check_group(state: State, key: Key, task_of: Callable[[Any], int] | None, *, task: int) -> None:
    """Raise unless a key is the task's. Only a state that says its grouping is checked."""
    if state.grouped_by is None or task_of is None:
        return
    group = state.grouped_by(key)
    owner = task_of(group)
    if owner != task:
        raise StateConflictError(
            f"state {state.name!r}, key {shown(key)}: task {task} writes it, and by grouped_by "
            f"it is grouped as {shown(group)}, which goes to task {owner}: use the fields "
            "that group the component's input as the key of the state"
        )


def overtaken(state: State, key: Key, stored: Stored, txid: int) -> StateOvertakenError:
    """Return the error about a row of a newer transaction."""
    return StateOvertakenError(
        f"state {state.name!r}, key {shown(key)}: transaction {stored.txid} has written it, and "
        f"this is transaction {txid}: end this task, a newer one is at work"
    )


def conflict(state: State, key: Key, stored: Stored, task: int) -> StateConflictError:
    """Return the error about a row that another task wrote in the same transaction."""
    return StateConflictError(
        f"state {state.name!r}, key {shown(key)}: tasks {stored.task} and {task} both update it "
        f"in transaction {stored.txid}: group the component's input by the field that is the key, "
        "and keep its parallelism while a transaction is repeated"
    )
