"""`sequitur.spark.ExactlyOnceKafka`: what a user holds of the sink."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from sequitur.errors import SinkError, WrongBatchError
from sequitur.kafka.partition import check_topic_name
from sequitur.kafka.settings import KafkaSettings, settings_of
from sequitur.pipelines.spark_sink.batch_source import NamedBatch, is_repeated
from sequitur.pipelines.spark_sink.placed_rows import OrderBy, columns_in_order
from sequitur.pipelines.spark_sink.query_batch import stream_batch
from sequitur.pipelines.spark_sink.sink_folder import SinkFolder
from sequitur.pipelines.spark_sink.sink_steps import SinkSteps
from sequitur.pipelines.store.hadoop_folder import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from sequitur.pipelines.spark_sink.batch_source import BatchSource


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """The result of writing a DataFrame under a name.

    Attributes:
        name: The name.
        is_repeat: Whether all rows were in the topic before the call. Then nothing was written.
        rows: How many rows were written. None for a repeat.
    """

    name: str
    is_repeat: bool
    rows: int | None


class ExactlyOnceKafka:
    """A sink that writes each row of a stream or a DataFrame to a topic exactly once.

    ::

        sink = ExactlyOnceKafka(
            "readings", checkpoint="s3://bucket/sink", kafka="broker:9092", order_by="occurred_at"
        )
        rows.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()

    Rows have the columns of Spark's own sink: `value`, and optionally `key`, `headers`, `partition`
    and `timestamp`. Other columns are not written, but may be sorted by. Readers of the topic need
    no setting, since there are no transactions.

    The sink connects, and makes its folder, with the first batch. It does not work with Spark
    Connect.

    Args:
        topic: The topic. It must exist.
        checkpoint: A folder for the sink, other than Spark's checkpoint, on a path that all
            machines reach, in an object store or in HDFS.
        kafka: How to reach the brokers, or only their addresses.
        order_by: Columns, or their names, by which rows of a partition are sorted within a batch.
            Without it, rows keep Spark's order.
        first_batch: Number of the first batch that a new checkpoint gets, for a stream that wrote
            elsewhere before.
        app: The sink's name in Kafka, which owns its producer id. By default one is made up.

    Raises:
        ColumnsError: `order_by` is not columns or names.
        TypeError: `topic` is not text.
        ValueError: `kafka` is not an address, or `topic` is not allowed as a topic's name.
    """

    def __init__(
        self,
        topic: str,
        *,
        checkpoint: str,
        kafka: KafkaSettings | str | Iterable[str],
        order_by: OrderBy = (),
        first_batch: int = 0,
        app: str | None = None,
    ) -> None:
        check_topic_name(topic)
        self._topic = topic
        self._checkpoint = checkpoint
        self._kafka = settings_of(kafka)
        self._order_by = columns_in_order(order_by)
        self._first_batch = first_batch
        self._app = app
        self._lock = threading.Lock()
        self._steps: SinkSteps | None = None
        self._written: tuple[str, int] | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch of `foreachBatch`; skip one that is written already."""
        spark = _session_of(rows)
        with self._lock, self._at_work(spark) as steps:
            batch, run = stream_batch(spark, batch_id)
            # A run of a query gives a batch once, so these are more rows of it and not a repeat.
            if run is not None and self._written == (run, batch_id):
                raise WrongBatchError(
                    f"{batch} was given to this sink already: it takes one DataFrame a batch. "
                    "Unite them, or give each a sink with a checkpoint of its own"
                )
            if not self._is_repeated(steps, batch):
                steps.write(rows, batch, self._order_by)
            self._written = None if run is None else (run, batch_id)

    def write(self, rows: DataFrame, *, name: str) -> BatchWritten:
        """Write a DataFrame once. If the name was written before, nothing is done.

        A checkpoint has either a stream or DataFrames with names.

        Args:
            rows: The DataFrame.
            name: Its name.

        Raises:
            ReorderError: As for a batch of a stream.
            ValueError: The name is empty.
        """
        if not name:
            raise ValueError("name = '': expected one by which the rows are known again")
        spark, batch = _session_of(rows), NamedBatch(name)
        with self._lock, self._at_work(spark) as steps:
            if steps.resumed == batch:
                return BatchWritten(name, is_repeat=False, rows=steps.rows_done)
            if self._is_repeated(steps, batch) or steps.is_written(batch):
                return BatchWritten(name, is_repeat=True, rows=None)
            written = steps.write(rows, batch, self._order_by)
            return BatchWritten(name, is_repeat=False, rows=written)

    def close(self) -> None:
        """Release the checkpoint, so that another process or sink can take it."""
        with self._lock:
            if self._steps is not None:
                self._steps.close()
                self._steps = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _at_work(self, spark: SparkSession) -> Iterator[SinkSteps]:
        """Yield what writes, once it has finished all that was begun."""
        if self._steps is None:
            folder = SinkFolder(open_storage(spark, self._checkpoint))
            app = folder.claim(self._topic, self._app)
            try:
                self._steps = SinkSteps(self._kafka, self._topic, app, folder)
            except BaseException:
                folder.close()
                raise
        with self._steps.at_work(spark):
            yield self._steps

    def _is_repeated(self, steps: SinkSteps, batch: BatchSource) -> bool:
        return is_repeated(steps.root, batch, steps.newest, self._first_batch)


def _session_of(rows: DataFrame) -> SparkSession:
    if not isinstance(rows, ClassicDataFrame):
        raise SinkError(
            "the rows are of Spark Connect: the sink runs in the driver, beside Spark's own session"
        )
    return rows.sparkSession
