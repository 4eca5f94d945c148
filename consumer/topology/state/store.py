"""Whether a database is the one that the transaction before left: pure."""

from __future__ import annotations

import enum
import json
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias, cast

from sequitur.errors import (
    StateConflictError,
    StateError,
    StateOvertakenError,
    StateOwnerError,
    StateValueError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


OTHER_DATABASE: Final = (
    "give the database that it wrote, or begin with a new checkpoint and another topology name"
)


class Found(NamedTuple):
    """What a database says of a writer."""

    epoch: str | None  # of the topology; None if it is not registered
    newest: int | None  # the component's greatest transaction id; None if no task has committed
    # the task's transaction id and attempt id; None if it has not committed
    own: tuple[int, int] | None
    least_attempt: int = 0  # tries with smaller attempt ids are those of lives that were taken over
    batch: str = ""  # names the batch that the task has committed


def check_fence(writer: Writer, found: Found, store: str) -> None:
    """Check that a writer may go on with a database; an unregistered topology is no fault."""
    txid, attempt = writer.transaction
    who = f"component {writer.component!r} of topology {writer.topology!r}"
    check_epoch(writer, found.epoch, store)
    if found.least_attempt > attempt:
        raise taken_over(writer.title, attempt, store)
    if found.newest is None:
        if writer.has_committed:
            raise StateOwnerError(
                f"{store} has no transaction of {who}, and the checkpoint says that it has "
                "committed: the database was lost, or is another one. To continue, "
                f"{OTHER_DATABASE}"
            )
        return
    if found.newest > txid:
        raise went_back(who, found.newest, txid, store)
    if found.newest < txid - 1:
        raise StateOwnerError(
            f"{store} has transaction {found.newest} of {who} as the newest, and this is "
            f"transaction {txid}: the database was restored from a backup. Restore the "
            f"checkpoint of the same time, or {OTHER_DATABASE}"
        )
    # A copy may have been made while the tasks committed one after the other.
    own_txid = 0 if found.own is None else found.own[0]
    if writer.has_task_committed and own_txid < txid - 1:
        raise StateOwnerError(
            f"{store} has transaction {own_txid} of task {writer.task} of {who} as the newest, "
            f"and this is transaction {txid}: the database was restored from a backup. "
            f"Restore the checkpoint of the same time, or {OTHER_DATABASE}"
        )
    if is_other_batch(writer, found):
        raise other_batch(writer, store)
    if found.own is not None and found.own > (txid, attempt):
        raise overtaken_by(writer, found.own, store)


def went_back(who: str, newest: int, txid: int, store: str) -> StateOwnerError:
    """Return the error about a database that is ahead of the checkpoint."""
    return StateOwnerError(
        f"{store} has transaction {newest} of {who}, and this is transaction {txid}: transaction "
        "ids went back. If the checkpoint is an older copy, give the newest one. If this is "
        "an old process, end it"
    )


def check_host(writer: Writer, host: str, store: str) -> None:
    """Check that a task runs where the file of a database is: elsewhere it would find another."""
    if writer.host and host != writer.host:
        raise StateOwnerError(
            f"{writer.title}, runs on host {host!r}, and {store} is a file of host "
            f"{writer.host!r}: have all executors run there, or take PostgreSQL"
        )


def is_other_batch(writer: Writer, found: Found) -> bool:
    """Whether the task has committed the writer's transaction with another batch."""
    is_repeat = found.own is not None and found.own[0] == writer.transaction.transaction_id
    return is_repeat and bool(writer.batch) and writer.batch != found.batch


def other_batch(writer: Writer, store: str) -> StateOwnerError:
    """Return the error about a transaction that was committed with another batch."""
    return StateOwnerError(
        f"{store} has transaction {writer.transaction.transaction_id} of {writer.component!r} in "
        f"topology {writer.topology!r}, task {writer.task}, with another batch than the checkpoint "
        "has prepared: the checkpoint is an older copy. Give the newest one, or restore the "
        "database of the same time"
    )


def check_epoch(writer: Writer, epoch: str | None, store: str) -> None:
    """Check that a topology's rows are those of the writer's checkpoint."""
    if epoch is None:
        if writer.has_committed:
            raise StateOwnerError(
                f"{store} does not know topology {writer.topology!r}, and the checkpoint says "
                f"that {writer.component!r} has committed: the database was lost, or is "
                f"another one. To continue, {OTHER_DATABASE}"
            )
    elif epoch != writer.epoch:
        raise other_epoch(writer.topology, epoch, writer.epoch, store)


def other_epoch(topology: str, epoch: str, own: str, store: str) -> StateOwnerError:
    """Return the error about rows of another checkpoint."""
    return StateOwnerError(
        f"topology {topology!r} in {store} belongs to checkpoint {epoch!r}, and this is "
        f"checkpoint {own!r}: start with that one, or give the topology and its states other "
        "names"
    )


def overtaken_by(writer: Writer, newer: tuple[int, int], store: str) -> StateOvertakenError:
    """Return the error about a newer attempt or transaction."""
    return StateOvertakenError(
        f"{writer.title}: {store} has transaction {newer[0]}, attempt {newer[1]} already: end this "
        "task, a newer one is at work"
    )


def taken_over(who: str, attempt: int, store: str) -> StateOvertakenError:
    """Return the error about a life of the job that another one has taken over."""
    return StateOvertakenError(
        f"{who}: {store} takes nothing of attempt {attempt} any more: a newer process of the job "
        "has taken over. End this one"
    )


def lost_topology(topology: str, store: str) -> StateOwnerError:
    """Return the error about a topology that was registered, and is not any more."""
    return StateOwnerError(
        f"{store} does not know topology {topology!r} any more: the database was changed under "
        f"the job. To continue, {OTHER_DATABASE}"
    )


def refusal(writer: Writer, found: Found, store: str) -> StateOwnerError | StateOvertakenError:
    """Return why a database did not take a commit, whose first statement changed nothing."""
    if found.epoch is None:
        return lost_topology(writer.topology, store)
    if found.epoch != writer.epoch:
        return other_epoch(writer.topology, found.epoch, writer.epoch, store)
    if is_other_batch(writer, found):
        return other_batch(writer, store)
    if found.least_attempt > writer.transaction.attempt_id:
        return taken_over(writer.title, writer.transaction.attempt_id, store)
    if found.own is not None and found.own > tuple(writer.transaction):
        return overtaken_by(writer, found.own, store)
    return StateOvertakenError(
        f"{writer.title}: {store} has transaction {found.newest} of the component already: end "
        "this task, a newer one is at work"
    )


# What a state is: where it stands, what it maps, and by which rule a repeat is told.
#
# After the states of Storm's transactional topologies and of Trident.


KEY_TYPES: Final = (str, int, bytes)
VALUE_TYPES: Final = (int, float, str, bytes, bool, object)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_RESERVED: Final = ("sequitur_", "sqlite_", "pg_")


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
        """Check what was given."""
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


Key: TypeAlias = str | int | bytes

KEY_BYTES_MAX: Final = 2_000
"""A key has to fit a page of PostgreSQL's index: a third of 8 KiB, its own overhead included."""
VALUE_BYTES_MAX: Final = 256 << 20
"""PostgreSQL ends the connection over a statement of 1 GiB, and bytes are written as digits."""
_INT_MAX: Final = (1 << 63) - 1
_SHOWN: Final = 80
_SHORT: Final = 500  # of so many characters it has no more bytes than a key may have


def shown(value: object) -> str:
    """Return a value for a message, cut where it is long."""
    text = repr(value[: _SHOWN + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def fit_key(state: State, key: Any) -> Key:
    """Return a key as the state's table has it."""
    if type(key) is str and state.key is str and len(key) <= _SHORT and _is_plain(key):
        return key  # what most are
    if type(key) is not state.key:
        raise StateValueError(
            f"state {state.name!r} has keys of {state.key.__name__}, and key {shown(key)} is "
            f"{type(key).__name__}: convert it, or declare the state with another key type"
        )
    reason = _misfit(key)
    size = len(key.encode()) if reason is None and isinstance(key, str) else 0
    size = len(key) if isinstance(key, bytes) else size
    if size > KEY_BYTES_MAX:
        reason = f"has {size} bytes, and a key has at most {KEY_BYTES_MAX}: use a hash of it"
    if reason is not None:
        said = f"state {state.name!r}: key {shown(key)} {reason}"
        raise StateValueError(said, (key,), is_key=True)
    return cast("Key", key)


def fit_keys(state: State, keys: Iterable[Any]) -> list[Key]:
    """Return keys as the state's table has them."""
    fitted: list[Key] = []
    refused: list[StateValueError] = []
    for key in keys:
        try:
            fitted.append(fit_key(state, key))
        except StateValueError as error:
            refused.append(error)
    if refused:
        said = refused[0]
        all_keys = tuple(dict.fromkeys(key for one in refused for key in one.keys))
        raise StateValueError(str(said), all_keys, is_key=said.is_key) from said
    return fitted


def fit_value(state: State, key: Key, value: Any) -> Any:
    """Return a value as the state's table gives it back."""
    if type(value) is int and state.value is int and -_INT_MAX <= value <= _INT_MAX:
        return value  # what most are
    reason: str | None
    if value is None:
        reason = "is not a value: give one, or remove the key with multi_remove"
    elif state.value is object:
        return _json_value(state, key, value)
    elif state.value is float and type(value) is int:
        reason = _misfit(value)
        if reason is None and int(float(value)) != value:
            reason = "is not a float without loss: convert it"
        value = float(value) if reason is None else value
    elif type(value) is float and state.value is float:
        reason = _misfit(value)
        value += 0.0  # no negative zero: SQLite has none
    elif type(value) is not state.value:
        reason = (
            f"is {type(value).__name__}, and the state's values are {state.value.__name__}: "
            "convert it, or declare the state with another value type"
        )
    else:
        reason = _misfit(value) or _too_large(value)
    if reason is not None:
        said = f"state {state.name!r}, key {shown(key)}: {shown(value)} {reason}"
        raise StateValueError(said, (key,))
    return value


def is_surely_held(column: Any, *, takes_unicode: bool) -> bool:
    """Whether every database holds what stands for a key or value that fits, as a column has it.

    Numbers, and text and bytes that are short enough for an index that somebody has made.
    """
    if isinstance(column, str):
        return len(column) <= _SHORT and (takes_unicode or column.isascii())
    return not isinstance(column, bytes) or len(column) <= _SHORT


def copy_of(state: State, value: Any) -> Any:
    """Return a value that its holder may change without changing the one that is kept."""
    if state.value is object and isinstance(value, list | dict):
        return json.loads(json.dumps(value))
    return value


def _is_plain(text: str) -> bool:
    return text.isascii() and "\0" not in text


def _misfit(value: object) -> str | None:
    """Return why a value of the right type does not fit its column; None if it does."""
    if isinstance(value, int) and not -_INT_MAX - 1 <= value <= _INT_MAX:
        return "has more than 64 bits: keep it as str, or as object"
    if isinstance(value, float) and math.isnan(value):
        return "is not a number, which no database keeps: leave it out"
    if isinstance(value, str):
        if "\0" in value:
            return "has a NUL, which no text column holds: take it out, or use bytes"
        try:
            value.encode()
        except UnicodeEncodeError:
            return "is not valid Unicode (a lone surrogate): decode it in another way, or use bytes"
    return None


def _too_large(value: object) -> str | None:
    """Return why a value is too large for its column; None if it is not."""
    size = len(value) if isinstance(value, str | bytes) else 0
    if isinstance(value, str) and size > VALUE_BYTES_MAX // 4:
        size = len(value.encode())
    if size <= VALUE_BYTES_MAX:
        return None
    return f"has {size} bytes, and a value has at most {VALUE_BYTES_MAX}: keep parts of it"


def _json_value(state: State, key: Key, value: Any) -> Any:
    try:
        text = json.dumps(value, allow_nan=False)
        again = json.loads(text)
        is_same = bool(again == value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateValueError(
            f"state {state.name!r}, key {shown(key)}: {shown(value)} has no form in JSON "
            f"({error}): make it of dict, list, str, int, float, bool and None",
            (key,),
        ) from error
    if not is_same:
        raise StateValueError(
            f"state {state.name!r}, key {shown(key)}: {shown(value)} comes back from JSON as "
            f"{shown(again)}: use lists for tuples, and str for the keys of dicts",
            (key,),
        )
    reason = _too_large(text)
    if reason is not None:
        said = f"state {state.name!r}, key {shown(key)}: in JSON it {reason}"
        raise StateValueError(said, (key,))
    return again


# What becomes of a row when a transaction updates it: the rules of the three kinds, pure.
#
# ::
#
#     count 10, txid 2, previous 4, and an update that adds 5:
#       of txid 3: 15, 3, 10                      a new transaction
#       of txid 2: opaque 9, 2, 4                 a repeat: computed anew from the previous value
#                  transactional 10, 2, 4         a repeat: the same already, nothing is written
#       of txid 1: refused                        overtaken
#
# After "Transactional Topologies" of Storm's documentation.


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


class RowAge(enum.Enum):
    """How a row stands to the transaction that reads or updates it."""

    ABSENT = enum.auto()
    OLDER = enum.auto()
    SAME = enum.auto()


def age_of(state: State, key: Key, stored: Stored | None, *, txid: int, task: int) -> RowAge:
    """Return how a row stands to a transaction."""
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
    """Whether another task wrote a row in the same transaction."""
    return stored.txid == txid and stored.task != task


def before_update(stored: Stored | None, age: RowAge) -> Any | None:
    """Return the value that a transaction finds: on a repeat the one before its first attempt."""
    if stored is None:
        return None
    return stored.previous if age is RowAge.SAME else stored.value


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


def check_group(state: State, key: Key, task_of: Callable[[Any], int] | None, *, task: int) -> None:
    """Check that a key is a task's, if the state says by what its component is grouped."""
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


# What the engine and a bolt's states ask of a database; no database is named here.


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
        """For messages."""
        txid, attempt = self.transaction
        return (
            f"task {self.task} of {self.component!r} in topology {self.topology!r}, "
            f"transaction {txid}, attempt {attempt}"
        )


class Change(NamedTuple):
    """A key and its value after the batch. None if it was removed."""

    key: Key
    value: Any


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
    """One task's batch at one database. Not for several threads at once."""

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
