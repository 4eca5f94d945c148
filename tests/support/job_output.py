"""A topic that a job writes to, step by step: its driver's part and its tasks', without Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from sequitur.base.stored import dump, load
from sequitur.kafka.partition import OutputPartition
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA
from sequitur.pipelines.rows.record_layout import Headers, record_batches
from sequitur.pipelines.sink.block_writer import BlockWriter
from sequitur.pipelines.sink.step_planner import StepPlanner
from sequitur.pipelines.sink.step_plans import SequenceEnds
from tests.support.document_folder import DocumentFolder
from tests.support.output_reading import read_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sequitur.pipelines.rows.record_layout import KafkaBatch
    from sequitur.pipelines.sink.step_planner import Planned
    from sequitur.producer import KafkaSettings
    from tests.support.record_bytes import Header

Tables: TypeAlias = "Iterable[pa.Table]"

BATCH_ROWS = 64


def rows_of(*rows: tuple[bytes | None, bytes | None, tuple[Header, ...]]) -> pa.Table:
    """Rows as a task has them: key, value, headers."""
    keys, values, headers = zip(*rows, strict=True) if rows else ((), (), ())
    lists = [[{"key": name, "value": data} for name, data in own] for own in headers]
    columns = {"key": keys, "value": values, "headers": lists}
    fields = [RUN_ARROW_SCHEMA.field(name) for name in columns]
    return pa.table(columns, pa.schema(fields))


def records_of(values: Iterable[bytes | None]) -> pa.Table:
    return rows_of(*((b"k", value, ()) for value in values))


def expected(count: int, *, of: str = "row") -> list[bytes]:
    return [f"{of} {number}".encode() for number in range(count)]


def numbered(count: int, *, of: str = "row", batch_rows: int = BATCH_ROWS) -> Iterator[pa.Table]:
    """As many rows, in some tables; an empty one is among them."""
    values = expected(count, of=of)
    yield records_of([])
    for start in range(0, count, batch_rows):
        yield records_of(values[start : start + batch_rows])


def laid_out(tables: Tables, time_ms: int | None = None) -> Callable[[int], Iterator[KafkaBatch]]:
    """Rows as a task's writer takes them: at least a batch for each table.

    Args:
        tables: The rows.
        time_ms: Their timestamps; now without. Of older records a broker forgets who sent them.
    """

    def batches(limit: int) -> Iterator[KafkaBatch]:
        now_ms = time.time_ns() // 1_000_000
        for some in tables:
            headers = Headers.of(some["headers"].combine_chunks())
            times = np.full(len(some), now_ms if time_ms is None else time_ms)
            yield from record_batches(some["key"], some["value"], headers, times, limit)

    return batches


@dataclass(frozen=True, slots=True)
class JobOutput:
    """A topic, and the job that writes to it.

    Attributes:
        kafka: Reaches the brokers.
        topic: The topic.
        partitions: How many it has.
    """

    kafka: KafkaSettings
    topic: str
    partitions: int = 4

    @property
    def app(self) -> str:
        return f"app-{self.topic}"

    def life(
        self,
        documents: DocumentFolder | None = None,
        *,
        newest: int = -1,
        done: int = -1,
        sent: SequenceEnds | None = None,
    ) -> Life:
        """A life of the job, that has opened its output.

        Args:
            documents: Its checkpoint; a new one without.
            newest: The newest step that was begun.
            done: The newest step that is done.
            sent: What the done mark says.
        """
        documents = DocumentFolder() if documents is None else documents
        plans = StepPlanner(self.kafka, app=self.app, documents=documents)
        plans.open({self.topic: self.partitions}, newest=newest, done=done, sent=sent)
        return Life(self, documents, plans)

    def values(self, partition: int) -> list[bytes | None]:
        records = read_output(self.kafka, self.topic)
        return [record.value for record in records if record.partition == partition]


@dataclass(slots=True)
class Life:
    """A life of a job.

    Attributes:
        output: Where it writes.
        documents: Its checkpoint.
        plans: Its plans.
        done: The newest step that it has done.
    """

    output: JobOutput
    documents: DocumentFolder
    plans: StepPlanner
    done: int = field(default=-1)

    def planned(self, step: int = 0) -> Planned:
        return self.plans.of_step(step, {self.output.topic: self.output.partitions})

    def task(self, step: int = 0, kafka: KafkaSettings | None = None) -> BlockWriter:
        """The writer that a task of a step gets.

        Args:
            step: The step.
            kafka: How the task reaches the brokers; by connections of its own if they differ.
        """
        return BlockWriter.of(kafka or self.output.kafka, self.output.topic, self.planned(step))

    def finish(self, step: int, rows: Mapping[int, int]) -> None:
        """Mark a step as done, with so many rows in each partition."""
        topic = self.output.topic
        self.plans.written(step, {OutputPartition(topic, one): n for one, n in rows.items()})
        self.done = step

    def next(self, newest: int | None = None, documents: DocumentFolder | None = None) -> Life:
        """The life behind this one.

        Args:
            newest: The newest step that was begun; the newest that is done without.
            documents: Its checkpoint; that of this life without.
        """
        sent = self.plans.sent
        return self.output.life(
            documents or self.documents,
            newest=self.done if newest is None else newest,
            done=self.done,
            sent=None if sent is None else load(SequenceEnds, dump(sent)),
        )


def another_process(kafka: KafkaSettings, number: int = 1) -> KafkaSettings:
    """The same brokers under other settings, so that a thread gets connections of its own."""
    servers = ",".join([kafka.bootstrap_servers] * (number + 1))
    return kafka.model_copy(update={"bootstrap_servers": servers})
