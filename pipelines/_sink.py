"""Rows into a topic, in order: exactly once by transactions, or at least once by Spark's sink."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from consumer import Delivery
from pipelines._commit_tokens import CommitTokens
from pipelines._errors import SinkError
from pipelines._partition_writer import WRITTEN_SCHEMA, PartitionWriter
from pipelines._record_columns import with_records
from pipelines._rows import output_partition
from pipelines._selection import Selection, SideSelection
from pipelines._tasks import all_of, reason_of
from producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from consumer import ReorderSettings
    from pipelines._checkpoint import Checkpoint
    from producer import KafkaSettings

Rows: TypeAlias = DataFrame | Selection | SideSelection
"""Rows to be written: as Spark has them, or as tasks will find them in files, in their order."""

_BATCH_BYTES: Final = 256 << 10
_FIRST_BATCH_ROWS: Final = 1 << 11
_MOST_BATCH_ROWS: Final = 1 << 13
_ARROW_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OPTIONS: Final = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",  # keeps the order of a partition through retries
    "kafka.linger.ms": "5",
    "kafka.batch.size": str(_BATCH_BYTES),
    "kafka.compression.type": "lz4",
}


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """A topic to write to, and its number of partitions."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Outputs:
    """Topics that a job writes to."""

    released: OutputTopic
    late: OutputTopic
    quarantine: OutputTopic


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Rows for a topic.

    Attributes:
        rows: The rows.
        topic: The topic.
        order: What rows of Spark's are sorted by; others have an order of their own.
    """

    rows: Rows
    topic: OutputTopic
    order: Sequence[str] = ()


class TopicSink:
    """Writes rows to topics.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        checkpoint: The job's folder, claimed already.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        checkpoint: Checkpoint,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._settings = settings
        self._batch_rows = _FIRST_BATCH_ROWS
        self._numbers = itertools.count()
        self._tokens = (
            CommitTokens(kafka, app=settings.app_name, documents=checkpoint)
            if settings.delivery is Delivery.EXACTLY_ONCE
            else None
        )

    def open(self, topics: Iterable[OutputTopic], *, newest: int, done: int) -> None:
        """To be called once, before anything is written: check what the topics hold of this job.

        Args:
            topics: All topics that will be written to.
            newest: The newest step that was begun; -1 before the first.
            done: The newest step that is done.

        Raises:
            CommitTokenError: It is not known what a topic holds, or it is not ours.
            TopicError: The brokers do not answer.
        """
        if self._tokens is not None:
            partitions = {topic.name: topic.partitions for topic in topics}
            self._tokens.open(partitions, newest=newest, done=done)

    def write(self, outgoing: Sequence[Outgoing], step: int) -> list[int]:
        """Write a step's rows, each partition of a topic in order; how many each topic has.

        One task writes one partition through one idempotent producer, so what it writes stays in
        its order. Returns once the brokers have acknowledged all of it. A step writes to a topic
        once: repeated, what is there already is left out, and counted.

        Args:
            outgoing: What goes to each topic.
            step: The step.

        Raises:
            SinkError: Some of the rows are not there; what is, is known by the commit tokens.
        """
        sends = [
            _Send(place, self._writer(out.topic, step), out.rows, partition)
            for place, out in enumerate(outgoing)
            if not isinstance(out.rows, DataFrame)
            for partition in range(out.topic.partitions)
        ]
        counts = [0] * len(outgoing)
        for place, out in enumerate(outgoing):
            if isinstance(out.rows, DataFrame):
                counts[place] = self._plan(out.rows, out.topic, out.order, step)
        if sends:
            with _sink_errors(outgoing, step):
                for send, rows in zip(sends, all_of(self._spark, sends), strict=True):
                    counts[send.place] += rows
        return counts

    def _plan(self, rows: DataFrame, topic: OutputTopic, order: Sequence[str], step: int) -> int:
        """Have Spark bring rows to their partitions, sort them and write them."""
        sorted_rows = (
            rows.withColumn("to", output_partition(self._spark, topic.partitions))
            .repartitionById(topic.partitions, "to")
            .sortWithinPartitions(*order)
        )
        if self._tokens is None:
            return self._at_least_once(sorted_rows, topic)
        return self._exactly_once(sorted_rows, topic, step)

    def step_is_done(self, step: int) -> None:
        """To be told of each step, after its rows are out and its done mark is written."""
        if self._tokens is not None:
            self._tokens.step_is_done(step)

    def _at_least_once(self, rows: DataFrame, topic: OutputTopic) -> int:
        observed = Observation(f"{topic.name}-{next(self._numbers)}")
        (
            rows.select("key", "value", "headers", F.col("to").alias("partition"))
            .observe(observed, F.count(F.lit(1)).alias("rows"))
            .write.format("kafka")
            .mode("append")
            .options(**{f"kafka.{key}": value for key, value in self._kafka.java().items()})
            .options(**_OPTIONS)
            .option("topic", topic.name)
            .save()
        )
        return int(observed.get["rows"])

    def _exactly_once(self, rows: DataFrame, topic: OutputTopic, step: int) -> int:
        writer = self._writer(topic, step)
        # One batch of Arrow is one of Kafka: Python sends it as it is.
        self._spark.conf.set(_ARROW_BATCH, writer.batch_rows)
        records = with_records(rows.select("key", "value", "headers"), writer.batch_rows)
        with _sink_errors([Outgoing(rows, topic)], step):
            counts = records.mapInArrow(writer, WRITTEN_SCHEMA).collect()
        count, size = (sum(int(row[name]) for row in counts) for name in ("rows", "bytes"))
        if size:
            self._batch_rows = _batch_rows(size / count)
        return count

    def _writer(self, topic: OutputTopic, step: int) -> PartitionWriter:
        if self._tokens is None:
            raise RuntimeError("rows are sent by partition with delivery = exactly-once only")
        return PartitionWriter(
            kafka=self._kafka,
            app=self._settings.app_name,
            job=self._tokens.job,
            topic=topic.name,
            partitions=topic.partitions,
            step=step,
            batch_rows=self._batch_rows,
            transaction_timeout_ms=milliseconds(self._settings.transaction_timeout),
        )


@dataclass(frozen=True, slots=True)
class _Send:
    """Sends selected rows of files to an output partition, in a task.

    Attributes:
        place: Which of the step's topics it is.
        writer: Writes to it.
        rows: The rows.
        partition: The partition.
    """

    place: int
    writer: PartitionWriter
    rows: Selection | SideSelection
    partition: int

    def __call__(self) -> int:
        """Send them; how many they are."""
        rows, _size = self.writer.send(
            self.partition,
            lambda limit: self.rows.batches(self.partition, min(limit, _BATCH_BYTES)),
        )
        return rows


@contextlib.contextmanager
def _sink_errors(outgoing: Sequence[Outgoing], step: int) -> Iterator[None]:
    """What a task died of, as an error that says what was to be written."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        names = ", ".join(repr(out.topic.name) for out in outgoing)
        raise SinkError(f"step {step} cannot be written to {names}: {reason_of(error)}") from error


def _batch_rows(row_bytes: float) -> int:
    """The largest power of two of rows that makes a batch of the size wanted."""
    wanted = max(1, int(_BATCH_BYTES / row_bytes))
    return min(_MOST_BATCH_ROWS, 1 << (wanted.bit_length() - 1))
