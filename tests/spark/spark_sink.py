"""What tests of the exactly-once sink share: a sink on a topic of its own, and what is in that."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - the name everyone gives it

from sequitur.cli.topic_reader import read_topic
from sequitur.kafka.partition import KeyPartitioner
from sequitur.spark import ExactlyOnceKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from sequitur.cli.topic_reader import TopicRecord
    from sequitur.producer import KafkaSettings
    from sequitur.spark import BatchWritten

PARTITIONS = 4
_HOSTS = 7
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Sink:
    """A sink before a topic of four partitions; each `new` one is another life of it.

    Batches of a stream are given to it as a query gives them, in a thread that has its id.

    Attributes:
        checkpoint: The sink's folder.
        query: The id of the query.
        options: What each life is given beside.
    """

    spark: SparkSession
    kafka: KafkaSettings
    topic: str
    checkpoint: Path
    query: str = "query-1"
    options: dict[str, Any] = field(default_factory=dict)
    life: ExactlyOnceKafka | None = None

    def new(self, **options: Any) -> ExactlyOnceKafka:
        """Make one; the life before is over, as by an end of its process."""
        self.close()
        self.life = self.beside(**options)
        return self.life

    def beside(self, **options: Any) -> ExactlyOnceKafka:
        given = {"checkpoint": str(self.checkpoint), "kafka": self.kafka, "order_by": "n"}
        return ExactlyOnceKafka(self.topic, **{**given, **self.options, **options})

    def close(self) -> None:
        if self.life is not None:
            self.life.close()
            self.life = None

    def batch(self, batch_id: int, rows: DataFrame | range) -> None:
        with as_query(self.spark, self.query):
            (self.life or self.new())(self._rows(rows), batch_id)

    def write(self, name: str, rows: DataFrame | range) -> BatchWritten:
        return (self.life or self.new()).write(self._rows(rows), name=name)

    def _rows(self, rows: DataFrame | range) -> DataFrame:
        return numbered(self.spark, rows) if isinstance(rows, range) else rows

    def records(self) -> list[TopicRecord]:
        """What a reader with default settings sees."""
        return list(read_topic(self.kafka, self.topic))

    def check(self, rows: int) -> None:
        """Each of so many rows is there once, where its key belongs, in order by partition."""
        check_records(self.records(), rows)


def numbered(spark: SparkSession, numbers: range) -> DataFrame:
    """Rows with numbers, and a host for key, in a random order."""
    rows = spark.range(numbers.start, numbers.stop, 1, 3).orderBy(F.rand())
    return rows.select(
        F.col("id").alias("n"),
        F.concat(F.lit("host-"), F.col("id") % _HOSTS).alias("key"),
        F.to_json(F.struct(F.col("id").alias("n"))).alias("value"),
    )


def check_records(records: Iterable[TopicRecord], rows: int) -> None:
    """Each of so many rows is there once, where its key belongs, in order within its partition."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    placed = KeyPartitioner(PARTITIONS)
    for record in records:
        assert record.key is not None
        assert record.partition == placed.partition(record.key)
        found[record.partition].append(json.loads(record.value or b"")["n"])
    assert sorted(n for numbers in found.values() for n in numbers) == [*range(rows)]
    assert all(numbers == sorted(numbers) for numbers in found.values())


@contextlib.contextmanager
def as_query(spark: SparkSession, query: str) -> Iterator[None]:
    context: Any = spark.sparkContext
    context.setLocalProperty(_QUERY_ID, query)
    try:
        yield
    finally:
        context.setLocalProperty(_QUERY_ID, None)


class CrashError(Exception):
    """The process dies here."""


def dying_at(
    original: Callable[..., Any], document: str, *, is_written: bool
) -> Callable[..., None]:
    """Return what dies before, or just after, it writes the first document of a folder."""

    def write_document(folder: Any, name: str, *how: Any) -> None:
        is_it = name.startswith(document)
        if is_it and not is_written:
            raise CrashError(name)
        original(folder, name, *how)
        if is_it:
            raise CrashError(name)

    return write_document
