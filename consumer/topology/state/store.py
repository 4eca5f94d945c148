"""States, the databases that keep them, and what the engine asks of a database.

The three kinds of state are those of Storm's transactional topologies and of Trident. No database
is named here: `sequitur.consumer.topology.state.sql` has SQLite and PostgreSQL.
"""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

from sequitur.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


KEY_TYPES: Final = (str, int, bytes)
VALUE_TYPES: Final = (int, float, str, bytes, bool, object)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_RESERVED: Final = ("sequitur_", "sqlite_", "pg_")
Key: TypeAlias = str | int | bytes


class StateKind(enum.StrEnum):
    """How a state recognises a repeated transaction."""

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non-transactional"


@dataclass(frozen=True, slots=True)
class State:
    """A keyed state: one table of a database. Use one of the three kinds.

    Args:
        store: The database.
        name: A plain identifier in lower case, unique in the database: the table's name.
        key: `str`, `int` or `bytes`.
        value: `int`, `float`, `str`, `bytes`, `bool`, or `object` for all JSON values.
        grouped_by: Returns, for a key, the value of the field by which the component's input is
            grouped, or a tuple of several values. Each write is checked with it: a task may only
            write its own keys.

    Raises:
        StateError: The name is not a plain identifier, or a type is not one of these.
    """

    kind: ClassVar[StateKind]

    store: StateStore
    name: str
    key: type = str
    value: type = int
    grouped_by: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not hasattr(type(self), "kind"):
            raise StateError(
                f"state {self.name!r} has no kind: use TransactionalState, OpaqueState or "
                "NonTransactionalState"
            )
        is_plain = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        if not is_plain or self.name.startswith(_RESERVED):
            raise StateError(
                f"{self.name!r} is not a name for a state: use up to 63 lower-case letters, "
                "digits and underscores, a letter first, and none of the prefixes "
                f"{', '.join(_RESERVED)}"
            )
        for said, given, known in (
            ("key", self.key, KEY_TYPES),
            ("value", self.value, VALUE_TYPES),
        ):
            if given not in known:
                names = ", ".join(one.__name__ for one in known)
                raise StateError(
                    f"state {self.name!r} has {said}={getattr(given, '__name__', given)!s}: "
                    f"take one of {names}"
                )


@dataclass(frozen=True, slots=True)
class TransactionalState(State):
    """For batches that are the same at each attempt: a repeat changes nothing."""

    kind: ClassVar[StateKind] = StateKind.TRANSACTIONAL


@dataclass(frozen=True, slots=True)
class OpaqueState(State):
    """For batches that may differ at each attempt: a repeat begins from the previous value."""

    kind: ClassVar[StateKind] = StateKind.OPAQUE


@dataclass(frozen=True, slots=True)
class NonTransactionalState(State):
    """Every attempt is applied: a repeat counts twice."""

    kind: ClassVar[StateKind] = StateKind.NON_TRANSACTIONAL


class StateStore(ABC):
    """A description of a database, without its password. It can be pickled and compared."""

    __slots__ = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name in messages."""

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
        """Create missing tables and register their owners. It may be called repeatedly.

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
        """Refuse later commits by attempts of transactions up to this one.

        What is being committed is waited for. If a task has committed, nothing is written: the
        transaction goes on.

        Args:
            topology: The topology's name.
            epoch: Its checkpoint's.
            last: The last try.

        Returns:
            Whether a task has committed the transaction.

        Raises:
            StateOvertakenError: A newer life of the job is at work.
            StateOwnerError: The topology's rows are another checkpoint's or of a later transaction,
                or are gone.
            StateUnavailableError: The database does not serve just now.
        """

    @abstractmethod
    def session(self, writer: Writer) -> StateSession:
        """Return the session of one task's batch. It connects when it is first used."""


class StateSession(ABC):
    """One task's batch at one database. It is not for several threads at once."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_repeat(self) -> bool:
        """Whether `check` found that the task had committed the transaction before."""

    @abstractmethod
    def check(self) -> None:
        """Check that the database is as the transaction before left it.

        Raises:
            StateOwnerError: It is not.
            StateOvertakenError: A newer attempt has committed.
            StateUnavailableError: The database does not serve just now.
        """

    @abstractmethod
    def read(self, state: State, keys: Sequence[Key]) -> dict[Key, Stored]:
        """Return the rows of keys. Keys without a row are left out.

        Raises:
            StateOwnerError: The table is not there.
            StateUnavailableError: The database does not serve just now.
        """

    @abstractmethod
    def try_out(self, changes: Mapping[State, Sequence[Change]]) -> None:
        """Write to the database and roll back, so that it can refuse changes.

        Raises:
            StateValueError: It refuses a key or a value.
            StateError: As `commit` does.
        """

    @abstractmethod
    def commit(self, changes: Mapping[State, Sequence[Change]]) -> None:
        """Write all changes in one database transaction, or none.

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
        """Release its connection. It may be called repeatedly."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: one task at one attempt of one transaction.

    Attributes:
        topology: The topology's name.
        epoch: The epoch of its checkpoint. Each checkpoint has another one.
        component: The committer bolt.
        task: Its task's number.
        transaction: Transaction id and attempt id.
        has_committed: Whether this component has committed before, by the checkpoint.
        has_task_committed: Whether this task has committed the transaction before, by the
            checkpoint.
        batch: Name of the committed batch. A repeat with another name is not this transaction.
            Empty if a repeat may have another batch.
        host: The host of databases that belong to one host. Empty: not checked.
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
        """Its name in messages."""
        txid, attempt = self.transaction
        return (
            f"task {self.task} of {self.component!r} in topology {self.topology!r}, "
            f"transaction {txid}, attempt {attempt}"
        )


class Change(NamedTuple):
    """A key and its value after the batch; None for a removed key."""

    key: Key
    value: Any


class Stored(NamedTuple):
    """The content of a row.

    Attributes:
        value: The newest value.
        previous: The value before transaction `txid`, or None.
        txid: The transaction that wrote it last.
        task: The component's task that wrote it.
    """

    value: Any
    previous: Any
    txid: int
    task: int
