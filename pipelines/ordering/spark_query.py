"""The streaming query of a job on Spark: started, ended between two batches, and what ended it."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import wait
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.base.process import beside
from sequitur.base.units import milliseconds
from sequitur.errors import ReorderError
from sequitur.kafka.error_codes import Action, Request, codes_of, java_exception
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.restarts import POLL_S, Ticks
from sequitur.pipelines.session import log_level
from sequitur.pipelines.spark.callbacks import calling_connection, for_each_batch, forget
from sequitur.pipelines.spark.tasks import reason_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.batch_size import BatchSize
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.ordering.restarts import Begin


_COMMIT_TIMEOUT_S: Final = 30.0
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 2.0
_PASSING: Final = [java_exception(code) for code in codes_of(Request.SOURCE, Action.RETRY)]
_PASSES: Final = re.compile(
    rf"org\.apache\.kafka\.common\.errors\.({'|'.join(_PASSING)}|"
    # These two have no code.
    r"DisconnectException|RetriableException)"
    r"|java\.util\.concurrent\.TimeoutException"
    r"|No resolvable bootstrap urls"
)
"""Errors of Kafka's clients and of Spark's source for brokers that are away, or no leader."""


class SparkQuery:
    def __init__(
        self, spark: SparkSession, job: JobContext, engine: ReorderEngine, stop: Event
    ) -> None:
        self._spark = spark
        self._job = job
        self._engine = engine
        self._stop = stop

    def live(self, begin: Begin, size: BatchSize | None) -> Exception | None:
        engine = self._engine
        batches = Batches(engine, size)
        try:
            query = start_query(
                self._spark,
                self._job,
                batches,
                engine.input.spark_folder,
                starting_offsets=_as_option(begin),
            )
            failed = self._tick_while(query)
            ended = end_query(
                self._spark, query, engine, batches, failed, is_stopping=self._stop.is_set
            )
        finally:
            batches.forget(self._spark)
        return failed or ended

    def passes(self, error: Exception) -> bool:
        return passes(error)

    def may_be_loss(self, error: Exception) -> bool:
        return is_sparks(error)

    def _tick_while(self, query: StreamingQuery) -> Exception | None:
        """Tick the engine while the query runs; return a tick's error, or why workers are unfit."""
        ticks = Ticks(self._job, self._engine)
        while self._goes_on(query) and not self._stop.wait(POLL_S):
            if (unfit := self._job.unfit()) is not None:
                return unfit
            try:
                ticks.tick_if_due()
            except Exception as error:  # noqa: BLE001 - the query has to be ended first
                return error
        return None

    def _goes_on(self, query: StreamingQuery) -> bool:
        return query.isActive and self._engine.failure is None and not self._job.checkpoint.is_lost


def _as_option(begin: Begin) -> str | None:
    """Return each partition's first offset in the form of Spark's option."""
    if begin.places is None:
        return None
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in begin.places.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)


class Batches:
    """What a query calls with each batch: it has the engine run it, and keeps the error of one.

    Spark would only describe the error. Spark's rows are never asked for: the engine reads the
    ranges that are planned.
    """

    def __init__(self, engine: ReorderEngine, size: BatchSize | None) -> None:
        self._engine = engine
        self._size = size
        self._query: StreamingQuery | None = None
        self._is_started = threading.Event()
        self._connection: Any = None
        self._limit = self.first_rows
        self.error: Exception | None = None

    @property
    def first_rows(self) -> int | None:
        """Most rows of the first batch; None for no limit."""
        return None if self._size is None else self._size.rows

    def are_of(self, query: StreamingQuery) -> None:
        """Note the query once it is started; its first batch may run already."""
        self._query = query
        self._is_started.set()

    def __call__(self, spark: SparkSession, batch_id: int) -> None:
        self._connection = calling_connection(spark)
        try:
            staged = self._engine.run_batch(batch_id)
            if staged is not None and staged.run is not None and self._size is not None:
                self._size.take(staged.counts.read, staged.run.size_bytes)
                self._limit_next(spark, self._size.rows)
        except Exception as error:  # noqa: BLE001 - kept, and told by the job
            self.error = error
            # Spark matches the text of the error, with its traceback, against an expression on
            # which its thread's stack may overflow. Nothing reads what Spark makes of it.
            raise RuntimeError("the batch failed") from None

    def _limit_next(self, spark: SparkSession, rows: int) -> None:
        """Let the next batches have so many rows, unless they may: that takes many calls."""
        if rows == self._limit:
            return
        self._is_started.wait(_START_TIMEOUT_S)
        if self._query is not None:  # else not started yet, after a minute: they stay small for now
            limit_batches(spark, self._query, rows)
            self._limit = rows

    def forget(self, spark: SparkSession) -> None:
        """Drop the references that keep the job in memory, once the query is over."""
        forget(spark, self, self._connection)


