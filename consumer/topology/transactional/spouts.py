"""Spouts of transactional topologies, and the stores of their metadata.

A spout has one coordinator, which says when there is a batch, and an emitter for each task. Spouts
are pickled. Coordinator and emitters are made from copies, and acquire by themselves what they
need.

A batch is emitted again from its metadata. That is anything that JSON has a form for, and it comes
back as JSON returns it: a tuple as a list.

After Storm's `ITransactionalSpout`, `IPartitionedTransactionalSpout` and
`IOpaquePartitionedTransactionalSpout`.
"""

from __future__ import annotations

import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol
from urllib.parse import quote, unquote
from uuid import uuid4

from msgspec import Struct

from sequitur.base.json_field import name_twice_in
from sequitur.base.process import make_folder, sync
from sequitur.base.stored import dump, load
from sequitur.errors import (
    EmitError,
    StateFormatError,
    TopologyBuildError,
    TransactionMetadataError,
    TransactionOrderError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt


class DeclaredSpout(ABC):
    """What all spouts of transactional topologies declare.

    Attributes:
        is_opaque: Whether a repeat of a batch may have other tuples. States have to allow for it,
            by keeping the value before along with the value and its transaction id.
        fields: Names of a tuple's values, without the transaction attempt in front of them.
    """

    is_opaque: ClassVar[bool] = False
    fields: Sequence[str]


class TransactionalSpout(DeclaredSpout):
    """Emits the same batch in each attempt of a transaction.

    Only `TransactionTester` runs it today: a job refuses it.
    """

    @abstractmethod
    def coordinator(self, context: TopologyContext) -> TransactionalCoordinator:
        """Return the only coordinator, which lives as long as the topology runs."""

    @abstractmethod
    def emitter(self, context: TopologyContext) -> TransactionalEmitter:
        """Return a task's emitter. `context` has the task's number and how many there are."""


class PartitionedTransactionalSpout(DeclaredSpout):
    """Like `TransactionalSpout`, over partitions whose metadata is kept for it.

    Only `TransactionTester` runs it today: a job refuses it.
    """

    @abstractmethod
    def coordinator(self, context: TopologyContext) -> PartitionCoordinator:
        """Return the only coordinator, which lives as long as the topology runs."""

    @abstractmethod
    def emitter(self, context: TopologyContext) -> PartitionedEmitter:
        """Return the emitter of a task, which is asked for some of the partitions."""


class OpaquePartitionedTransactionalSpout(DeclaredSpout):
    """For sources that cannot always give the same batch again.

    A failed batch and all batches after it are emitted again, from where the batch before it ended.
    No tuple is left out, and none is in two committed batches.

    Only `TransactionTester` runs it today: a job refuses it.
    """

    is_opaque: ClassVar[bool] = True

    @abstractmethod
    def coordinator(self, context: TopologyContext) -> PartitionCoordinator:
        """Return the only coordinator, which lives as long as the topology runs."""

    @abstractmethod
    def emitter(self, context: TopologyContext) -> OpaquePartitionedEmitter:
        """Return the emitter of a task, which is asked for some of the partitions."""


class SpoutPart(ABC):  # noqa: B024 - each part has methods of its own
    """What coordinators and emitters have in common."""

    def close(self) -> None:  # noqa: B027 - most parts acquire nothing
        """Release all resources."""


class TransactionalCoordinator(SpoutPart):
    """Says when there is a batch, and what is in it."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether a new batch may begin. Repeats of failed batches do not ask."""

    @abstractmethod
    def initialize_transaction(self, transaction_id: int, previous_metadata: Any) -> Any:
        """Return the metadata of a new batch, from which emitters can emit the same batch again.

        Called once for a transaction: the metadata is kept until others are committed behind it.

        Args:
            transaction_id: The batch's.
            previous_metadata: Of the batch before; None for the first.
        """


class PartitionCoordinator(SpoutPart):
    """Says when there is a batch, and how many partitions it has."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether a new batch may begin. Repeats of failed batches do not ask."""

    @abstractmethod
    def partitions(self) -> int:
        """Return how many partitions there are. Their numbers begin at 0."""


class TransactionalEmitter(SpoutPart):
    """Emits a task's share of each batch."""

    @abstractmethod
    def emit_batch(
        self, transaction: TransactionAttempt, metadata: Any, collector: SpoutCollector
    ) -> None:
        """Emit this task's share of a batch. The same metadata gives the same tuples.

        Every task is called for every batch, and knows its share by its context.

        Args:
            transaction: The batch's.
            metadata: What the coordinator gave for it.
            collector: Takes the tuples.
        """

    def cleanup_before(self, transaction_id: int) -> None:
        """Forget the batches before this one, which are not emitted again."""


class PartitionedEmitter(SpoutPart):
    """Emits a task's partitions. A repeated batch of a partition is the same."""

    @abstractmethod
    def emit_partition_batch_new(
        self,
        transaction: TransactionAttempt,
        collector: SpoutCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        """Emit a partition's share of a new batch, from where the batch before ended.

        Args:
            transaction: The batch's.
            collector: Takes the tuples.
            partition: The partition.
            last_metadata: What was returned for the partition's batch before; None without one.

        Returns:
            The metadata by which the same tuples can be emitted again.
        """

    @abstractmethod
    def emit_partition_batch(
        self,
        transaction: TransactionAttempt,
        collector: SpoutCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        """Emit a partition's share of a batch again, with the same tuples.

        Args:
            transaction: The batch's.
            collector: Takes the tuples.
            partition: The partition.
            metadata: What `emit_partition_batch_new` returned for it.
        """


class OpaquePartitionedEmitter(SpoutPart):
    """Emits a task's partitions. The repeat of a failed batch may have other tuples."""

    @abstractmethod
    def emit_partition_batch(
        self,
        transaction: TransactionAttempt,
        collector: SpoutCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        """Emit a partition's share of a batch, from where the batch before ended.

        Args:
            transaction: The batch's.
            collector: Takes the tuples.
            partition: The partition.
            last_metadata: What was returned for the partition's batch before, by the emission of it
                that counts; None without one.

        Returns:
            The metadata by which the next batch goes on.
        """


class SpoutCollector:
    """Takes the tuples of one task for one emission of a batch."""

    __slots__ = ("_component", "_fields", "_is_open", "_transaction", "_tuples")

    def __init__(
        self, component: str, fields: tuple[str, ...], transaction: TransactionAttempt
    ) -> None:
        self._component = component
        self._fields = fields
        self._transaction = transaction
        self._tuples: list[tuple[Any, ...]] = []
        self._is_open = True

    def emit(self, values: Any) -> None:
        """Emit a tuple."""
        if not self._is_open:
            raise EmitError(f"{self._who()} when that batch was over: the tuple is in none")
        self._tuples.append((self._transaction, *self._checked(values)))

    def emit_many(self, values: Iterable[Any]) -> None:
        """Emit a tuple for each of some values. See `emit`. If one raises, those before it stay."""
        for one in values:
            self.emit(one)

    def finish(self) -> list[tuple[Any, ...]]:
        """Return the emitted tuples; from now on `emit` raises."""
        self._is_open = False
        return self._tuples

    def _checked(self, values: Any) -> tuple[Any, ...]:
        fields = self._fields
        if isinstance(values, Mapping):
            missing = [name for name in fields if name not in values]
            unknown = [name for name in values if name not in fields]
            if missing or unknown:
                wrong = f"unknown field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
                raise EmitError(f"{self._who()}: {wrong}. {self._declared()}")
            return tuple(values[name] for name in fields)
        if isinstance(values, tuple | list):
            if len(values) != len(fields):
                raise EmitError(f"{self._who()}: {len(values)} values. {self._declared()}")
            return tuple(values)
        if len(fields) == 1:
            return (values,)
        raise EmitError(f"{self._who()}: {values!r}. {self._declared()}")

    def _who(self) -> str:
        number = self._transaction.transaction_id
        return f"spout {self._component!r} emitted for transaction {number}"

    def _declared(self) -> str:
        return f"Its fields are: {', '.join(self._fields)}"


class MemoryTransactionalSpout(PartitionedTransactionalSpout):
    """Emits rows from memory. A repeated batch is the same.

    A new coordinator does not know how far the last one came. If all rows were emitted, it makes
    one empty batch. If emitters run in other processes than the coordinator, empty batches never
    end.

    ::

        spout = MemoryTransactionalSpout(
            {0: [("to be",), ("or not",)], 1: [("to be",)]}, fields=("sentence",), take=1
        )
        builder = TransactionalTopologyBuilder("words", "sentences", spout)

    Args:
        partitions: The rows of each partition, by its number. Missing numbers are empty partitions.
        fields: Names of a row's values.
        take: The most rows of each partition in a batch.

    Raises:
        TopologyBuildError: A partition's number is negative, or `take` is below 1.
    """

    def __init__(
        self,
        partitions: Mapping[int, Sequence[Sequence[Any]]],
        fields: Sequence[str],
        take: int,
    ) -> None:
        self.fields = fields
        self._rows = _Rows(partitions, take)

    def coordinator(self, context: TopologyContext) -> PartitionCoordinator:  # noqa: ARG002
        """See `PartitionedTransactionalSpout.coordinator`."""
        return _Coordinator(self._rows)

    def emitter(self, context: TopologyContext) -> PartitionedEmitter:  # noqa: ARG002
        """See `PartitionedTransactionalSpout.emitter`."""
        return _Emitter(self._rows)


class MemoryOpaqueTransactionalSpout(OpaquePartitionedTransactionalSpout):
    """Emits rows from memory. A repeated batch may have other rows.

    A new life begins as that of `MemoryTransactionalSpout` does.

    Args:
        partitions: The rows of each partition, by its number. Missing numbers are empty partitions.
        fields: Names of a row's values.
        take: The most rows of each partition in a batch.
        limit: Gets a transaction attempt and a partition, and returns the most rows that the
            partition gives in it: 0 for a partition that is away. It is pickled. None: no further
            limit.

    Raises:
        TopologyBuildError: A partition's number is negative, or `take` is below 1.
    """

    def __init__(
        self,
        partitions: Mapping[int, Sequence[Sequence[Any]]],
        fields: Sequence[str],
        take: int,
        limit: Callable[[TransactionAttempt, int], int] | None = None,
    ) -> None:
        self.fields = fields
        self._rows = _Rows(partitions, take)
        self._limit = limit

    def coordinator(self, context: TopologyContext) -> PartitionCoordinator:  # noqa: ARG002
        """See `OpaquePartitionedTransactionalSpout.coordinator`."""
        return _Coordinator(self._rows)

    def emitter(self, context: TopologyContext) -> OpaquePartitionedEmitter:  # noqa: ARG002
        """See `OpaquePartitionedTransactionalSpout.emitter`."""
        return _OpaqueEmitter(self._rows, self._limit)


_POSITIONS: Final[dict[str, dict[int, int]]] = {}
"""How far the emitters of a spout are in each partition, by the spout's own key.

Coordinator and emitters are copies of the spout. By this the coordinator sees how far its emitters
are, if they run in its process. A new coordinator begins with no positions.
"""


class _Rows:
    """The rows of a spout in memory, and how far this process has emitted them."""

    def __init__(self, partitions: Mapping[int, Sequence[Sequence[Any]]], take: int) -> None:
        if any(not isinstance(one, int) or one < 0 for one in partitions):
            raise TopologyBuildError(f"partitions are numbers from 0 on: {list(partitions)}")
        if take < 1:
            raise TopologyBuildError(f"take = {take}: a batch has at least 1 row of a partition")
        self._rows = {number: [tuple(row) for row in rows] for number, rows in partitions.items()}
        self._take = take
        self._key = uuid4().hex

    @property
    def partitions(self) -> int:
        return max(self._rows, default=-1) + 1

    def begin(self) -> None:
        _POSITIONS[self._key] = {}

    def forget(self) -> None:
        _POSITIONS.pop(self._key, None)

    def are_left(self) -> bool:
        positions = _POSITIONS.get(self._key, {})
        return any(positions.get(number, 0) < len(rows) for number, rows in self._rows.items())

    def end_of_batch(self, partition: int, begin: int) -> int:
        return min(begin + self._take, len(self._rows.get(partition, ())))

    def emit(self, collector: SpoutCollector, partition: int, begin: int, end: int) -> None:
        collector.emit_many(self._rows.get(partition, [])[begin:end])
        _POSITIONS.setdefault(self._key, {})[partition] = end


class _Coordinator(PartitionCoordinator):
    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        rows.begin()

    def is_ready(self) -> bool:
        return self._rows.are_left()

    def partitions(self) -> int:
        return self._rows.partitions

    def close(self) -> None:
        self._rows.forget()


class _Emitter(PartitionedEmitter):
    """Its metadata is where a batch begins and ends in the partition."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def emit_partition_batch_new(
        self,
        transaction: TransactionAttempt,
        collector: SpoutCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        begin = 0 if last_metadata is None else last_metadata["end"]
        metadata = {"begin": begin, "end": self._rows.end_of_batch(partition, begin)}
        self.emit_partition_batch(transaction, collector, partition, metadata)
        return metadata

    def emit_partition_batch(
        self,
        transaction: TransactionAttempt,  # noqa: ARG002 - its batches depend on metadata alone
        collector: SpoutCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        self._rows.emit(collector, partition, metadata["begin"], metadata["end"])


class _OpaqueEmitter(OpaquePartitionedEmitter):
    """Its metadata is where a batch ends in the partition."""

    def __init__(self, rows: _Rows, limit: Callable[[TransactionAttempt, int], int] | None) -> None:
        self._rows = rows
        self._limit = limit

    def emit_partition_batch(
        self,
        transaction: TransactionAttempt,
        collector: SpoutCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        begin = 0 if last_metadata is None else last_metadata["end"]
        end = self._rows.end_of_batch(partition, begin)
        if self._limit is not None:
            end = min(end, begin + max(0, self._limit(transaction, partition)))
        self._rows.emit(collector, partition, begin, end)
        return {"end": end}


_SUFFIX: Final = ".json"
_UNFINISHED: Final = ".new"


class _Kept(Struct, frozen=True, tag_field="version", tag=1):
    TITLE: ClassVar = "metadata of a transaction"

    crc32: int
    metadata: Any


class MetadataStore(Protocol):
    """Values, each with a name of parts with `/` between. All parts but the last are folders.

    Only one topology may write to a store: the store cannot tell two apart.
    """

    def names(self, folder: str) -> Sequence[str]:
        """Return the whole names of all values below a folder, in no order."""

    def read(self, name: str) -> Any:
        """Return a value as JSON gives it.

        Raises:
            KeyError: There is none of this name.
            TransactionMetadataError: It is damaged, or of a newer version; the message says where.
        """

    def write(self, name: str, value: Any) -> None:
        """Store a value, in place of an older one. It is durable when this returns.

        Raises:
            TransactionMetadataError: JSON has no form for it.
        """

    def remove(self, name: str) -> None:
        """Remove a value, if it is there. A power cut may bring it back."""


class MemoryMetadataStore:
    """A store that lasts as long as the process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def names(self, folder: str) -> Sequence[str]:
        """See `MetadataStore.names`."""
        return [name for name in self._texts if name.startswith(f"{folder}/")]

    def read(self, name: str) -> Any:
        """See `MetadataStore.read`."""
        return json.loads(self._texts[name])

    def write(self, name: str, value: Any) -> None:
        """See `MetadataStore.write`."""
        self._texts[name] = _as_json(name, value)

    def remove(self, name: str) -> None:
        """See `MetadataStore.remove`."""
        self._texts.pop(name, None)


class FolderMetadataStore:
    """A store with a file for each value: written aside, synced, renamed, with a checksum.

    Args:
        folder: The folder. It is made if it is missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        make_folder(self._folder)

    def names(self, folder: str) -> Sequence[str]:
        """See `MetadataStore.names`."""
        found = (self._folder / _quoted(folder)).rglob(f"*{_SUFFIX}")
        return [
            unquote(path.relative_to(self._folder).as_posix().removesuffix(_SUFFIX))
            for path in found
        ]

    def read(self, name: str) -> Any:
        """See `MetadataStore.read`."""
        path = self._path(name)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None
        return _metadata(path, text)

    def write(self, name: str, value: Any) -> None:
        """See `MetadataStore.write`."""
        text = _as_json(name, value)
        path = self._path(name)
        make_folder(path.parent)
        document = json.dumps(dump(_Kept(_checksum(text), json.loads(text)))) + "\n"
        # Only one topology writes here, so a killed one's unfinished file may be overwritten.
        unfinished = path.with_name(path.name + _UNFINISHED)
        with unfinished.open("wb") as file:
            file.write(document.encode())
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync(path.parent)

    def remove(self, name: str) -> None:
        """See `MetadataStore.remove`."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{_quoted(name)}{_SUFFIX}"


class RotatingTransactionalState:
    """Metadata by transaction, each made from that of the transaction before.

    After Storm's class of this name. It reads the whole store once, when it is made, and must be
    the only writer of its folder from then on.

    Args:
        store: Where it is kept.
        name: The folder in it.
        strictly_ordered: Whether ids begin at 1 and have no gaps. Otherwise they only grow: a
            partition may appear late, or be away for a while.

    Raises:
        TransactionMetadataError: A value in the store cannot be read.
    """

    def __init__(self, store: MetadataStore, name: str, *, strictly_ordered: bool = True) -> None:
        self._store = store
        self._name = name
        self._is_strict = strictly_ordered
        ids = sorted(_transaction_id(found, name) for found in store.names(name))
        self._metadata = {one: store.read(self._key(one)) for one in ids}  # always in order of ids

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self._metadata

    @property
    def transaction_ids(self) -> Sequence[int]:
        """The transactions that have metadata, in order."""
        return tuple(self._metadata)

    @property
    def last(self) -> Any:
        """Metadata of the latest transaction, or None."""
        return next(reversed(self._metadata.values()), None)

    def state(self, transaction_id: int, initialize: Callable[[int, Any], Any]) -> Any:
        """Return the metadata of a transaction, and make it if there is none.

        Args:
            transaction_id: The transaction.
            initialize: Takes its id and the metadata of the transaction before, None without one;
                returns its metadata. What it raises goes through, and nothing is kept.

        Raises:
            TransactionOrderError: There is none, and it is not this transaction's turn.
            TransactionMetadataError: JSON has no form for the metadata.
        """
        if transaction_id not in self._metadata:
            self._check_turn(transaction_id)
            made = initialize(transaction_id, self.last)
            key = self._key(transaction_id)
            self._store.write(key, made)
            self._metadata[transaction_id] = self._store.read(key)
        return self._metadata[transaction_id]

    def cleanup_before(self, transaction_id: int) -> None:
        """Remove the metadata of transactions before one, except what the next one needs.

        So if that one itself has none, the latest before it is kept.
        """
        kept = max((one for one in self._metadata if one <= transaction_id), default=0)
        self._remove([one for one in self._metadata if one < kept])

    def remove_after(self, transaction_id: int) -> None:
        """Remove the metadata of all transactions after one. These are made again."""
        # The latest goes first, so a process that is killed in between leaves no gap.
        self._remove([one for one in reversed(self._metadata) if one > transaction_id])

    def _remove(self, ids: Sequence[int]) -> None:
        for one in ids:
            self._store.remove(self._key(one))
            del self._metadata[one]

    def _check_turn(self, transaction_id: int) -> None:
        latest = next(reversed(self._metadata), 0)
        if transaction_id <= latest:
            raise TransactionOrderError(
                f"{self._name}: transaction {transaction_id} has no metadata, and transaction "
                f"{latest} after it has"
            )
        if self._is_strict and transaction_id != latest + 1:
            raise TransactionOrderError(
                f"{self._name}: transaction {transaction_id} cannot begin: "
                + (f"the latest with metadata is {latest}" if latest else "none has metadata yet")
                + f". Begin transaction {latest + 1} first"
            )

    def _key(self, transaction_id: int) -> str:
        return f"{self._name}/{transaction_id}"


def _metadata(path: Path, text: bytes) -> Any:
    try:
        kept = load(_Kept, json.loads(text))
    except (ValueError, StateFormatError) as error:
        raise TransactionMetadataError(f"{path} cannot be read: {error}") from error
    if _checksum(json.dumps(kept.metadata)) != kept.crc32:
        raise TransactionMetadataError(
            f"{path}: the metadata of a transaction is damaged: its checksum is another one"
        )
    return kept.metadata


def _as_json(name: str, value: Any) -> str:
    """Return a value as JSON, in the form that it keeps when it is read and written again."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TransactionMetadataError(
            f"metadata {name!r}: JSON has no form for it: {error}: {value!r}"
        ) from error
    if (twice := name_twice_in(text)) is not None:
        raise TransactionMetadataError(
            f"metadata {name!r}: two names of it are {twice!r} in JSON, and one of them would be "
            f"lost: {value!r}"
        )
    return json.dumps(json.loads(text))


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def _quoted(name: str) -> str:
    """Return a name as a path that stays in its folder: no part of it is `..` or empty."""
    if "" in name.split("/"):
        raise ValueError(f"{name!r}: a part of this name is empty")
    return quote(name).replace(".", "%2E")


def _transaction_id(key: str, name: str) -> int:
    text = key.removeprefix(f"{name}/")
    if not (text.isascii() and text.isdecimal()) or text != str(int(text)) or text == "0":
        raise TransactionMetadataError(
            f"metadata {key!r}: {text!r} is not a transaction id: give each topology a metadata "
            "store of its own"
        )
    return int(text)
