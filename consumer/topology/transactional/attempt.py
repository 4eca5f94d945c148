"""What names a try at a transaction, and how the tasks of its two phases see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.topology.state.map_state import AllChanges


_LIFE_BITS: Final = 40
"""A life has 2^40 tries, more than it ever makes: it never reaches the numbers of the next."""


class TransactionAttempt(NamedTuple):
    """An attempt of a transaction: the first field of each tuple of a transactional topology.

    Attributes:
        transaction_id: Number of the batch: 1, 2, 3 and so on. It is the same in each attempt.
        attempt_id: Distinguishes the attempts of a batch. It grows with each attempt.
    """

    transaction_id: int
    attempt_id: int


def attempts_of_life(life: int) -> int:
    """Return what the attempt ids of a life of the job begin behind: they are larger.

    Those of a later life are larger than all of an earlier one.
    """
    return life << _LIFE_BITS


def life_of_attempt(attempt_id: int) -> int:
    """Return the number of the life that an attempt id is of."""
    return attempt_id >> _LIFE_BITS


class Phase(StrEnum):
    """What is done of a transaction."""

    PROCESSING = "processing"
    """Bolts are given the batch. Committers, and what reads them, are given what there is for them
    already, so that an event which fails there is known; what they make of it counts for nothing.
    """
    COMMIT = "commit"
    """They are given their whole batch, and its `finish_batch`."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A try at a transaction."""

    attempt: TransactionAttempt
    phase: Phase = Phase.PROCESSING
    epoch: str = ""  # names the checkpoint whose transaction it is, for what databases keep
    batch: str = ""  # names what is committed, where a repeat commits the same; else empty
    # committers that have committed the batch before, and how many tasks they had
    committed: Mapping[str, int] = field(default_factory=dict)
    # where databases are that are of one host; empty where that is not to be checked
    host: str = ""
    # whether its commit phase is a trial: databases take back what is written
    is_trial: bool = False
    # whether its processing phase is run again, without events that have failed
    is_again: bool = False


class Cause(StrEnum):
    """Why a try at a transaction failed."""

    ASKED = "asked"
    """A bolt raised `FailBatch`."""
    RAISED = "raised"
    """A bolt raised something else for what belongs to the batch, or in the commit phase."""
    UNAVAILABLE = "unavailable"
    """A database of a state did not answer, or could not take the batch now."""
    REFUSED = "refused"
    """A state, or its database, refuses a key or a value."""
    DIED = "died"
    """The process of a task died."""


class BatchFailure(NamedTuple):
    """Why a try at a transaction failed."""

    component: str  # the bolt in which it failed; empty where that is not known
    cause: Cause
    detail: str  # the traceback, or what is known
    # of a key or value that is refused, ids of the events with this key, by the field of their
    # tuples that has it; empty where that is not known
    roots: tuple[frozenset[int], ...] = ()
    keys: frozenset[Any] = frozenset()  # the keys that are refused, or whose values are
    is_key: bool = False  # whether the key is refused itself, and with it each event that has it


@dataclass(slots=True)
class BatchOutcome:
    """How a task's part of a try at a transaction went."""

    failures: list[BatchFailure] = field(default_factory=list)  # why it failed; empty if it did not
    may_have_committed: bool = False  # whether a committer may have written state
    # of a trial, what each committer's task would write, by component and task
    changes: dict[tuple[str, int], AllChanges] = field(default_factory=dict)

    def fail(self, component: str, cause: Cause, detail: str) -> None:
        """Add why it failed."""
        self.failures.append(BatchFailure(component, cause, detail))
