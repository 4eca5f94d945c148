"""Opens a job: makes its topics, claims its checkpoint, checks that its topology fits both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sequitur.base.units import format_duration, milliseconds
from sequitur.consumer.reorder.event_time import identity_of
from sequitur.errors import CheckpointError, TopicError
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.ordering.job_input import input_topics
from sequitur.pipelines.ordering.logged_steps import LoggedSteps
from sequitur.pipelines.sink.partition_sender import TRUSTED_MS
from sequitur.pipelines.sink.sink import Outputs, OutputTopic
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.store.owned_folder import FORMAT_DOCUMENT
from sequitur.pipelines.topology.processing import Processing
from sequitur.pipelines.topology.topology_file import check_settings, check_stores

if TYPE_CHECKING:
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.pipelines.ordering.context import JobContext, Topics


def partitions_begun(log: LoggedSteps, began: int, released: OutputTopic) -> int:
    """Return the number of output partitions that place rows: that of the first step."""
    head = log.head
    return released.partitions if head is None else head.output_partitions or began


def partitions_used(root: str, log: LoggedSteps, begun: int, released: OutputTopic) -> int:
    """Return how many partitions of the output topic get rows; refuse a topic with fewer."""
    # Before 0.1.0, outputs of topologies went to the partitions that the topic gained.
    used = max(begun, log.partitions_sent(released.name))
    if released.partitions < used:
        raise CheckpointError(
            f"{root}: topic {released.name!r} had {used} partitions and has "
            f"{released.partitions} now, so keys would go elsewhere and lose their order: give "
            "the job another output topic, and a checkpoint of its own"
        )
    return used


@dataclass(frozen=True, slots=True)
class ProcessStage:
    """A topology that gets the ordered events, and how it is run."""

    topology: Topology
    settings: ProcessSettings
    drop_state: tuple[str, ...] = ()  # keyed bolts that are gone, whose state is dropped


def open_engine(job: JobContext, process: ProcessStage | None) -> ReorderEngine:
    """Claim the checkpoint, create the topics that are missing, and return the engine."""
    settings, topics = job.settings, job.topics
    if process is not None:
        check_settings(settings, process.settings, process.topology)
        check_stores(process.settings, process.topology, job.workers.master)
    _check_expiry(topics, settings)
    written = list(settings.written_topics)
    if process is not None:
        written += process.topology.topics(settings.output_topic)
        written.append(process.settings.dead_letters(settings.output_topic))
    partitions = max(input_topics(job, written).values())
    # A job that has begun keeps the number of partitions of its output topic.
    is_new = job.checkpoint.read_document(FORMAT_DOCUMENT, dict) is None

    def ensure(topic: str) -> OutputTopic:
        found = topics.ensure(
            topic,
            partitions=settings.output_partitions or partitions,
            replication_factor=settings.replication_factor,
        )
        if is_new or topic != settings.output_topic:
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
    of_topology: dict[str, OutputTopic] = {}
    if process is not None:
        names = process.topology.topics(settings.output_topic)
        of_topology = {name: ensure(name) for name in names if name != settings.output_topic}
        dead_letters = ensure_aside(process.settings.dead_letters(settings.output_topic))
    # After all topics: if one of them refuses, the user may start again with other settings.
    began = job.checkpoint.claim(
        JobIdentity(
            input_topics=settings.input_topics,
            input_pattern=settings.input_pattern,
            event_time=identity_of(settings.event_time),
            output_topic=settings.output_topic,
            output_partitions=outputs.released.partitions,
            mode=settings.mode.value,
            topology=None if process is None else process.topology.name,
        )
    )
    log = LoggedSteps(job.checkpoint)
    there = outputs.released
    begun = partitions_begun(log, began, there)
    used = partitions_used(job.checkpoint.root, log, begun, there)
    topics.check_partitions(there.name, used, settings.output_partitions)
    outputs = replace(outputs, released=replace(there, partitions=used))
    if empty := there.partitions - used:
        job.checkpoint.note_partitions(used=used, there=there.partitions)
        job.outages.tell(
            f"topic {there.name!r} has {there.partitions} partitions and the checkpoint keeps the "
            f"{used} that it began with, so that keys stay where they are: {empty} stay empty. To "
            "use them, give the job another output topic, and a checkpoint and an app of its own"
        )
    processing = None
    if process is not None:
        processing = Processing(
            job.workers,
            job.checkpoint,
            topology=process.topology,
            settings=process.settings,
            outputs={name: of_topology.get(name, outputs.released) for name in names},
            default=outputs.released,
            spout_tasks=begun,
            dead_letters=dead_letters,
            limit_of=topics.record_limit,
            timestamps=settings.output_timestamp,
            outages=job.outages,
            drop_state=process.drop_state,
        )
    return ReorderEngine(job, outputs, processing, log, partitions=begun, empty=empty)


def _check_expiry(topics: Topics, settings: ReorderSettings) -> None:
    """Check that brokers remember a producer for long enough."""
    expiry_ms, floor_ms = topics.producer_expiry_ms(), milliseconds(settings.timestamp_floor)
    # A step's records are as old as they may be when it first tries to send them.
    if expiry_ms - floor_ms < TRUSTED_MS + milliseconds(settings.patience):
        raise TopicError(
            f"brokers forget a producer {expiry_ms / 1000:g} s after its newest record's "
            "timestamp (producer.id.expiration.ms), and records may be "
            f"{format_duration(settings.timestamp_floor)} old (timestamp_floor). Make the "
            "floor shorter, by an hour and patience, or brokers may miss rows that are "
            "written twice"
        )
