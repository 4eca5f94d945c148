"""The reorder job: a streaming query, ticks beside it, and an orderly end."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipelines._checkpoint import Checkpoint, JobIdentity
from pipelines._engine import ReorderEngine, StopRequestedError
from pipelines._errors import ReorderError, TopicError, TopologyFileError
from pipelines._kafka_topics import KafkaTopics
from pipelines._metrics import serve_metrics
from pipelines._processing import Processing, check_settings
from pipelines._progress import counts, print_step, promised_and_achieved
from pipelines._rows import read_source
from pipelines._sink import Outputs, OutputTopic
from producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from consumer import LearnedDelays, ReorderSettings, StepDone, StepEntry, Totals
    from consumer.topology import ProcessSettings, Topology
    from pipelines._stop import Stop
    from producer import KafkaSettings

_POLL_S: Final = 0.1
_LONGEST_TICK_S: Final = 1.0
_COMMIT_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Behind:
    """A topology behind the reorder stage.

    Attributes:
        topology: The topology.
        settings: How it is run.
    """

    topology: Topology
    settings: ProcessSettings


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a run of the job did. Counts are since the checkpoint began.

    Attributes:
        totals: Counts of rows.
        frontier_ms: Event time up to which everything on time is out; -1 before any.
        steps: Batches, ticks and drains.
        seconds: How long this run took.
        records_per_s: Rows this run read a second.
        learned: What the delays were learned from; None with a fixed delay.
        processed: Counts of the topology behind; None without one.
    """

    totals: Totals
    frontier_ms: int
    steps: int
    seconds: float
    records_per_s: float
    learned: LearnedDelays | None = None
    processed: Mapping[str, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, for `json.dumps`."""
        return {
            **counts(self.totals),
            "frontier_ms": self.frontier_ms,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records_per_s, 1),
            **promised_and_achieved(self.learned),
            **({} if self.processed is None else {"processed": dict(self.processed)}),
        }


def run_reorder(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    stop: Stop,
    available_now: bool = False,
    drain: bool = False,
    on_step: Callable[[StepEntry, StepDone], None] = print_step,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    behind: Behind | None = None,
) -> JobReport:
    """Run the job until it is asked to stop, or has read what there is.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        stop: Ends the job, after the running batch.
        available_now: End when what was there at the start is read.
        drain: At the end release what is held, too; rows that come later may then be late.
        on_step: Told of each step once it is done.
        now_ms: The wall clock.
        behind: A topology that is given the events, instead of the output topic.

    Raises:
        ReorderError: The job cannot go on; the message says why.
        ConservationError: A row is unaccounted for.
    """
    begun = time.monotonic()
    with serve_metrics(settings.metrics) as measure:

        def tell(entry: StepEntry, done: StepDone) -> None:
            measure(entry, done)
            on_step(entry, done)

        engine = _engine(spark, kafka, settings, on_step=tell, now_ms=now_ms, behind=behind)
        return _run(
            spark,
            kafka,
            settings,
            engine,
            begun=begun,
            stop=stop,
            available_now=available_now,
            drain=drain,
        )


def _run(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    engine: ReorderEngine,
    *,
    begun: float,
    stop: Stop,
    available_now: bool,
    drain: bool,
) -> JobReport:
    read_before = engine.totals.read
    engine.recover()
    batches = _Batches(engine)
    query = _start(
        spark,
        kafka,
        settings,
        batches,
        spark_folder=engine.spark_folder,
        available_now=available_now,
    )
    tick_s = min(_LONGEST_TICK_S, max(_POLL_S, settings.idle_timeout.total_seconds() / 4))
    if engine.processed is not None:
        tick_s = _POLL_S  # so that an event is tried again when it is due
    next_tick = begun + tick_s
    while query.isActive and not stop.wait(_POLL_S):
        if not available_now and time.monotonic() >= next_tick:
            _tick(engine)
            next_tick = time.monotonic() + tick_s
    _end(spark, query, engine, batches)
    if drain:
        engine.drain()
    if available_now or drain:
        engine.process_pending(stop.wait)
    engine.tidy()
    seconds = time.monotonic() - begun
    return JobReport(
        totals=engine.totals,
        frontier_ms=engine.frontier_ms,
        steps=engine.steps,
        seconds=seconds,
        records_per_s=(engine.totals.read - read_before) / seconds,
        learned=engine.learned,
        processed=engine.processed,
    )


def _engine(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    on_step: Callable[[StepEntry, StepDone], None],
    now_ms: Callable[[], int],
    behind: Behind | None,
) -> ReorderEngine:
    if behind is not None:
        check_settings(settings, behind.settings, behind.topology)
    topics = KafkaTopics(kafka)
    written = list(settings.written_topics)
    if behind is not None:
        written += behind.topology.topics(settings.output_topic)
        written.append(behind.settings.dead_letters(settings.output_topic))
    partitions = _input_partitions(spark, topics, settings, written)

    def ensure(topic: str) -> OutputTopic:
        found = topics.ensure(
            topic,
            partitions=settings.output_partitions or partitions,
            replication_factor=settings.replication_factor,
        )
        if settings.output_partitions not in (None, found):
            raise TopicError(
                f"topic {topic!r} has {found} partitions, not output_partitions = "
                f"{settings.output_partitions}: leave the setting out, or name another topic"
            )
        return OutputTopic(topic, found)

    outputs = Outputs(
        released=ensure(settings.output_topic),
        late=ensure(settings.late),
        quarantine=ensure(settings.quarantine),
    )
    checkpoint = Checkpoint(spark, settings.checkpoint)
    checkpoint.claim(
        JobIdentity(
            input_topics=settings.input_topics,
            input_pattern=settings.input_pattern,
            event_time=str(settings.event_time),
            output_topic=settings.output_topic,
            output_partitions=outputs.released.partitions,
            mode=settings.mode.value,
            topology=None if behind is None else behind.topology.name,
        )
    )
    processing = None
    if behind is not None:
        if checkpoint.local(checkpoint.root) is None:
            raise TopologyFileError(
                f"checkpoint {checkpoint.root}: with a topology it has to be a folder that all "
                "machines reach by path"
            )
        output = settings.output_topic
        processing = Processing(
            spark,
            checkpoint,
            topology=behind.topology,
            settings=behind.settings,
            outputs={
                name: outputs.released if name == output else ensure(name)
                for name in behind.topology.topics(output)
            },
            default=outputs.released,
            dead_letters=ensure(behind.settings.dead_letters(output)),
        )
    return ReorderEngine(
        spark,
        kafka=kafka,
        settings=settings,
        outputs=outputs,
        topics=topics,
        checkpoint=checkpoint,
        now_ms=now_ms,
        on_step=on_step,
        processing=processing,
    )


def _input_partitions(
    spark: SparkSession, topics: KafkaTopics, settings: ReorderSettings, written: Sequence[str]
) -> int:
    """Partitions of the input topic that has most of them now.

    Raises:
        TopicError: There is none, or the job would read what it writes.
    """
    if settings.input_pattern is None:
        return max(topics.require(topic) for topic in settings.input_topics)
    # Spark matches by Java's rules, so these have to tell.
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the way to Java's patterns
    try:
        pattern = jvm.java.util.regex.Pattern.compile(settings.input_pattern)
    except (Py4JError, PySparkException) as error:
        raise TopicError(
            f"input_pattern {settings.input_pattern!r} is no regular expression of Java"
        ) from error

    def matches(topic: str) -> bool:
        return bool(pattern.matcher(topic).matches())

    own = [topic for topic in written if matches(topic)]
    if own:
        raise TopicError(
            f"input_pattern {settings.input_pattern!r} matches {own[0]!r}, which the job writes"
        )
    return max(topics.matching(settings.input_pattern, matches).values())


class _Batches:
    """What `foreachBatch` gets: the engine's, remembering the error that Spark only describes."""

    def __init__(self, engine: ReorderEngine) -> None:
        self._engine = engine
        self.error: Exception | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        try:
            self._engine.run_batch(rows, batch_id)
        except Exception as error:
            self.error = error
            raise


def _start(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    batches: _Batches,
    *,
    spark_folder: str,
    available_now: bool,
) -> StreamingQuery:
    writer = (
        read_source(spark, kafka, settings)
        .writeStream.queryName(f"reorder {settings.output_topic}")
        .foreachBatch(batches)
        .option("checkpointLocation", spark_folder)
    )
    if available_now:
        return writer.trigger(availableNow=True).start()
    interval = f"{milliseconds(settings.trigger_interval)} milliseconds"
    return writer.trigger(processingTime=interval).start()


def _tick(engine: ReorderEngine) -> None:
    # Brokers that do not answer now may at the next tick; batches will tell if not.
    with contextlib.suppress(TopicError):
        engine.tick()


def _end(
    spark: SparkSession, query: StreamingQuery, engine: ReorderEngine, batches: _Batches
) -> None:
    """Stop the query between two batches, and raise what ended it if it ended by an error.

    Spark's own `stop` interrupts the running batch. So the engine is closed first, which waits for
    that batch and refuses the next, and Spark gets the time to commit it.
    """
    # A batch that gives way is an error to Spark and no news to anyone; others are told below.
    spark.sparkContext.setLogLevel("FATAL")
    engine.close()
    deadline = time.monotonic() + _COMMIT_TIMEOUT_S
    while query.isActive and not engine.is_settled() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    query.stop()
    spark.sparkContext.setLogLevel("ERROR")
    if isinstance(batches.error, StopRequestedError):
        return
    if batches.error is not None and not isinstance(batches.error, Py4JError | PySparkException):
        raise batches.error
    failure = batches.error or query.exception()
    if failure is not None:
        raise ReorderError(f"Spark gave up: {_first_line(failure)}") from failure


def _first_line(error: Exception) -> str:
    """What a Java error says, without the hundred lines of where."""
    said = str(getattr(error, "java_exception", None) or error)
    return said.strip().partition("\n")[0]
