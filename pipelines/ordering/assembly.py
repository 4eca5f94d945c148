"""The engine of a job, put together: topics, checkpoint, and a topology behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.ordering.input_topics import input_topics
from sequitur.pipelines.sink.sink import Outputs, OutputTopic
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.topology.checks import check_settings
from sequitur.pipelines.topology.processing import Processing

if TYPE_CHECKING:
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.job import ProcessStage


def open_engine(job: JobContext, process: ProcessStage | None) -> ReorderEngine:
    """Claim the checkpoint, make the topics that are missing, and give the engine.

    Args:
        job: What all parts of it share.
        process: A topology that is given the events, instead of the output topic.

    Raises:
        ReorderError: Something is not as it has to be.
    """
    settings, topics = job.settings, job.topics
    if process is not None:
        check_settings(settings, process.settings, process.topology)
    written = list(settings.written_topics)
    if process is not None:
        written += process.topology.topics(settings.output_topic)
        written.append(process.settings.dead_letters(settings.output_topic))
    partitions = max(input_topics(job, written).values())

    def ensure(topic: str) -> OutputTopic:
        found = topics.ensure(
            topic,
            partitions=settings.output_partitions or partitions,
            replication_factor=settings.replication_factor,
        )
        topics.check_partitions(topic, found, settings.output_partitions)
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
    job.checkpoint.claim(
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
    processing = None
    if process is not None:
        output = settings.output_topic
        processing = Processing(
            job.spark,
            job.checkpoint,
            topology=process.topology,
            settings=process.settings,
            outputs={
                name: outputs.released if name == output else ensure(name)
                for name in process.topology.topics(output)
            },
            default=outputs.released,
            dead_letters=ensure_aside(process.settings.dead_letters(output)),
            limit_of=topics.record_limit,
            timestamps=settings.output_timestamp,
        )
    return ReorderEngine(job, outputs, processing)
