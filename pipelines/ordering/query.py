"""How many rows a batch may have: few at first, then as many as are worth a step.

A large batch costs a row less, since a step costs about the same whatever is in it; but its first
row goes out when its last one is read. So a query begins with a small batch, which also warms the
JVM up, and each following one may be some times as large. What memory a batch takes does not grow
with it; the disk and the time that it takes do, so it is bounded by bytes, too.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.base.process import beside
from sequitur.base.settings import milliseconds
from sequitur.consumer import DataLoss
from sequitur.errors import (
    DataLossError,
    ReorderError,
    SequiturError,
    SinkUnansweredError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka.error_codes import Action, Request, codes_of, java_exception
from sequitur.kafka.reader import Reader
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.frontier import tick_ms
from sequitur.pipelines.ordering.job_input import in_words, input_topics, rows_lost
from sequitur.pipelines.ordering.spark_source import read_source
from sequitur.pipelines.session import log_level
from sequitur.pipelines.spark.tasks import calling_connection, forget, reason_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from threading import Event

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sequitur.consumer import SourcePartition
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine


_FIRST_ROWS: Final = 200_000
_FIRST_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 1 << 30
_GROWTH: Final = 4


class BatchSize:
    """The most rows of a query's batches, one after the other."""

    def __init__(self, most_rows: int, row_bytes: float) -> None:
        self._most_rows = most_rows
        self.rows = min(most_rows, _FIRST_ROWS, _fitting(_FIRST_BYTES, row_bytes))

    def take(self, rows: int, size_bytes: int) -> None:
        """Take note of a batch."""
        if rows:
            most = min(self._most_rows, _fitting(_MOST_BYTES, size_bytes / rows))
            self.rows = min(most, self.rows * _GROWTH)


def _fitting(size_bytes: int, row_bytes: float) -> int:
    return max(1, int(size_bytes / max(1.0, row_bytes)))


# How large the rows are that a query is about to read: a look at some of them before Spark reads.
#
# Kafka's consumer hands out records by number and never by size: 10,000 a poll, which small rows
# need to be read quickly, are 9 GB of rows of 900 KB, if these came packed so well that the limits
# on fetches, which count packed bytes, do not hold them up.


MOST_POLLED: Final = 10_000
"""Records a poll; the consumer's default of 500 costs two thirds of the source's speed."""
_FEWEST_POLLED: Final = 16
_POLL_BYTES: Final = 64 << 20
_LOOKED_AT: Final = 500
_LOOK_S: Final = 0.5
_FIRST_S: Final = 10.0
"""So long a first row is waited for: a broker may be slow, and without any nothing is known."""
_MOST_PARTITIONS: Final = 64
_FETCH_BYTES: Final = 16 << 10
"""Little, since the client unpacks all of an answer before it hands out its first row."""


def records_a_poll(row_bytes: float) -> int:
    """Return how many records Spark's consumers may take at once, some dozen MiB."""
    return max(_FEWEST_POLLED, min(MOST_POLLED, int(_POLL_BYTES / max(1.0, row_bytes))))


def mean_row_bytes(
    kafka: KafkaSettings, unread: Mapping[SourcePartition, tuple[int, int]]
) -> float:
    """Return the mean size of some rows; 0 where there are none."""
    left = [(where, span) for where, span in sorted(unread.items()) if span[0] < span[1]]
    row_bytes = 0.0
    # Nobody waits for a transaction that is open: the rows in it are as large as others.
    reader = Reader(
        kafka=kafka,
        is_committed=False,
        passes_deleted=True,
        patience_s=_FIRST_S,
        partition_bytes=_FETCH_BYTES,
    )
    with contextlib.suppress(SequiturError):
        # Rows at the beginning, and rows in the middle: they may be of two kinds.
        for share in (0.0, 0.5):
            spans = {
                where: (int(first + share * (last - first)), last)
                for where, (first, last) in left[:_MOST_PARTITIONS]
            }
            row_bytes = max(row_bytes, _mean_bytes(reader, spans))
    return row_bytes


def _mean_bytes(reader: Reader, spans: Mapping[SourcePartition, tuple[int, int]]) -> float:
    """Mean size of some rows; what is left may be ends of transactions alone."""
    count = size = 0
    until_s = time.monotonic() + _LOOK_S
    for _, record in reader.rows(spans):
        parts = [record.key, record.value, *(value for _, value in record.headers)]
        count += 1
        size += sum(len(part) for part in parts if part)
        if count == _LOOKED_AT or time.monotonic() > until_s:
            break
    return size / max(1, count)


