"""Transactional spouts of each kind over a source that changes under them, and their driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from sequitur.consumer.topology import (
    MemoryMetadataStore,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    TransactionalCoordinator,
    TransactionalEmitter,
    TransactionalSpout,
    TransactionAttempt,
)
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology import SpoutCollector, TopologyContext

_sources: Final[WeakValueDictionary[int, Source]] = WeakValueDictionary()


@dataclass(eq=False)
class Source:
    """Partitions of rows. All copies of a spout read it as it is now.

    Row n of partition p is the text of 1000 p + n.

    Attributes:
        rows: How many rows each partition has.
        take: The most that a new batch takes of a partition.
        reachable: How many partitions answer; None for all.
        broken: The partition whose next read raises.
        is_ready: What coordinators say.
        contexts: Of each coordinator and emitter.
        closed: How many coordinators and emitters were closed.
        cleaned: What emitters were told to forget.
    """

    rows: list[int]
    take: int = 50
    reachable: int | None = None
    broken: int | None = None
    is_ready: bool = True
    contexts: list[TopologyContext] = field(default_factory=list)
    closed: int = 0
    cleaned: list[int] = field(default_factory=list)

    def __reduce__(self) -> Any:
        """Stay the same object in this process."""
        _sources[id(self)] = self
        return _source, (id(self),)

    def new_batch(self, partition: int, last: Sequence[int] | None) -> tuple[int, int]:
        begin = 0 if last is None else last[1]
        return begin, min(begin + self.take, self.rows[partition])

    def read(self, partition: int, begin: int, end: int) -> Sequence[Any]:
        if partition == self.broken:
            self.broken = None
            raise ConnectionResetError(f"partition {partition} does not answer")
        return [(str(1000 * partition + number),) for number in range(begin + 1, end + 1)]

    def add_partition(self, rows: int) -> None:
        self.rows.append(rows)


def _source(number: int) -> Source:
    return _sources[number]


class _Part:
    def __init__(self, source: Source, context: TopologyContext) -> None:
        self.source = source
        self.context = context
        source.contexts.append(context)

    def close(self) -> None:
        self.source.closed += 1


class _Coordinator(_Part, PartitionCoordinator, TransactionalCoordinator):
    def is_ready(self) -> bool:
        return bool(self.source.is_ready)

    def partitions(self) -> int:
        there = len(self.source.rows)
        return there if self.source.reachable is None else min(there, self.source.reachable)

    def initialize_transaction(self, transaction_id: int, previous_metadata: Any) -> Any:
        return *self.source.new_batch(0, previous_metadata), transaction_id


class _WholeEmitter(_Part, TransactionalEmitter):
    def emit_batch(
        self, transaction: TransactionAttempt, metadata: Any, collector: SpoutCollector
    ) -> None:
        begin, end, transaction_id = metadata
        assert transaction_id == transaction.transaction_id
        rows = self.source.read(0, begin, end)
        collector.emit_many(rows[self.context.task :: self.context.tasks])

    def cleanup_before(self, transaction_id: int) -> None:
        self.source.cleaned.append(transaction_id)


class _PartitionedEmitter(_Part, PartitionedEmitter):
    def emit_partition_batch_new(
        self,
        transaction: TransactionAttempt,
        collector: SpoutCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        metadata = self.source.new_batch(partition, last_metadata)
        self.emit_partition_batch(transaction, collector, partition, metadata)
        return metadata

    def emit_partition_batch(
        self,
        transaction: TransactionAttempt,  # noqa: ARG002 - its batches depend on metadata alone
        collector: SpoutCollector,
        partition: int,
        metadata: Any,
    ) -> None:
        collector.emit_many(self.source.read(partition, *metadata))


class _OpaqueEmitter(_Part, OpaquePartitionedEmitter):
    def emit_partition_batch(
        self,
        transaction: TransactionAttempt,  # noqa: ARG002 - likewise
        collector: SpoutCollector,
        partition: int,
        last_metadata: Any,
    ) -> Any:
        metadata = self.source.new_batch(partition, last_metadata)
        collector.emit_many(self.source.read(partition, *metadata))
        return metadata


class _Spout:
    fields: Sequence[str] = ("value",)

    def __init__(self, source: Source) -> None:
        self.source = source

    def coordinator(self, context: TopologyContext) -> _Coordinator:
        return _Coordinator(self.source, context)


class WholeSpout(_Spout, TransactionalSpout):
    """Reads partition 0. Each task has its share of each batch."""

    def emitter(self, context: TopologyContext) -> TransactionalEmitter:
        return _WholeEmitter(self.source, context)


class PartitionedSpout(_Spout, PartitionedTransactionalSpout):
    """Emits for a transaction what it has emitted first."""

    def emitter(self, context: TopologyContext) -> PartitionedEmitter:
        return _PartitionedEmitter(self.source, context)


class OpaqueSpout(_Spout, OpaquePartitionedTransactionalSpout):
    """Takes in a repeat what the source gives then."""

    def emitter(self, context: TopologyContext) -> OpaquePartitionedEmitter:
        return _OpaqueEmitter(self.source, context)


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

    def cut_power(self, number: int) -> None:
        """Bring back the removed values whose bits are set in a number."""
        for bit, name in enumerate(sorted(self._removed)):
            if number >> bit & 1:
                super().write(name, self._removed.pop(name))

    def _change(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise KilledError
            self.changes_left -= 1


class Driver:
    """Drives a spout as an engine does. Each method takes the number of a step of a history."""

    def __init__(self, spout: Any, tasks: int = 1) -> None:
        self.spout = spout
        self.store = KilledStore()
        self.attempts = 0
        self.last_committed = 0
        self.restart(tasks)

    def step(self, what: str, number: int) -> Any:
        """Take a step: of its own, or a change of the source."""
        if callable(method := getattr(self, what, None) or getattr(self.spout.source, what)):
            return method(number)
        setattr(self.spout.source, what, number)
        return None

    def restart(self, tasks: int) -> None:
        """Begin another life over the store, with so many tasks."""
        self.batches = SpoutBatches(self.spout, self.store, tasks)

    def emit(self, transaction_id: int) -> list[int]:
        """Emit a batch in another attempt."""
        self.attempts += 1
        return self.emit_again(transaction_id)

    def emit_again(self, transaction_id: int) -> list[int]:
        """Emit a batch in the same attempt, and return its rows in order."""
        attempt = TransactionAttempt(transaction_id, self.attempts)
        tuples = [one for task in self.batches.emit(attempt) for one in task]
        assert {first for first, _ in tuples} <= {attempt}
        return sorted(int(row) for _, row in tuples)

    def commit(self, transaction_id: int) -> None:
        self.batches.committed(transaction_id)
        self.last_committed = transaction_id

    def fail(self, transaction_id: int) -> list[int]:
        """Return what is to be emitted again."""
        return self.batches.failed(transaction_id)
