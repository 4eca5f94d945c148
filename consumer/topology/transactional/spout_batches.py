"""Drives a transactional spout without an engine: coordinator, emitters, and their metadata."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from sequitur.consumer.topology.api.bolt import TopologyContext
from sequitur.consumer.topology.transactional.spouts import (
    DeclaredSpout,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    RotatingTransactionalState,
    SpoutCollector,
    SpoutPart,
    TransactionalSpout,
)
from sequitur.errors import TransactionMetadataError, TransactionOrderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
    from sequitur.consumer.topology.transactional.spouts import (
        MetadataStore,
        OpaquePartitionedEmitter,
        PartitionCoordinator,
        PartitionedEmitter,
        TransactionalCoordinator,
        TransactionalEmitter,
    )


_COMMITTED: Final = "committed"


class SpoutBatches:
    """The batches of a spout, emitted in the order of their transactions.

    Several may be emitted before the first of them is committed. If one fails, it and all later
    ones are emitted again, in order. A new life over the same store begins with the first
    transaction that is not committed. It may also begin with the last one that is: its driver may
    have been killed before it took note of that commit itself.
    """

    def __init__(
        self,
        spout: DeclaredSpout,
        store: MetadataStore,
        tasks: int,
        *,
        topology: str = "transactional",
        component: str = "spout",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._component = component
        self._tasks = tasks
        self._store = store
        self._fields = tuple(spout.fields)
        self._committed = _read_committed(store)
        self._attempts: dict[int, int] = {}  # each transaction's last attempt in this life
        self._next: int | None = None  # the next to emit; None before the first of this life
        contexts = [
            TopologyContext(
                topology, component, task, tasks, dict(config or {}), {component: tasks}
            )
            for task in range(tasks)
        ]
        with ExitStack() as parts:
            self._source = _source(spout, store, contexts, parts)
            self._parts = parts.pop_all()
        self._latest = max(self._source.latest, self._committed)  # the latest ever begun

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def is_ready(self) -> bool:
        """Whether there is a batch to emit: one again, or a new one if the coordinator is ready."""
        return self._upcoming <= self._latest or self._source.is_ready()

    def emit(self, transaction: TransactionAttempt) -> list[list[tuple[Any, ...]]]:
        """Emit a batch, for the first time or again.

        What a spout raises goes through. The transaction remains the next one to emit.
        """
        transaction_id = transaction.transaction_id
        self._check_turn(transaction)
        self._next = transaction_id
        self._committed = min(self._committed, transaction_id - 1)
        self._latest = max(self._latest, transaction_id)
        collectors = [
            SpoutCollector(self._component, self._fields, transaction) for _ in range(self._tasks)
        ]
        try:
            self._source.emit(transaction, collectors)
        finally:
            tuples = [one.finish() for one in collectors]
        self._attempts[transaction_id] = transaction.attempt_id
        self._next = transaction_id + 1
        return tuples

    def committed(self, transaction_id: int) -> None:
        """Note that a transaction is committed, and remove metadata of older ones.

        Its own metadata is kept: the next transaction begins there. That of the transaction before
        is kept, too: a life that does not know of this commit repeats it. A second call for the
        same transaction does nothing.
        """
        if transaction_id == self._committed:
            return
        if transaction_id != self._committed + 1:
            raise self._out_of_turn(
                transaction_id, f"cannot be committed: {self._committed + 1} is the next to be"
            )
        if transaction_id >= self._upcoming:
            raise self._out_of_turn(transaction_id, "cannot be committed: it must be emitted first")
        self._store.write(_COMMITTED, transaction_id)
        self._committed = transaction_id
        self._attempts.pop(transaction_id, None)
        self._source.committed(transaction_id)

    def failed(self, transaction_id: int) -> list[int]:
        """Note that a transaction failed. It and all later ones are to be emitted again."""
        if transaction_id <= self._committed:
            raise self._out_of_turn(transaction_id, "cannot fail: it is committed")
        if transaction_id > self._latest:
            raise self._out_of_turn(transaction_id, "cannot fail: it was never emitted")
        again = list(range(transaction_id, self._upcoming))
        if again:
            self._next = transaction_id
        return again

    def close(self) -> None:
        """Close coordinator and emitters. Metadata is kept."""
        self._parts.close()

    @property
    def _upcoming(self) -> int:
        return self._committed + 1 if self._next is None else self._next

    def _check_turn(self, transaction: TransactionAttempt) -> None:
        transaction_id, attempt_id = transaction
        upcoming = self._upcoming
        is_first_repeat = self._next is None and transaction_id == self._committed > 0
        if transaction_id != upcoming and not is_first_repeat:
            raise self._out_of_turn(transaction_id, f"cannot be emitted: {upcoming} is next")
        if self._attempts.get(transaction_id) == attempt_id:
            raise self._out_of_turn(
                transaction_id, f"cannot be emitted: attempt {attempt_id} of it was emitted before"
            )

    def _out_of_turn(self, transaction_id: int, what: str) -> TransactionOrderError:
        return TransactionOrderError(
            f"spout {self._component!r}: transaction {transaction_id} {what}"
        )


_COORDINATOR = "coordinator"
_PARTITION = "partition"


class BatchSource(Protocol):
    """Emits the batches of one kind of spout, and keeps the metadata that it needs for that.

    `SpoutBatches` calls it in the order of transactions.
    """

    @property
    def latest(self) -> int:
        """The latest transaction that has metadata; 0 for none."""

    def is_ready(self) -> bool:
        """Whether the coordinator is ready for a new batch."""

    def emit(self, transaction: TransactionAttempt, collectors: Sequence[SpoutCollector]) -> None:
        """Emit a batch, for the first time or again."""

    def committed(self, transaction_id: int) -> None:
        """Remove metadata before a committed transaction, except what its own repeat needs."""


class WholeBatches:
    """Batches of a `TransactionalSpout`."""

    def __init__(
        self,
        coordinator: TransactionalCoordinator,
        emitters: Sequence[TransactionalEmitter],
        store: MetadataStore,
    ) -> None:
        self._coordinator = coordinator
        self._emitters = emitters
        self._state = RotatingTransactionalState(store, _COORDINATOR)

    @property
    def latest(self) -> int:
        return max(self._state.transaction_ids, default=0)

    def is_ready(self) -> bool:
        return self._coordinator.is_ready()

    def emit(self, transaction: TransactionAttempt, collectors: Sequence[SpoutCollector]) -> None:
        metadata = self._state.state(
            transaction.transaction_id, self._coordinator.initialize_transaction
        )
        for emitter, collector in zip(self._emitters, collectors, strict=True):
            emitter.emit_batch(transaction, metadata, collector)

    def committed(self, transaction_id: int) -> None:
        self._state.cleanup_before(transaction_id - 1)
        for emitter in self._emitters:
            emitter.cleanup_before(transaction_id)


class PartitionedBatches:
    """Batches of a `PartitionedTransactionalSpout`. It keeps how many partitions each has, too."""

    def __init__(
        self,
        coordinator: PartitionCoordinator,
        emitters: Sequence[PartitionedEmitter],
        store: MetadataStore,
    ) -> None:
        self._coordinator = coordinator
        self._emitters = emitters
        self._state = RotatingTransactionalState(store, _COORDINATOR)
        self._partitions = _PartitionStates(store)

    @property
    def latest(self) -> int:
        return max(self._state.transaction_ids, default=0)

    def is_ready(self) -> bool:
        return self._coordinator.is_ready()

    def emit(self, transaction: TransactionAttempt, collectors: Sequence[SpoutCollector]) -> None:
        transaction_id = transaction.transaction_id
        partitions = self._state.state(transaction_id, lambda *_: self._coordinator.partitions())
        for partition in range(partitions):
            task = partition % len(self._emitters)
            self._emit_partition(transaction, self._emitters[task], collectors[task], partition)

    def _emit_partition(
        self,
        transaction: TransactionAttempt,
        emitter: PartitionedEmitter,
        collector: SpoutCollector,
        partition: int,
    ) -> None:
        state = self._partitions.of(partition)
        transaction_id = transaction.transaction_id
        if transaction_id in state:
            metadata = state.state(transaction_id, lambda *_: None)
            emitter.emit_partition_batch(transaction, collector, partition, metadata)
            return

        def emit_new(_: int, last_metadata: Any) -> Any:
            return emitter.emit_partition_batch_new(
                transaction, collector, partition, last_metadata
            )

        state.state(transaction_id, emit_new)

    def committed(self, transaction_id: int) -> None:
        self._state.cleanup_before(transaction_id - 1)
        for state in self._partitions.all():
            state.cleanup_before(transaction_id - 1)


class OpaqueBatches:
    """Batches of an `OpaquePartitionedTransactionalSpout`: a repeat is a new batch."""

    def __init__(
        self,
        coordinator: PartitionCoordinator,
        emitters: Sequence[OpaquePartitionedEmitter],
        store: MetadataStore,
    ) -> None:
        self._coordinator = coordinator
        self._emitters = emitters
        self._partitions = _PartitionStates(store)

    @property
    def latest(self) -> int:
        ids = [one for state in self._partitions.all() for one in state.transaction_ids]
        return max(ids, default=0)

    def is_ready(self) -> bool:
        return self._coordinator.is_ready()

    def emit(self, transaction: TransactionAttempt, collectors: Sequence[SpoutCollector]) -> None:
        """See `BatchSource.emit`.

        First it removes what an earlier emission of this batch and of later ones left: otherwise
        the next batch would begin there. A partition that is away now keeps its place. Its place
        is written again: a power cut may bring back what was removed, but not what was written
        over.
        """
        transaction_id = transaction.transaction_id
        for state in self._partitions.all():
            state.remove_after(transaction_id - 1)
        for partition in range(self._coordinator.partitions()):
            task = partition % len(self._emitters)
            self._emit_partition(transaction, self._emitters[task], collectors[task], partition)
        for state in self._partitions.all():
            state.state(transaction_id, lambda _, last_metadata: last_metadata)

    def _emit_partition(
        self,
        transaction: TransactionAttempt,
        emitter: OpaquePartitionedEmitter,
        collector: SpoutCollector,
        partition: int,
    ) -> None:
        def emit(_: int, last_metadata: Any) -> Any:
            return emitter.emit_partition_batch(transaction, collector, partition, last_metadata)

        self._partitions.of(partition).state(transaction.transaction_id, emit)

    def committed(self, transaction_id: int) -> None:
        for state in self._partitions.all():
            state.cleanup_before(transaction_id - 1)


class _PartitionStates:
    """The metadata of each partition. It begins with the partitions in the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._states: dict[int, RotatingTransactionalState] = {}
        for partition in sorted({_partition(name) for name in store.names(_PARTITION)}):
            self.of(partition)

    def of(self, partition: int) -> RotatingTransactionalState:
        """Return the metadata of a partition, which may be a new one."""
        if partition not in self._states:
            self._states[partition] = RotatingTransactionalState(
                self._store, f"{_PARTITION}/{partition}", strictly_ordered=False
            )
        return self._states[partition]

    def all(self) -> Iterator[RotatingTransactionalState]:
        """Return the metadata of all partitions that ever had some."""
        return iter(self._states.values())


