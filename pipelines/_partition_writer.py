"""One output partition of one step, written in one Kafka transaction: what runs in Spark's tasks.

A task takes the partition's transactional id (`<app>.<topic>.<partition>`) by `init_transactions`.
That ends the transaction of whoever had it before and fences him off: a task that was given up, a
speculative copy, a driver thought dead. Only then does it read the commit token, so what it reads
cannot change behind its back but by its own fencing. Rows and the new token go out in one
transaction.

The answer to a commit can be lost. Then the producer is thrown away and the token read again: it
says what became of the transaction.

This module is loaded by Python workers: it imports little, and Kafka's client only for a task that
has rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from consumer import CommitToken

WRITTEN_SCHEMA: Final = "rows bigint"
_TIMEOUT_S: Final = 60.0
_QUEUE_FULL_WAIT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes the rows of a task to the output partition of the same number; for `mapInArrow`.

    Attributes:
        producer_options: librdkafka's, without the transactional id.
        consumer_options: librdkafka's, with the group whose offsets are the tokens.
        app: The job's name in Kafka.
        job: Id of the checkpoint.
        topic: The output topic.
        partitions: Its number of partitions.
        step: The step.
        make_producer: Makes a producer; `confluent_kafka.Producer` by default.
    """

    producer_options: Mapping[str, Any] = field(repr=False)
    consumer_options: Mapping[str, Any] = field(repr=False)
    app: str
    job: str
    topic: str
    partitions: int
    step: int
    make_producer: Callable[[dict[str, Any]], Any] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write batches of columns key, value and headers; give one row: how many they were."""
        import pyarrow as pa  # noqa: PLC0415 - the driver needs none of it
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a PartitionWriter runs in a Spark task only")
        rows = self.write(context.partitionId(), batches)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    def write(self, partition: int, batches: Iterator[pa.RecordBatch]) -> int:
        """Write rows to a partition unless they are there; how many they are.

        Raises:
            CommitTokenError: What the partition holds is not known, or is not what the step has.
            KafkaException: The transaction failed, or someone newer has fenced us off.
        """
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return 0
        return _Transaction(self, partition).run(first, batches)


class _Transaction:
    """One attempt of one task."""

    def __init__(self, writer: PartitionWriter, partition: int) -> None:
        from confluent_kafka import Consumer, Producer  # noqa: PLC0415 - see the module

        from consumer import OutputPartition  # noqa: PLC0415

        self._writer = writer
        self._where = OutputPartition(writer.topic, partition)
        self._make_producer = writer.make_producer or Producer
        self._consumer = Consumer(dict(writer.consumer_options))

    def run(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> int:
        try:
            producer = self._new_producer()
            there = self._rows_there()
            if there is not None:
                return self._same(there, first.num_rows + sum(batch.num_rows for batch in rest))
            producer.begin_transaction()
            rows = self._produce(producer, first)
            for batch in rest:
                rows += self._produce(producer, batch)
            self._commit(producer, rows)
            return rows
        finally:
            self._consumer.close()

    def _new_producer(self) -> Any:
        name = f"{self._writer.app}.{self._where.topic}.{self._where.partition}"
        producer = self._make_producer({**self._writer.producer_options, "transactional.id": name})
        producer.init_transactions(_TIMEOUT_S)
        return producer

    def _rows_there(self) -> int | None:
        from consumer import rows_there  # noqa: PLC0415 - see the module
        from pipelines._committed_tokens import committed_tokens  # noqa: PLC0415

        return rows_there(
            self._where,
            committed_tokens(self._consumer, [self._where])[self._where],
            job=self._writer.job,
            step=self._writer.step,
            partitions=self._writer.partitions,
        )

    def _same(self, there: int, rows: int) -> int:
        from consumer import CommitTokenError  # noqa: PLC0415

        if there != rows:
            raise CommitTokenError(
                f"partition {self._where.partition} of {self._where.topic!r} holds {there} rows "
                f"of step {self._writer.step}, and repeated it has {rows}: the runs have changed"
            )
        return there

    def _produce(self, producer: Any, batch: pa.RecordBatch) -> int:
        keys, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        topic, partition = self._where
        produce = producer.produce
        for number, headers in enumerate(_headers(batch.column(2))):
            while True:
                try:
                    produce(
                        topic,
                        value=values[number],
                        key=keys[number],
                        headers=headers,
                        partition=partition,
                    )
                    break
                except BufferError:
                    producer.poll(_QUEUE_FULL_WAIT_S)
        producer.poll(0)
        return int(batch.num_rows)

    def _commit(self, producer: Any, rows: int) -> None:
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415

        token = self._token(rows)
        offset = TopicPartition(*self._where, token.offset, token.metadata)
        producer.send_offsets_to_transaction(
            [offset], self._consumer.consumer_group_metadata(), _TIMEOUT_S
        )
        try:
            producer.commit_transaction()
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                producer.abort_transaction()
                raise
            # It may have been carried out, or may be yet: a new producer settles that.
            self._new_producer()
            if self._rows_there() is None:
                raise

    def _token(self, rows: int) -> CommitToken:
        from consumer import CommitToken  # noqa: PLC0415

        writer = self._writer
        return CommitToken(
            job=writer.job, step=writer.step, rows=rows, partitions=writer.partitions
        )


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]]]:
    """The headers of each row, as Kafka's client takes them."""
    if not len(column.flatten()):
        return [[]] * len(column)
    return [
        [(header["key"], header["value"]) for header in headers or ()]
        for headers in column.to_pylist()
    ]
