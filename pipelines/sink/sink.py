"""Rows into topics, in order: exactly once by transactions, or at least once without."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from sequitur.consumer import Delivery, OutputTimestamp, TimestampRule
from sequitur.pipelines._errors import SinkError, SinkUnansweredError
from sequitur.pipelines.kafka.commit_tokens import CommitTokens
from sequitur.pipelines.kafka.topics import TopicTimestamps
from sequitur.pipelines.sink.partition_writer import PartitionWriter
from sequitur.pipelines.spark.partition_blocks import blocks_of
from sequitur.pipelines.spark.tasks import all_of, parallelism, reason_of
from sequitur.producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from sequitur.consumer import ReorderSettings
    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.producer import KafkaSettings

_ANY_TIMESTAMPS: Final = TopicTimestamps(are_kept=True, oldest_ms=None)
_UNANSWERED: Final = re.compile(
    "(TransactionUnanswered|TransactionOutcome|Retriable|BrokerUnreachable)Error: "
)
"""What a task raises for brokers that do not answer."""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """A topic to write to.

    Attributes:
        name: Its name.
        partitions: Its number of partitions.
        timestamps: What it does with the timestamps of records.
    """

    name: str
    partitions: int
    timestamps: TopicTimestamps = _ANY_TIMESTAMPS


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
        rows: The rows, as tasks will find them in files, in their order.
        topic: The topic.
        timestamps: What the records' timestamps are taken from.
        tells_event_time: Whether a record whose timestamp is not its event time carries it in a
            header.
    """

    rows: Selection
    topic: OutputTopic
    timestamps: OutputTimestamp = OutputTimestamp.NOW
    tells_event_time: bool = True


class TopicSink:
    """Writes rows to topics."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        checkpoint: Checkpoint,
        outages: Outages,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._settings = settings
        self._outages = outages
        self._tokens = (
            CommitTokens(
                kafka,
                app=settings.app_name,
                documents=checkpoint,
                outages=outages,
                transaction_timeout_ms=milliseconds(settings.transaction_timeout),
            )
            if settings.delivery is Delivery.EXACTLY_ONCE
            else None
        )

    def open(
        self,
        topics: Iterable[OutputTopic],
        *,
        newest: int,
        done: int,
        written: Collection[str] | None = None,
    ) -> None:
        """Check what the topics hold of this job; to be called once, before anything is written.

        Args:
            topics: All topics that will be written to.
            newest: The newest step that was begun; -1 before the first.
            done: The newest step that is done.
            written: The topics that the newest writes to, if it is not done; None for all.

        Raises:
            CommitTokenError: It is not known what a topic holds, or it is not ours.
            TopicError: The brokers do not answer.
        """
        if self._tokens is not None:
            partitions = {topic.name: topic.partitions for topic in topics}
            self._tokens.open(partitions, newest=newest, done=done, written=written)

    def write(
        self, outgoing: Sequence[Outgoing], step: int, now_ms: int, clock_ms: int
    ) -> list[int]:
        """Write a step's rows, each partition of a topic in order; how many each topic has.

        One task writes a partition through one idempotent producer, so what it writes stays in
        its order; where there are many partitions, it writes some of them one after the other.
        Returns once the brokers have acknowledged all of it. A step writes to a topic once:
        repeated, what is there already is left out, and counted, if delivery is exactly-once.

        Args:
            outgoing: What goes to each topic.
            step: The step.
            now_ms: What the step takes for now (`now_of_step`): no record gets a newer timestamp.
            clock_ms: What the machine's clock says.

        Raises:
            SinkError: Some of the rows are not there; what is, is known by the commit tokens.
        """
        rules = [self._rule(out, now_ms, clock_ms) for out in outgoing]
        cores = parallelism(self._spark)
        sends = [
            _Send(place, self._writer(out.topic, step), out.rows, block, rule)
            for place, (out, rule) in enumerate(zip(outgoing, rules, strict=True))
            for block in blocks_of(out.topic.partitions, cores)
        ]
        counts = [0] * len(outgoing)
        for send, rows in zip(sends, self._sent(sends, outgoing, step), strict=True):
            counts[send.place] += rows
        return counts

    def _sent(self, sends: Sequence[_Send], outgoing: Sequence[Outgoing], step: int) -> list[int]:
        """Send rows by partition, again and again while brokers do not answer; how many they are.

        What an earlier attempt has written is left out, and counted, as in a step repeated; with
        at-least-once delivery it is written again.
        """

        def attempt() -> list[int]:
            with _sink_errors(outgoing, step):
                return all_of(self._spark, sends)

        return self._outages.outlast(attempt, _passes) if sends else []

    def _rule(self, out: Outgoing, now_ms: int, clock_ms: int) -> TimestampRule:
        topic = out.topic.timestamps
        if topic.newest_ms is not None:
            now_ms = min(now_ms, clock_ms + topic.newest_ms)
        floor_ms, oldest_ms = milliseconds(self._settings.timestamp_floor), topic.oldest_ms
        return TimestampRule(
            taken_from=out.timestamps,
            now_ms=now_ms,
            floor_ms=floor_ms if oldest_ms is None else min(floor_ms, oldest_ms),
            is_kept=topic.are_kept,
            tells_event_time=out.tells_event_time,
        )

    def step_is_done(self, step: int) -> None:
        """Take note of a step whose rows are out and whose done mark is written."""
        if self._tokens is not None:
            self._tokens.step_is_done(step)

    def _writer(self, topic: OutputTopic, step: int) -> PartitionWriter:
        return PartitionWriter(
            kafka=self._kafka,
            app=self._settings.app_name,
            job=None if self._tokens is None else self._tokens.job,
            topic=topic.name,
            partitions=topic.partitions,
            step=step,
            transaction_timeout_ms=milliseconds(self._settings.transaction_timeout),
        )


@dataclass(frozen=True, slots=True)
class _Send:
    """Sends selected rows of files to some output partitions, in a task.

    Attributes:
        place: Which of the step's topics it is.
        writer: Writes to it.
        rows: The rows.
        partitions: The partitions.
        rule: Which timestamps they get.
    """

    place: int
    writer: PartitionWriter
    rows: Selection
    partitions: range
    rule: TimestampRule

    def __call__(self) -> int:
        """Send them; how many they are."""
        return sum(
            self.writer.send(partition, batches)[0]
            for partition, batches in self.rows.each(self.partitions, self.rule)
        )


def _passes(error: Exception) -> str | None:
    return str(error) if isinstance(error, SinkUnansweredError) else None


@contextlib.contextmanager
def _sink_errors(outgoing: Sequence[Outgoing], step: int) -> Iterator[None]:
    """Return what a task died of, as an error that says what was to be written."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        names = ", ".join(repr(out.topic.name) for out in outgoing)
        reason = reason_of(error)
        kind = SinkUnansweredError if _UNANSWERED.match(reason) else SinkError
        raise kind(f"step {step} cannot be written to {names}: {reason}") from error
