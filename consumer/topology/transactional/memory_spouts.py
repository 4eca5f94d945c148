"""Transactional spouts of rows in memory, for tests and for trying things out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from sequitur.consumer.topology.transactional.spouts import (
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
)
from sequitur.errors import TopologyBuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
    from sequitur.consumer.topology.transactional.spouts import SpoutCollector

_POSITIONS: Final[dict[str, dict[int, int]]] = {}
"""How far the emitters of a spout are in each partition, by the spout's own key. Coordinator and
emitters are copies of the spout; by this the coordinator sees how far its emitters are, if they run
in its process. It begins with nothing known when a coordinator is made."""


class _Rows:
    """The rows of a spout, and how far they are emitted."""

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


class MemoryTransactionalSpout(PartitionedTransactionalSpout):
    """Emits rows in memory; a batch is the same whenever it is emitted.

    In a new life the coordinator does not know how far the last one came: if all rows are emitted,
    there is one empty batch. If emitters run in other processes than the coordinator, empty batches
    go on for ever.

    Args:
        partitions: Rows by number of their partition; those between without rows are empty.
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
    """Emits rows in memory; a batch may have other rows in its repeat.

    A new life begins as that of `MemoryTransactionalSpout` does.

    Args:
        partitions: Rows by number of their partition; those between without rows are empty.
        fields: Names of a row's values.
        take: The most rows of each partition in a batch.
        limit: Takes a transaction attempt and a partition, and returns the most rows that the
            partition can give in it: 0 for a partition that is away. It is pickled. None for no
            further limit.

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
