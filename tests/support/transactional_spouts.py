"""Transactional spouts whose source changes under them, and a store whose process is killed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.transactional.spouts import (
    MemoryMetadataStore,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    TransactionalCoordinator,
    TransactionalEmitter,
    TransactionalSpout,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
    from sequitur.consumer.topology.transactional.spouts import MetadataStore, SpoutCollector


@dataclass
class Source:
    """A broker: all copies of a spout read it as it is now.

    Attributes:
        partitions: Their rows.
        take: The most that a new batch takes of a partition.
        reachable: How many partitions answer; None for all.
        is_ready: What coordinators say.
        broken: The partition whose next read raises; None for none.
        closed: How many coordinators and emitters were closed.
        cleaned: What emitters were told to forget.
    """

    partitions: list[list[int]] = field(default_factory=list)
    take: int = 3
    reachable: int | None = None
    is_ready: bool = True
    broken: int | None = None
    closed: int = 0
    cleaned: list[int] = field(default_factory=list)

    def count(self) -> int:
        """Return how many partitions answer."""
        there = len(self.partitions)
        return there if self.reachable is None else min(there, self.reachable)

    def read(self, partition: int, begin: int, end: int) -> list[tuple[int, int]]:
        """Return rows of a partition, each with the partition's number in front."""
        if partition == self.broken:
            self.broken = None
            raise ConnectionResetError(f"partition {partition}")
        return [(partition, row) for row in self.partitions[partition][begin:end]]

    def end(self, partition: int, begin: int) -> int:
        """Return where a new batch ends."""
        return min(begin + self.take, len(self.partitions[partition]))


SOURCES: dict[str, Source] = {}
"""By name: spouts are pickled, and their copies find the same source."""


class _Part:
    def __init__(self, name: str) -> None:
        self.source = SOURCES[name]

    def close(self) -> None:
        self.source.closed += 1


class _Coordinator(_Part, PartitionCoordinator):
    def is_ready(self) -> bool:
        return self.source.is_ready

    def partitions(self) -> int:
        return self.source.count()


class _Emitter(_Part, PartitionedEmitter):
    def emit_partition_batch_new(
        self,
        transaction: TransactionAttempt,
        collector: SpoutCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        begin = 0 if last_metadata is None else last_metadata[1]
        metadata = (begin, self.source.end(partition, begin))
        self.emit_partition_batch(transaction, collector, partition, metadata)
        return metadata

    def emit_partition_batch(
        self,
        transaction: TransactionAttempt,  # noqa: ARG002
        collector: SpoutCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        collector.emit_many(self.source.read(partition, *metadata))


class _OpaqueEmitter(_Part, OpaquePartitionedEmitter):
    def emit_partition_batch(
        self,
        transaction: TransactionAttempt,  # noqa: ARG002
        collector: SpoutCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        begin = last_metadata or 0
        end = self.source.end(partition, begin)
        collector.emit_many(self.source.read(partition, begin, end))
        return end


class SourceSpout(PartitionedTransactionalSpout):
    """Reads a source; what it has emitted once for a transaction it emits again."""

    fields = ("partition", "row")

    def __init__(self, name: str) -> None:
        self.name = name

    def coordinator(self, context: TopologyContext) -> PartitionCoordinator:  # noqa: ARG002
        """Return what counts the source's partitions."""
        return _Coordinator(self.name)

    def emitter(self, context: TopologyContext) -> PartitionedEmitter:  # noqa: ARG002
        return _Emitter(self.name)


class OpaqueSourceSpout(OpaquePartitionedTransactionalSpout):
    """Reads a source; a repeat takes what the source gives then."""

    fields = ("partition", "row")

    def __init__(self, name: str) -> None:
        self.name = name

    def coordinator(self, context: TopologyContext) -> PartitionCoordinator:  # noqa: ARG002
        """Return what counts the source's partitions."""
        return _Coordinator(self.name)

    def emitter(self, context: TopologyContext) -> OpaquePartitionedEmitter:  # noqa: ARG002
        return _OpaqueEmitter(self.name)


class _WholeCoordinator(_Part, TransactionalCoordinator):
    def is_ready(self) -> bool:
        return self.source.is_ready

    def initialize_transaction(self, transaction_id: int, previous_metadata: Any) -> Any:
        begin = 0 if previous_metadata is None else previous_metadata["end"]
        return {"id": transaction_id, "begin": begin, "end": self.source.end(0, begin)}


class _WholeEmitter(_Part, TransactionalEmitter):
    def __init__(self, name: str, context: TopologyContext) -> None:
        super().__init__(name)
        self.context = context

    def emit_batch(
        self,
        transaction: TransactionAttempt,
        metadata: Any,
        collector: SpoutCollector,
    ) -> None:
        assert metadata["id"] == transaction.transaction_id
        rows = self.source.read(0, metadata["begin"], metadata["end"])
        collector.emit_many(rows[self.context.task :: self.context.tasks])

    def cleanup_before(self, transaction_id: int) -> None:
        self.source.cleaned.append(transaction_id)


class WholeSpout(TransactionalSpout):
    """Reads partition 0 of a source: each task takes each so manieth row of a batch."""

    fields = ("partition", "row")

    def __init__(self, name: str) -> None:
        self.name = name

    def coordinator(self, context: TopologyContext) -> TransactionalCoordinator:  # noqa: ARG002
        """Return what says where batches end."""
        return _WholeCoordinator(self.name)

    def emitter(self, context: TopologyContext) -> TransactionalEmitter:
        return _WholeEmitter(self.name, context)


class KilledError(Exception):
    """The process is no more."""


class KilledStore(MemoryMetadataStore):
    """A store whose process is killed at a change, and whose power is cut.

    Attributes:
        changes_left: How many changes are made until it is killed; None for all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes_left: int | None = None
        self._removed: dict[str, Any] = {}

    def write(self, name: str, value: Any) -> None:
        self._change()
        super().write(name, value)
        self._removed.pop(name, None)

    def remove(self, name: str) -> None:
        self._change()
        self._removed[name] = self.read(name)
        super().remove(name)

    def cut_power(self, number: int) -> Sequence[str]:
        """Bring back removed values: those whose bits are set in a number; returns their names."""
        names = [name for bit, name in enumerate(sorted(self._removed)) if number >> bit & 1]
        for name in names:
            super().write(name, self._removed.pop(name))
        return names

    def _change(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise KilledError
            self.changes_left -= 1


def committed_through(store: MetadataStore) -> int:
    """Return the last transaction that a driver over this store finds committed; 0 for none."""
    try:
        return int(store.read("committed"))
    except KeyError:
        return 0
