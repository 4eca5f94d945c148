"""How each kind of spout emits a batch, and what metadata it keeps for that.

Each kind has a class with the same methods, which `spout_batches` calls in the order of
transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sequitur.consumer.topology.transactional.rotating_state import RotatingTransactionalState
from sequitur.errors import TransactionMetadataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
    from sequitur.consumer.topology.transactional.metadata_store import MetadataStore
    from sequitur.consumer.topology.transactional.spout_collector import SpoutCollector
    from sequitur.consumer.topology.transactional.spouts import (
        OpaquePartitionedEmitter,
        PartitionCoordinator,
        PartitionedEmitter,
        TransactionalCoordinator,
        TransactionalEmitter,
    )

_COORDINATOR = "coordinator"
_PARTITION = "partition"


class BatchSource(Protocol):
    """Emits the batches of a spout."""

    @property
    def latest(self) -> int:
        """The latest transaction that has metadata; 0 for none."""

    def is_ready(self) -> bool:
        """Whether the coordinator is ready for a new batch."""

    def emit(self, transaction: TransactionAttempt, collectors: Sequence[SpoutCollector]) -> None:
        """Emit a batch, or emit it again."""

    def committed(self, transaction_id: int) -> None:
        """Remove what is behind a committed transaction, but what its own repeat would need."""


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
        """See `BatchSource.latest`."""
        return max(self._state.transaction_ids, default=0)

    def is_ready(self) -> bool:
        """See `BatchSource.is_ready`."""
        return self._coordinator.is_ready()

    def emit(self, transaction: TransactionAttempt, collectors: Sequence[SpoutCollector]) -> None:
        """See `BatchSource.emit`."""
        metadata = self._state.state(
            transaction.transaction_id, self._coordinator.initialize_transaction
        )
        for emitter, collector in zip(self._emitters, collectors, strict=True):
            emitter.emit_batch(transaction, metadata, collector)

    def committed(self, transaction_id: int) -> None:
        """See `BatchSource.committed`."""
        self._state.cleanup_before(transaction_id - 1)
        for emitter in self._emitters:
            emitter.cleanup_before(transaction_id)


class PartitionedBatches:
    """Batches of a `PartitionedTransactionalSpout`: how many partitions each has is kept, too."""

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
        """See `BatchSource.latest`."""
        return max(self._state.transaction_ids, default=0)

    def is_ready(self) -> bool:
        """See `BatchSource.is_ready`."""
        return self._coordinator.is_ready()

    def emit(self, transaction: TransactionAttempt, collectors: Sequence[SpoutCollector]) -> None:
        """See `BatchSource.emit`."""
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
        """See `BatchSource.committed`."""
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
        """See `BatchSource.latest`."""
        ids = [one for state in self._partitions.all() for one in state.transaction_ids]
        return max(ids, default=0)

    def is_ready(self) -> bool:
        """See `BatchSource.is_ready`."""
        return self._coordinator.is_ready()

    def emit(self, transaction: TransactionAttempt, collectors: Sequence[SpoutCollector]) -> None:
        """See `BatchSource.emit`.

        What an earlier emission of it and of all behind it has left is removed first: else the
        next batch would go on from there. A partition that is away now keeps its place, in writing:
        a power cut may bring back what was removed, but not what was written over.
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
        """See `BatchSource.committed`."""
        for state in self._partitions.all():
            state.cleanup_before(transaction_id - 1)


class _PartitionStates:
    """The metadata of each partition; those of the store are there from the beginning."""

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
        """Give the metadata of all partitions that ever had some."""
        return iter(self._states.values())


def _partition(name: str) -> int:
    text = name.split("/")[1]
    if not (text.isascii() and text.isdecimal()) or text != str(int(text)):
        raise TransactionMetadataError(f"metadata {name!r}: {text!r} is no number of a partition")
    return int(text)