def _partition(name: str) -> int:
    text = name.split("/")[1]
    if not (text.isascii() and text.isdecimal()) or text != str(int(text)):
        raise TransactionMetadataError(f"metadata {name!r}: {text!r} is no number of a partition")
    return int(text)


_SOURCES: Final[
    Sequence[tuple[type[DeclaredSpout], Callable[[Any, Any, MetadataStore], BatchSource]]]
] = (
    (TransactionalSpout, WholeBatches),
    (PartitionedTransactionalSpout, PartitionedBatches),
    (OpaquePartitionedTransactionalSpout, OpaqueBatches),
)
_PartT = TypeVar("_PartT", bound=SpoutPart)


def _source(
    spout: DeclaredSpout,
    store: MetadataStore,
    contexts: Sequence[TopologyContext],
    parts: ExitStack,
) -> BatchSource:
    """Make coordinator and emitters, each from a copy of the spout."""
    kind = next(made for of, made in _SOURCES if isinstance(spout, of))
    pickled = pickle.dumps(spout)

    def closed(part: _PartT) -> _PartT:
        parts.callback(part.close)
        return part

    def copied() -> Any:
        return pickle.loads(pickled)  # noqa: S301 - what was just made

    coordinator = closed(copied().coordinator(contexts[0]))
    emitters = [closed(copied().emitter(context)) for context in contexts]
    return kind(coordinator, emitters, store)


def _read_committed(store: MetadataStore) -> int:
    try:
        committed = store.read(_COMMITTED)
    except KeyError:
        return 0
    if not isinstance(committed, int) or committed < 1:
        raise TransactionMetadataError(
            f"metadata {_COMMITTED!r}: {committed!r} is not a transaction id: give each topology a "
            "metadata store of its own"
        )
    return committed
