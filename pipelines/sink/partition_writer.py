"""One output partition of one step, written in one Kafka transaction: what runs in Spark's tasks.

A task takes the partition's transactional id (`<app>.<topic>.<partition>`), which ends the
transaction of its last holder and fences it off: a task that was given up, a speculative
copy, a driver thought dead. Only then does it read the commit token, so what it reads cannot change
behind its back but by its own fencing. Rows and the new token go out in one transaction.

The answer to a commit can be lost. Then the id is taken anew and the token read again: it says what
became of the transaction.

The rows come as Kafka's records, laid out by the JVM (`sink.record_columns`), and are sent as they
are: no row is touched in Python, unless a batch would be too large.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext

from sequitur.consumer import (
    CommitToken,
    CommitTokenError,
    OutputPartition,
    commits_group,
    read_token,
    rows_there,
)
from sequitur.pipelines._errors import TransactionError, TransactionOutcomeError
from sequitur.pipelines.kafka.connections import kept_connections
from sequitur.pipelines.kafka.transaction import Transaction, TransactionNames
from sequitur.pipelines.rows.record_batches import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.pipelines.kafka.connections import Connections
    from sequitur.pipelines.rows.record_batches import KafkaBatch
    from sequitur.producer import KafkaSettings

WRITTEN_SCHEMA: Final = "rows bigint, bytes bigint"


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes the rows of a task to the output partition of the same number; for `mapInArrow`.

    Attributes:
        kafka: How to reach the brokers.
        app: The job's name in Kafka.
        job: Id of the checkpoint.
        topic: The output topic.
        partitions: Its number of partitions.
        step: The step.
        base_ms: What the timestamp deltas of the JVM's records count from.
        batch_rows: Rows of a batch, as the records were numbered.
        transaction_timeout_ms: The brokers give up a transaction that is open for so long.
    """

    kafka: KafkaSettings = field(repr=False)
    app: str
    job: str
    topic: str
    partitions: int
    step: int
    base_ms: int
    batch_rows: int
    transaction_timeout_ms: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches of records and their timestamps; give one row: how many, their bytes."""
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a PartitionWriter runs in a Spark task only")
        rows, size = self.write(context.partitionId(), batches)
        yield pa.RecordBatch.from_pydict({"rows": [rows], "bytes": [size]})

    def write(self, partition: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """Write rows to a partition unless they are there; how many they are, and their bytes.

        Args:
            partition: The partition.
            batches: The rows as `with_records` makes them: records, and their timestamps.

        Raises:
            CommitTokenError: What the partition holds is not known, or is not what the step has.
            TransactionError: The transaction came to nothing, or someone newer fenced us off.
            TransactionOutcomeError: It is not known what became of it.
        """

        def cut_up(limit: int) -> Iterator[KafkaBatch]:
            rows = 0
            for batch in batches:
                if not batch.num_rows:
                    continue
                yield from cut(
                    batch.column(0),
                    batch.column(1).to_numpy(),
                    rows,
                    base_ms=self.base_ms,
                    batch_rows=self.batch_rows,
                    limit=limit,
                )
                rows += batch.num_rows

        return self.send(partition, cut_up)

    def send(
        self, partition: int, batches: Callable[[int], Iterator[KafkaBatch]]
    ) -> tuple[int, int]:
        """Send rows to a partition unless they are there; how many they are, and their bytes.

        Args:
            partition: The partition.
            batches: Gives Kafka's batches, none larger than so many bytes if need not be.

        Raises:
            CommitTokenError: What the partition holds is not known, or is not what the step has.
            TransactionError: The transaction came to nothing, or someone newer fenced us off.
            TransactionOutcomeError: It is not known what became of it.
        """
        connections = kept_connections(self.kafka)
        laid_out = batches(connections.batch_bytes(self.topic))
        first = next(laid_out, None)
        if first is None:
            return 0, 0
        try:
            return _Attempt(self, partition, connections).run(first, laid_out)
        except TransactionError:
            connections.forget_limit(self.topic)
            raise


class _Attempt:
    """One attempt of one task."""

    def __init__(self, writer: PartitionWriter, partition: int, connections: Connections) -> None:
        self._writer = writer
        self._where = OutputPartition(writer.topic, partition)
        self._connections = connections
        self._group = commits_group(writer.app)
        self._run = connections.run

    def run(self, first: KafkaBatch, rest: Iterator[KafkaBatch]) -> tuple[int, int]:
        transaction = self._opened()
        there = self._rows_there()
        if there is not None:
            return self._same(there, first.rows + sum(batch.rows for batch in rest)), 0
        self._run(transaction.begin())
        try:
            rows, size = self._send(transaction, first, rest)
            token = self._token(rows)
            self._run(transaction.commit(token.offset, token.metadata))
        except TransactionOutcomeError:
            # The next holder of the id finishes what was begun: then the token tells.
            self._opened()
            if self._rows_there() is None:
                raise
        except BaseException:
            with contextlib.suppress(TransactionError):
                self._run(transaction.abort())
            raise
        return rows, size

    def _opened(self) -> Transaction:
        writer = self._writer
        names = TransactionNames.of(writer.app, self._where, writer.transaction_timeout_ms)
        connections = self._connections
        transaction = Transaction(connections.wire, connections.coordinators, self._where, names)
        self._run(transaction.open())
        return transaction

    def _rows_there(self) -> int | None:
        asked = self._connections.coordinators.offsets(self._group, [self._where])
        offset, metadata = self._run(asked)[self._where]
        return rows_there(
            self._where,
            read_token(self._where, offset, metadata),
            job=self._writer.job,
            step=self._writer.step,
            partitions=self._writer.partitions,
        )

    def _same(self, there: int, rows: int) -> int:
        if there != rows:
            raise CommitTokenError(
                f"partition {self._where.partition} of {self._where.topic!r} holds {there} rows "
                f"of step {self._writer.step}, and repeated it has {rows}: the runs have changed"
            )
        return there

    def _send(
        self, transaction: Transaction, first: KafkaBatch, rest: Iterator[KafkaBatch]
    ) -> tuple[int, int]:
        rows = size = 0
        for batch in itertools.chain((first,), rest):
            self._run(transaction.send(batch))
            size += len(batch.records)
            rows += batch.rows
        return rows, size

    def _token(self, rows: int) -> CommitToken:
        writer = self._writer
        return CommitToken(
            job=writer.job, step=writer.step, rows=rows, partitions=writer.partitions
        )
