"""Tries at a transaction: their ids, what the tasks of both phases see, and how a try went."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.topology.state.map_state import AllChanges


_LIFE_BITS: Final = 40
"""A life has ids for 2^40 tries, more than it ever makes."""


class TransactionAttempt(NamedTuple):
    """An attempt of a transaction: the first field of each tuple of a transactional topology.

    Attributes:
        transaction_id: Number of the batch: 1, 2, 3 and so on. It is the same in each attempt.
        attempt_id: Distinguishes the attempts of a batch. It grows with each attempt.
    """

    transaction_id: int
    attempt_id: int


def attempts_of_life(life: int) -> int:
    """Return the number that all attempt ids of a life of the job are larger than.

    The ids of a later life are larger than all ids of an earlier one.
    """
    return life << _LIFE_BITS


def life_of_attempt(attempt_id: int) -> int:
    """Return the number of the life that made an attempt id."""
    return attempt_id >> _LIFE_BITS


class Phase(StrEnum):
    PROCESSING = "processing"
    """Bolts process the batch. Committers and their readers get the part of it that is there, so
    that events that fail in them are found. What they emit then is discarded.
    """
    COMMIT = "commit"
    """Committers and their readers get their whole batch, and `finish_batch` is called."""


@dataclass(frozen=True, slots=True)
class Transaction:
    attempt: TransactionAttempt
    phase: Phase = Phase.PROCESSING
    epoch: str = ""  # names the checkpoint of the transaction; databases keep it
    batch: str = ""  # names the committed batch if a repeat commits the same; otherwise empty
    # how many tasks each committer had that has committed the batch before
    committed: Mapping[str, int] = field(default_factory=dict)
    # the host that databases of one host belong to; empty: not checked
    host: str = ""
    # whether its commit phase is a trial: databases roll back all writes
    is_trial: bool = False
    # whether its processing phase runs again, without events that have failed
    is_again: bool = False


class Cause(StrEnum):
    """Why a try at a transaction failed."""

    ASKED = "asked"
    """A bolt raised `FailBatch`."""
    RAISED = "raised"
    """A bolt raised another exception for a tuple of the batch, or in the commit phase."""
    UNAVAILABLE = "unavailable"
    """A database of a state did not answer, or could not take the batch now."""
    REFUSED = "refused"
    """A state, or its database, refuses a key or a value."""
    DIED = "died"
    """The process of a task died."""


class BatchFailure(NamedTuple):
    component: str  # the bolt in which it failed; empty if not known
    cause: Cause
    detail: str  # the traceback, or another description
    # for a refused key or value: the ids of the events with this key, one set for each field of
    # their tuples that has it; empty if not known
    roots: tuple[frozenset[int], ...] = ()
    keys: frozenset[Any] = frozenset()  # the keys that are refused, or whose values are
    is_key: bool = False  # whether the key itself is refused, with every event that has it


@dataclass(slots=True)
class BatchOutcome:
    """How a task's part of a try at a transaction went."""

    failures: list[BatchFailure] = field(default_factory=list)  # why it failed; empty: it did not
    may_have_committed: bool = False  # whether a committer may have written state
    # after a trial: what each committer's task would write, by component and task
    changes: dict[tuple[str, int], AllChanges] = field(default_factory=dict)

    def fail(self, component: str, cause: Cause, detail: str) -> None:
        self.failures.append(BatchFailure(component, cause, detail))