# Spark's streaming query: started, ended between two batches, and what ended it.


POLL_S: Final = 0.1
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
"""What Kafka's clients and Spark's source say of brokers that are away, and of a missing leader."""


class Batches:
    """What `foreachBatch` gets: the engine's, remembering the error that Spark only describes."""

    def __init__(self, engine: ReorderEngine, size: BatchSize | None) -> None:
        self._engine = engine
        self._size = size
        self._query: StreamingQuery | None = None
        self._is_started = threading.Event()
        self._connection: Any = None
        self.error: Exception | None = None

    @property
    def first_rows(self) -> int | None:
        """Most rows of the first one; None for all there are."""
        return None if self._size is None else self._size.rows

    def are_of(self, query: StreamingQuery) -> None:
        """Tell whose they are, once it is started; its first batch may run already."""
        self._query = query
        self._is_started.set()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Run one."""
        self._connection = calling_connection(rows.sparkSession)
        try:
            staged = self._engine.run_batch(rows, batch_id)
            if staged is not None and staged.run is not None and self._size is not None:
                self._size.take(staged.staged.read, staged.run.size_bytes)
                self._is_started.wait(_START_TIMEOUT_S)
                limit_batches(rows.sparkSession, self._query, self._size.rows)
        except Exception as error:  # noqa: BLE001 - kept, and told by the job
            self.error = error
            # Spark looks through what it is told, traceback and all, by an expression of which its
            # thread's stack may overflow; and what it makes of it, nobody reads.
            raise RuntimeError("the batch failed") from None

    def forget(self, spark: SparkSession) -> None:
        """Let go of them, and so of the job, once their query is over."""
        forget(spark, self, self._connection)


def limit_batches(spark: SparkSession, query: StreamingQuery | None, rows: int) -> None:
    """Have the batches of a query read so many rows at most from now on; to be called in one.

    Spark asks a source for its limit once, when the query starts, and keeps it by the source. That
    map is replaced between two batches, by the thread that reads it.
    """
    if query is None:
        return  # not started yet, after a minute: its batches stay small for now
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
    row_bytes: float,
) -> StreamingQuery:
    """Start the query."""
    settings = job.settings
    rows = read_source(
        spark,
        job.kafka,
        settings,
        starting_offsets=starting_offsets,
        records_a_poll=records_a_poll(row_bytes),
        most_rows=batches.first_rows,
    )
    writer = (
        rows.writeStream.queryName(f"reorder {settings.output_topic}")
        .foreachBatch(batches)
        .option("checkpointLocation", spark_folder)
    )
    if job.is_bounded:
        writer = writer.trigger(availableNow=True)
    else:
        interval = f"{milliseconds(settings.trigger_interval)} milliseconds"
        writer = writer.trigger(processingTime=interval)
    query = writer.start()
    batches.are_of(query)
    return query


def end_query(
    spark: SparkSession,
    query: StreamingQuery,
    engine: ReorderEngine,
    batches: Batches,
    failed: Exception | None = None,
    *,
    is_stopping: Callable[[], bool] = bool,
) -> Exception | None:
    """Stop the query between two batches; what ended it if it ended by an error.

    Spark's own `stop` interrupts the running batch. So the engine is closed first, which waits for
    that batch and refuses the next, and Spark gets the time to commit it.
    """
    # A batch that gives way to a stop is an error to Spark alone; other errors are reported later.
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
    """Have Spark end its thread; a job that is to stop leaves one that a broker holds.

    Spark asks brokers for offsets in calls that no interrupt ends, for minutes where one hangs. The
    engine is closed, so that whatever that thread comes to do then is refused.
    """
    ended = beside(query.stop, "stop of a query")
    while not ended.done() and not is_stopping():
        wait([ended], timeout=POLL_S)
    if wait([ended], timeout=_STOP_TIMEOUT_S).done:
        ended.result()


def passes(error: Exception) -> bool:
    """Tell whether a query failed for a transient reason: brokers that do not answer."""
    if isinstance(error, UnansweredError | SinkUnansweredError):
        return True
    return is_sparks(error) and _PASSES.search(text_of(error.__cause__)) is not None


def is_sparks(error: Exception) -> bool:
    """Tell whether Spark raised the error, and not one of our own parts."""
    return isinstance(error.__cause__, Py4JError | PySparkException)


# The streaming query of a job: ticked beside, and restarted after a transient failure.


class RestartingQuery:
    """The query of a job, restarted after errors that pass by themselves."""

    def __init__(
        self, spark: SparkSession, job: JobContext, engine: ReorderEngine, stop: Event
    ) -> None:
        self._spark = spark
        self._job = job
        self._engine = engine
        self._stop = stop

    def run(self) -> None:
        """Run the query until it has read what there is, or the job is to stop."""
        error = self._life()
        while error is not None:
            self._job.checkpoint.check_owner()  # whatever else went wrong, that was why
            error = self._overcome(error)
        self._job.checkpoint.check_owner()

    def _overcome(self, error: Exception) -> Exception | None:
        """Go on after what ended the query, and give what ended it then; else raise the error."""
        if isinstance(error, StopRequestedError) or (passes(error) and self._stop.is_set()):
            return None
        try:
            may_be_loss = is_sparks(error) or isinstance(error, TopicError)
            if not (may_be_loss and self._pass_over_lost(input_topics(self._job), error)):
                if not passes(error):
                    raise error
                if not self._job.outages.may_restart(str(error)):
                    if self._stop.is_set():
                        return None
                    raise error
            self._engine.reopen()
            return self._life()
        except (UnansweredError, SinkUnansweredError) as found:
            if found is error:
                raise
            return found

    def _pass_over_lost(self, topics: Mapping[str, int], error: Exception | None) -> bool:
        """Count what the input has lost, and leave it out; whether it has lost anything.

        A loss may be why the query has ended, by `error`; where it ends the job, it is raised.
        """
        lost = self._engine.input.lost(topics)
        if lost and not self._engine.input.has_log:
            raise DataLossError(
                f"{in_words(lost)}: gone, at most {rows_lost(lost)} rows, before the first batch "
                "that was to read it had begun. Nothing is logged yet: start the job once "
                "with --reset-input, and it begins with the rows that are there"
            ) from error
        if lost and self._job.settings.on_data_loss is DataLoss.FAIL:
            raise DataLossError(
                f"{in_words(lost)}: gone before the job had read it, by retention or with its "
                f"topic, at most {rows_lost(lost)} rows. To continue without these rows, and "
                'count them as missing, start the job with on_data_loss = "continue"'
            ) from error
        if lost:
            lost = self._engine.input.pass_over_lost(topics)
            self._job.outages.tell(
                f"on_data_loss = continue: {in_words(lost)}: gone before the job had read it, "
                f"counted as {rows_lost(lost)} rows missing"
            )
        return bool(lost)

    def _life(self) -> Exception | None:
        """Start the query, and tick the engine until it ends; what ended it but for a stop."""
        job, engine = self._job, self._engine
        topics = input_topics(job)
        if engine.input.is_reset:
            # Told where to begin, Spark does not look whether a partition that is new begins at 0.
            self._pass_over_lost(topics, None)
        starting = engine.input.starting_offsets(topics)
        engine.input.forget_unfinished()
        row_bytes = mean_row_bytes(job.kafka, engine.input.unread(topics))
        most_rows = job.settings.max_offsets_per_trigger
        size = None if most_rows is None else BatchSize(most_rows, row_bytes)
        batches = Batches(engine, size)
        try:
            query = start_query(
                self._spark,
                job,
                batches,
                engine.input.spark_folder,
                starting_offsets=starting,
                row_bytes=row_bytes,
            )
            failed = self._tick_while(query)
            ended = end_query(
                self._spark, query, engine, batches, failed, is_stopping=self._stop.is_set
            )
        finally:
            batches.forget(self._spark)
        return failed or ended

    def _tick_while(self, query: StreamingQuery) -> Exception | None:
        """Tick the engine while the query runs; what ends that: of a tick, or of unfit workers."""
        job, settings = self._job, self._job.settings
        tick_s = tick_ms(settings) / 1000
        if self._engine.processed is not None:
            tick_s = POLL_S  # so that an event is tried again when it is due
        next_tick = time.monotonic() + tick_s
        while self._goes_on(query) and not self._stop.wait(POLL_S):
            if (unfit := job.unfit()) is not None:
                return unfit
            if not self._job.is_bounded and time.monotonic() >= next_tick:
                try:
                    if job.subscription is not None:
                        job.subscription.check()
                    self._engine.tick()
                except Exception as error:  # noqa: BLE001 - the query has to be ended first
                    return error
                next_tick = time.monotonic() + tick_s
        return None

    def _goes_on(self, query: StreamingQuery) -> bool:
        return query.isActive and self._engine.failure is None and not self._job.checkpoint.is_lost