def limit_batches(spark: SparkSession, query: StreamingQuery, rows: int) -> None:
    """Let the next batches of a query read at most so many rows; to be called within a batch.

    Spark asks a source for its limit once, when the query starts, and keeps it by the source. That
    map is replaced between two batches, by the thread that reads it.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark has no setting for it
    execution = query._jsq.streamingQuery()  # noqa: SLF001
    limit = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows(rows)
    limits = execution.uniqueSources()
    sources = limits.keysIterator()
    while sources.hasNext():
        limits = limits.updated(sources.next(), limit)
    getattr(execution, "uniqueSources_$eq")(limits)


def start_query(
    spark: SparkSession,
    job: JobContext,
    batches: Batches,
    spark_folder: str,
    *,
    starting_offsets: str | None,
) -> StreamingQuery:
    settings = job.settings
    planned = planned_by_spark(
        spark,
        job.kafka,
        settings,
        starting_offsets=starting_offsets,
        most_rows=batches.first_rows,
    )
    named = planned.writeStream.queryName(f"reorder {settings.output_topic}")
    writer = named.option("checkpointLocation", spark_folder)
    for_each_batch(spark, writer, batches)
    if job.is_bounded:
        writer = writer.trigger(availableNow=True)
    else:
        interval = f"{milliseconds(settings.trigger_interval or timedelta())} milliseconds"
        writer = writer.trigger(processingTime=interval)
    query = writer.start()
    batches.are_of(query)
    return query


def planned_by_spark(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    starting_offsets: str | None = None,
    most_rows: int | None = None,
) -> DataFrame:
    """Return the input topics as a stream whose offsets Spark plans; nothing reads its rows.

    Spark looks for new partitions, and new topics of a pattern, before each batch, and plans them
    from their beginning.
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{key}": value for key, value in kafka.java().items()})
        .option(*_subscription(settings))
        .option("startingOffsets", starting_offsets or settings.starting_offsets)
        .option("kafka.isolation.level", "read_committed")
    )
    if most_rows is not None:
        reader = reader.option("maxOffsetsPerTrigger", most_rows)
    return reader.load()


def _subscription(settings: ReorderSettings) -> tuple[str, str]:
    if settings.input_pattern is not None:
        # Spark accepts a match anywhere in a name, so `orders` would read `orders.ordered`, too.
        return "subscribePattern", rf"\A(?:{settings.input_pattern})\z"
    return "subscribe", ",".join(settings.input_topics)


def end_query(
    spark: SparkSession,
    query: StreamingQuery,
    engine: ReorderEngine,
    batches: Batches,
    failed: Exception | None = None,
    *,
    is_stopping: Callable[[], bool] = bool,
) -> Exception | None:
    """Stop the query between two batches. Return the error that ended it; None without one.

    Spark's own `stop` interrupts the running batch. So the engine is closed first, which waits for
    that batch and refuses the next, and Spark gets the time to commit it.
    """
    # A batch that ends for a stop is an error only to Spark. Other errors are reported later.
    spark.sparkContext.setLogLevel("FATAL")
    engine.close()
    deadline = time.monotonic() + _COMMIT_TIMEOUT_S
    while (
        query.isActive
        and failed is None
        and engine.failure is None
        and not engine.is_settled()
        and time.monotonic() < deadline
    ):
        time.sleep(POLL_S)
    _stop(query, is_stopping)
    spark.sparkContext.setLogLevel(log_level())
    raised = engine.failure or batches.error
    if isinstance(raised, StopRequestedError):
        return None
    if raised is not None and not isinstance(raised, Py4JError | PySparkException):
        return raised
    failure = raised or query.exception()
    if failure is None:
        return None
    error = ReorderError(f"Spark gave up: {reason_of(failure)}")
    error.__cause__ = failure
    return error


def _stop(query: StreamingQuery, is_stopping: Callable[[], bool]) -> None:
    """Have Spark end its thread. A job that is to stop does not wait for a thread that hangs.

    Spark asks brokers for offsets in calls that no interrupt ends, and that last minutes if one
    hangs. The engine is closed, so it refuses what that thread does later.
    """
    ended = beside(query.stop, "stop of a query")
    while not ended.done() and not is_stopping():
        wait([ended], timeout=POLL_S)
    if wait([ended], timeout=_STOP_TIMEOUT_S).done:
        ended.result()


def passes(error: Exception) -> bool:
    """Tell whether Spark failed for a transient reason, such as silent brokers."""
    return is_sparks(error) and _PASSES.search(text_of(error.__cause__)) is not None


def is_sparks(error: Exception) -> bool:
    """Tell whether Spark raised the error, and not our own code."""
    return isinstance(error.__cause__, Py4JError | PySparkException)
