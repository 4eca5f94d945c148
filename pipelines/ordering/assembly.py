"""The engine of a job, put together: topics, checkpoint, and a topology behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.pipelines._errors import TopicError
from sequitur.pipelines.ordering.behind import BehindRows
from sequitur.pipelines.ordering.duplicates import DuplicateFinder
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.ordering.input_topics import input_topics
from sequitur.pipelines.ordering.keys import KeyHistory
from sequitur.pipelines.ordering.runs import SortedRuns
from sequitur.pipelines.sink.sink import Outputs, OutputTopic, TopicSink
from sequitur.pipelines.sink.topic_limits import TopicLimits
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.topology.checks import check_settings
from sequitur.pipelines.topology.processing import Processing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from sequitur.consumer import FoldLimits, ReorderSettings, StepDone, StepEntry
    from sequitur.pipelines.kafka.outages import Outages
    from sequitur.pipelines.kafka.topics import KafkaTopics
    from sequitur.pipelines.ordering.job import ProcessStage
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.producer import KafkaSettings


def open_engine(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    topics: KafkaTopics,
    checkpoint: Checkpoint,
    outages: Outages,
    on_step: Callable[[StepEntry, StepDone], None],
    now_ms: Callable[[], int],
    process: ProcessStage | None,
    is_bounded: bool,
    fold_limits: FoldLimits,
) -> ReorderEngine:
    """Claim the checkpoint, make the topics that are missing, and give the engine.

    Args:
        spark: The session.
        kafka: How to reach the brokers.
        settings: The job's settings.
        topics: Admin client.
        checkpoint: The job's folder.
        outages: How long what passes by itself is waited for.
        on_step: Told of each step once it is done.
        now_ms: The wall clock.
        process: A topology that is given the events, instead of the output topic.
        is_bounded: Whether the run ends when it has read what is there.
        fold_limits: When runs are folded.

    Raises:
        ReorderError: Something is not as it has to be.
    """
    if process is not None:
        check_settings(settings, process.settings, process.topology)
    written = list(settings.written_topics)
    if process is not None:
        written += process.topology.topics(settings.output_topic)
        written.append(process.settings.dead_letters(settings.output_topic))
    partitions = max(input_topics(spark, topics, settings, written).values())

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
            topology=None if process is None else process.topology.name,
        )
    )
    limits = TopicLimits(topics, settings, releases=process is None)
    processing = None
    if process is not None:
        output = settings.output_topic
        processing = Processing(
            spark,
            checkpoint,
            topology=process.topology,
            settings=process.settings,
            outputs={
                name: outputs.released if name == output else ensure(name)
                for name in process.topology.topics(output)
            },
            default=outputs.released,
            dead_letters=ensure_aside(process.settings.dead_letters(output)),
            limits=limits,
            timestamps=settings.output_timestamp,
        )
    tasks = outputs.released.partitions
    runs = SortedRuns(spark, checkpoint, settings, outputs, limits)
    history = KeyHistory(spark, checkpoint, settings.mode, tasks)
    duplicates = DuplicateFinder(spark, checkpoint, settings.event_id_header, tasks)
    return ReorderEngine(
        settings=settings,
        runs=runs,
        behind=BehindRows(settings, runs, history, duplicates, fold_limits),
        sink=TopicSink(spark, kafka, settings, checkpoint, outages),
        outputs=outputs,
        topics=topics,
        checkpoint=checkpoint,
        now_ms=now_ms,
        on_step=on_step,
        outages=outages,
        processing=processing,
        is_bounded=is_bounded,
    )
