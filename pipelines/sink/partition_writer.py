"""One output partition of one step, written by one task of Spark's.

Exactly once: in one Kafka transaction. A task takes the partition's transactional id
(`<app>.<topic>.<partition>`), which ends the transaction of its last holder and fences it off: a
task that was given up, a speculative copy, a driver thought dead. Only then does it read the commit
token, so what it reads cannot change behind its back but by its own fencing. Rows and the new token
go out in one transaction. The answer to a commit can be lost. Then the id is taken anew and the
token read again: it says what became of the transaction.

At least once: without transaction and token, under a producer id of the attempt's own. So the rows
of an attempt are in order and there once, and those of another attempt are there again.

The rows come as Kafka's batches, laid out by Arrow, and are sent as they are.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
from sequitur.pipelines.kafka.ordered_batches import OrderedBatches
from sequitur.pipelines.kafka.transaction import Transaction, TransactionNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sequitur.pipelines.kafka.connections import Connections
    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.producer import KafkaSettings


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes the rows of a task to an output partition.

    Attributes:
        kafka: How to reach the brokers.
        app: The job's name in Kafka.
        job: Id of the checkpoint, which stands in commit tokens; None without them: then rows are
            written at least once.
        topic: The output topic.
        partitions: Its number of partitions.
        step: The step.
        transaction_timeout_ms: The brokers give up a transaction that is open for so long.
    """

    kafka: KafkaSettings = field(repr=False)
    app: str
    job: str | None
    topic: str
    partitions: int
    step: int
    transaction_timeout_ms: int

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
            where = OutputPartition(self.topic, partition)
            if self.job is None:
                return _sent(where, connections, first, laid_out)
            return _Attempt(self, self.job, where, connections).run(first, laid_out)
        except TransactionError:
            connections.forget_limit(self.topic)
            raise


def _sent(
    where: OutputPartition,
    connections: Connections,
    first: KafkaBatch,
    rest: Iterator[KafkaBatch],
) -> tuple[int, int]:
    """Send rows without a transaction; how many they are, and their bytes."""
    batches = OrderedBatches(connections.wire, connections.coordinators, where)
    connections.run(batches.open())
    connections.run(batches.begin())
    try:
        told = _send(connections, batches, itertools.chain((first,), rest))
        connections.run(batches.settle())
    except BaseException:
        connections.run(batches.give_up())
        raise
    return told


def _send(
    connections: Connections, sender: OrderedBatches, batches: Iterable[KafkaBatch]
) -> tuple[int, int]:
    rows = size = 0
    for batch in batches:
        connections.run(sender.send(batch))
        size += len(batch.records)
        rows += batch.rows
    return rows, size


class _Attempt:
    """One attempt of one task, in a transaction."""

    def __init__(
        self, writer: PartitionWriter, job: str, where: OutputPartition, connections: Connections
    ) -> None:
        self._writer = writer
        self._job = job
        self._where = where
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
            rows, size = _send(self._connections, transaction, itertools.chain((first,), rest))
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
            job=self._job,
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

    def _token(self, rows: int) -> CommitToken:
        writer = self._writer
        return CommitToken(job=self._job, step=writer.step, rows=rows, partitions=writer.partitions)
