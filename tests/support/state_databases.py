"""What tests of states do to a database, whichever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.state.map_state import CommitterStates
from sequitur.consumer.topology.state.store import Writer
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.consumer.topology.state import State
    from sequitur.consumer.topology.state.store import Key

TOPOLOGY = "words"
EPOCH = "e1"
COMPONENT = "sum"


def writer(
    txid: int, attempt: int = 0, *, task: int = 0, epoch: str = EPOCH, topology: str = TOPOLOGY
) -> Writer:
    """Return who writes a transaction of a job that has committed those before."""
    transaction = TransactionAttempt(txid, attempt)
    return Writer(topology, epoch, COMPONENT, task, transaction, has_committed=txid > 1)


def create(*states: State, topology: str = TOPOLOGY, epoch: str = EPOCH) -> None:
    """Make the tables of states of one store."""
    states[0].store.create({COMPONENT: states}, topology, epoch)


def opened(who: Writer, *states: State) -> CommitterStates:
    """Return states by their names, checked."""
    batch = CommitterStates({state.name: state for state in states}, who)
    batch.check()
    return batch


def adding(number: int) -> Callable[[Any, Any], int]:
    return lambda _key, before: (before or 0) + number


def add(who: Writer, state: State, keys: Sequence[Key], number: int = 1) -> list[Any]:
    """Do a whole batch that adds to keys; return the values after."""
    batch = opened(who, state)
    pairs = batch.state(state.name).multi_update(keys, adding(number))
    batch.commit()
    batch.close()
    return [after for _, after in pairs]


def values(state: State, keys: Sequence[Key], *, txid: int) -> list[Any]:
    """Return what a batch of a transaction finds."""
    return opened(writer(txid), state).state(state.name).multi_get(keys)
