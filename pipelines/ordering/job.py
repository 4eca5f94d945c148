"""The reorder job: a streaming query, ticks beside it, and an orderly end."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.consumer import DataLoss, SourcePartition
from sequitur.pipelines._errors import (
    DataLossError,
    SinkUnansweredError,
    TopicError,
    TopologyFileError,
    UnansweredError,
)
from sequitur.pipelines.kafka.outages import Outages
from sequitur.pipelines.kafka.topics import KafkaTopics
from sequitur.pipelines.ordering.data_loss import in_words, rows_lost
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.ordering.metrics import serve_metrics
from sequitur.pipelines.ordering.progress import counts, print_step, promised_and_achieved
from sequitur.pipelines.ordering.query import (
    POLL_S,
    Batches,
    end_query,
    is_sparks,
    passes,
    start_query,
)
from sequitur.pipelines.ordering.row_probe import records_a_poll
from sequitur.pipelines.sink.sink import Outputs, OutputTopic
from sequitur.pipelines.sink.topic_limits import Limits
from sequitur.pipelines.store.checkpoint import Checkpoint, JobIdentity
from sequitur.pipelines.store.storage import open_storage
from sequitur.pipelines.topology.checks import check_settings
from sequitur.pipelines.topology.processing import Processing
from sequitur.producer import BrokerError, FatalError
from sequitur.producer.kafka.reach import require_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sequitur.consumer import LearnedDelays, ReorderSettings, StepDone, StepEntry, Totals
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.pipelines.ordering.stop import Stop
    from sequitur.producer import KafkaSettings

_LONGEST_TICK_S: Final = 1.0
_EARLIEST: Final = -2
"""What Spark takes for the offset of a partition's first record."""


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
        waits_for: What the rows that are held wait for; empty without any.
    """

    totals: Totals
    frontier_ms: int
    steps: int
    seconds: float
    records_per_s: float
    learned: LearnedDelays | None = None
    processed: Mapping[str, int] | None = None
    waits_for: str = ""

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, for `json.dumps`."""
        return {
            **counts(self.totals),
            "frontier_ms": self.frontier_ms,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records_per_s, 1),
            **({"waits_for": self.waits_for} if self.waits_for else {}),
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
    reset_input: bool = False,
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
        reset_input: Have Spark's part of the checkpoint begin anew where the log has got to, and
            read topics that were made anew from their beginning.

    Raises:
        ReorderError: The job cannot go on; the message says why.
        ConservationError: A row is unaccounted for.
    """
    begun = time.monotonic()
    _check_login(kafka)
    checkpoint = Checkpoint(open_storage(spark, settings.checkpoint))
    outages = Outages(settings.patience.total_seconds(), settings.restarts, wait=stop.wait)
    with serve_metrics(settings.metrics, outages) as measure, contextlib.closing(checkpoint):

        def tell(entry: StepEntry, done: StepDone) -> None:
            outages.step_is_done()
            measure(entry, done)
            on_step(entry, done)

        topics = KafkaTopics(kafka, outages)
        engine = _engine(
            spark,
            kafka,
            settings,
            topics=topics,
            checkpoint=checkpoint,
            outages=outages,
            on_step=tell,
            now_ms=now_ms,
            behind=behind,
            is_bounded=available_now,
        )
        read_before = engine.totals.read
        engine.recover()
        if not reset_input:
            engine.check_input()
        if not reset_input or engine.reset_input(stop.wait):
            _Run(
                spark,
                kafka,
                settings,
                engine,
                topics,
                checkpoint,
                outages,
                stop=stop,
                available_now=available_now,
            ).run()
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
        waits_for=engine.waits_for,
    )


def _check_login(kafka: KafkaSettings) -> None:
    """Tell a refusal from silence: the first stays, however long one waits.

    Raises:
        TopicError: A broker is there, and refuses us.
    """
    try:
        require_broker(kafka)
    except FatalError as error:
        raise TopicError(f"the brokers refuse the job: {error}") from error
    except BrokerError:
        return  # told, and waited for, when the first question has no answer


class _Run:
    """The query of a job, started anew after what passes by itself.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        engine: The engine, recovered.
        topics: Admin client.
        checkpoint: The job's folder.
        outages: How often the query may be started anew.
        stop: Ends the job, after the running batch.
        available_now: End when what is there is read.
    """

    def __init__(  # noqa: PLR0917 - private, and each is of a type of its own
        self,
        spark: SparkSession,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        engine: ReorderEngine,
        topics: KafkaTopics,
        checkpoint: Checkpoint,
        outages: Outages,
        *,
        stop: Stop,
        available_now: bool,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._settings = settings
        self._engine = engine
        self._topics = topics
        self._checkpoint = checkpoint
        self._outages = outages
        self._stop = stop
        self._available_now = available_now

    def run(self) -> None:
        """Run the query until it has read what there is, or the job is to stop.

        Raises:
            ReorderError: The job cannot go on.
        """
        error = self._life()
        while error is not None:
            self._checkpoint.check_owner()  # whatever else went wrong, that was why
            error = self._overcome(error)
        self._checkpoint.check_owner()

    def _overcome(self, error: Exception) -> Exception | None:
        """Go on after what ended the query, if one can; what ended it then.

        Raises:
            Exception: One cannot.
        """
        if passes(error) and self._stop.is_asked:
            return None
        try:
            if not self._pass_over_lost(error):
                if not passes(error):
                    raise error
                if not self._outages.may_restart(str(error)):
                    if self._stop.is_asked:
                        return None
                    raise error
            self._engine.reopen()
            return self._life()
        except (UnansweredError, SinkUnansweredError) as found:
            if found is error:
                raise
            return found

    def _pass_over_lost(self, error: Exception) -> bool:
        """Count what the input has lost, and leave it out; whether that was what ended the query.

        Raises:
            DataLossError: The job is to end then.
            UnansweredError: The brokers do not tell.
        """
        if not (is_sparks(error) or isinstance(error, TopicError)):
            return False
        topics = _input_topics(self._spark, self._topics, self._settings)
        return self._is_passed_over(topics, error)

    def _is_passed_over(self, topics: Mapping[str, int], error: Exception | None) -> bool:
        lost = self._engine.lost(topics)
        if lost and not self._engine.has_log:
            raise DataLossError(
                f"{in_words(lost)}: gone, at most {rows_lost(lost)} rows, before the first batch "
                "that was to read it had begun. Nothing is logged yet: start the job once with "
                "--reset-input, and it begins anew with what is there"
            ) from error
        if lost and self._settings.on_data_loss is DataLoss.FAIL:
            raise DataLossError(
                f"{in_words(lost)}: gone before the job had read it, by retention or with its "
                f"topic, at most {rows_lost(lost)} rows. To go on without, and have it counted as "
                'missing, start the job with on_data_loss = "continue"'
            ) from error
        if lost:
            lost = self._engine.pass_over_lost(topics)
            self._outages.tell(
                f"on_data_loss = continue: {in_words(lost)}: gone before the job had read it, "
                f"counted as {rows_lost(lost)} rows missing"
            )
        return bool(lost)

    def _life(self) -> Exception | None:
        """Start the query, and tick the engine until it ends; what ended it but for a stop."""
        settings, engine = self._settings, self._engine
        starting = None
        topics = _input_topics(self._spark, self._topics, settings)
        if engine.begins_at is not None:
            # Told where to begin, Spark does not look whether a partition that is new begins at 0.
            self._is_passed_over(topics, None)
        if (begins_at := engine.begins_at) is not None:
            starting = _starting_offsets(topics, begins_at)
        engine.forget_unfinished()
        batches = Batches(engine)
        query = start_query(
            self._spark,
            self._kafka,
            settings,
            batches,
            spark_folder=engine.spark_folder,
            starting_offsets=starting,
            records_a_poll=records_a_poll(self._kafka, engine.unread(topics)),
            available_now=self._available_now,
        )
        failed = self._tick_while(query)
        ended = end_query(self._spark, query, engine, batches)
        return failed or ended

    def _tick_while(self, query: StreamingQuery) -> Exception | None:
        """Tick the engine while the query runs; the error of a tick, which ends that."""
        tick_s = min(_LONGEST_TICK_S, max(POLL_S, self._settings.idle_timeout.total_seconds() / 4))
        if self._engine.processed is not None:
            tick_s = POLL_S  # so that an event is tried again when it is due
        next_tick = time.monotonic() + tick_s
        while query.isActive and not self._checkpoint.is_lost and not self._stop.wait(POLL_S):
            if not self._available_now and time.monotonic() >= next_tick:
                try:
                    _tick(self._engine)
                except Exception as error:  # noqa: BLE001 - the query has to be ended first
                    return error
                next_tick = time.monotonic() + tick_s
        return None


def _tick(engine: ReorderEngine) -> None:
    engine.tick()


def _engine(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    topics: KafkaTopics,
    checkpoint: Checkpoint,
    outages: Outages,
    on_step: Callable[[StepEntry, StepDone], None],
    now_ms: Callable[[], int],
    behind: Behind | None,
    is_bounded: bool,
) -> ReorderEngine:
    if behind is not None:
        check_settings(settings, behind.settings, behind.topology)
    written = list(settings.written_topics)
    if behind is not None:
        written += behind.topology.topics(settings.output_topic)
        written.append(behind.settings.dead_letters(settings.output_topic))
    partitions = max(_input_topics(spark, topics, settings, written).values())

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
        return OutputTopic(topic, found, topics.timestamps(topic))

    def ensure_aside(topic: str) -> OutputTopic:
        found = ensure(topic)
        topics.require_keyless(topic)
        return found

    outputs = Outputs(
        released=ensure(settings.output_topic),
        late=ensure_aside(settings.late),
        quarantine=ensure_aside(settings.quarantine),
    )
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
    limits = Limits(topics, settings, releases=behind is None)
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
            dead_letters=ensure_aside(behind.settings.dead_letters(output)),
            limits=limits,
            timestamps=settings.output_timestamp,
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
        outages=outages,
        limits=limits,
        processing=processing,
        is_bounded=is_bounded,
    )


def _starting_offsets(topics: Mapping[str, int], begins_at: Mapping[SourcePartition, int]) -> str:
    """Where Spark's query begins, as its option takes it: each partition that is there is named."""
    return json.dumps(
        {
            topic: {
                str(number): begins_at.get(SourcePartition(topic, number), _EARLIEST)
                for number in range(partitions)
            }
            for topic, partitions in topics.items()
        }
    )


def _input_topics(
    spark: SparkSession,
    topics: KafkaTopics,
    settings: ReorderSettings,
    written: Sequence[str] = (),
) -> dict[str, int]:
    """The input topics that are there now, and how many partitions each has.

    Raises:
        TopicError: There is none, or the job would read what it writes.
    """
    if settings.input_pattern is None:
        return {topic: topics.require(topic) for topic in settings.input_topics}
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
    return topics.matching(settings.input_pattern, matches)
