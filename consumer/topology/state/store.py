"""What the engine and a bolt's states ask of a database; no database is named here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology.state.kinds import Key, State, Stored
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: one task at one attempt of one transaction.

    Attributes:
        topology: The topology's name.
        epoch: Its checkpoint's: another checkpoint has another one.
        component: The committer bolt.
        task: Its task's number.
        transaction: Transaction id and attempt id.
        has_committed: The checkpoint says that this component has committed before.
        has_task_committed: It says that this task has committed the transaction before.
        batch: Names what is committed: a repeat with another name is not this transaction. Empty
            where a repeat may be of another batch.
        host: Where databases are that are of one host; empty where that is not to be checked.
    """

    topology: str
    epoch: str
    component: str
    task: int
    transaction: TransactionAttempt
    has_committed: bool
    has_task_committed: bool = False
    batch: str = ""
    host: str = ""

    @property
    def title(self) -> str:
        """For messages."""
        txid, attempt = self.transaction
        return (
            f"task {self.task} of {self.component!r} in topology {self.topology!r}, "
            f"transaction {txid}, attempt {attempt}"
        )


class Change(NamedTuple):
    """A key and the value it has after the batch; None if it has none any more."""

    key: Key
    value: Any


class StateStore(ABC):
    """A database, described: can be pickled, compared and hashed, and holds no password."""

    __slots__ = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """What messages call it."""

    @property
    def is_of_one_host(self) -> bool:
        """Whether it is a file, which only the tasks of one host can share."""
        return False

    @abstractmethod
    def create(
        self,
        owners: Mapping[str, Sequence[State]],
        topology: str,
        epoch: str,
        least_attempt: int = 0,
    ) -> None:
        """Make the tables that are not there yet and register whose they are; any number of times.

        Args:
            owners: The states of each component, all of this store.
            topology: The topology's name.
            epoch: Its checkpoint's.
            least_attempt: From now on no try with a smaller attempt id commits anything: those are
                of lives of the job that were taken over.

        Raises:
            StateOvertakenError: A newer life of the job has said so.
            StateOwnerError: The topology's rows are another checkpoint's, or a table is that of
                another topology, component, kind or type, or of another schema version.
            StateUnavailableError: The database does not serve just now.
        """

    @abstractmethod
    def give_up(self, topology: str, epoch: str, last: TransactionAttempt) -> bool:
        """Refuse from now on what tries at a transaction up to this one have not committed yet.

        What is being committed is waited for.

        Args:
            topology: The topology's name.
            epoch: Its checkpoint's.
            last: The last try.

        Returns:
            Whether a task has committed the transaction.

        Raises:
            StateOvertakenError: A newer life of the job is at work.
            StateOwnerError: The topology's rows are another checkpoint's, or are gone.
            StateUnavailableError: The database does not serve just now.
        """

    @abstractmethod
    def session(self, writer: Writer) -> StateSession:
        """Return what one task's batch reads and writes by. Connects when it is first used."""


class StateSession(ABC):
    """One task's batch at one database. Not for several threads at once."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_repeat(self) -> bool:
        """Whether `check` has found that the task has committed the transaction before."""

    @abstractmethod
    def check(self) -> None:
        """Check that the database is the one that the transaction before left.

        Raises:
            StateOwnerError: It is not.
            StateOvertakenError: A newer attempt has committed.
            StateUnavailableError: The database does not serve just now.
        """

    @abstractmethod
    def read(self, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:
        """Return the rows of keys; those that have none are left out.

        Raises:
            StateOwnerError: The table is not there.
            StateUnavailableError: The database does not serve just now.
        """

    @abstractmethod
    def try_out(self, changes: Mapping[State, Sequence[Change]]) -> None:
        """Have the database take what it might refuse, and take it back: nothing is written.

        Raises:
            StateValueError: It refuses a key or a value.
            StateError: As `commit` does.
        """

    @abstractmethod
    def commit(self, changes: Mapping[State, Sequence[Change]]) -> None:
        """Write everything in one database transaction, or nothing.

        Args:
            changes: Of each state of the batch, also those without a change.

        Raises:
            StateOwnerError: The topology's rows are another checkpoint's.
            StateOvertakenError: A newer attempt or transaction has committed.
            StateConflictError: Another task wrote one of the keys in this transaction.
            StateUnavailableError: The database does not serve just now; where the answer to the
                commit was lost, everything may be written nevertheless.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds; any number of times."""
