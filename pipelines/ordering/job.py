"""The reorder job: a streaming query, ticks beside it, and an orderly end."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sequitur.base.retry import Outages
from sequitur.base.settings import format_duration, milliseconds
from sequitur.consumer import FOLD_LIMITS
from sequitur.consumer.topology.api.stable_hash import HASH_VERSION
from sequitur.errors import BrokerError, FatalError, TopicError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.connections import require_broker
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.context import JobContext
from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.pipelines.ordering.growth import known_counts
from sequitur.pipelines.ordering.job_input import input_topics
from sequitur.pipelines.ordering.metrics import serve_metrics
from sequitur.pipelines.ordering.progress import print_step
from sequitur.pipelines.ordering.restarting_query import RestartingQuery
from sequitur.pipelines.ordering.step_log import StepLog
from sequitur.pipelines.ordering.subscribing import checks_of, require_name, subscribe
from sequitur.pipelines.sink.partition_sender import TRUSTED_MS
from sequitur.pipelines.sink.sink import Outputs, OutputTopic, TopicSink
from sequitur.pipelines.spark.executors import watched_executors
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.epochs import check_epoch, folder_of_epoch
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.store.storage import open_spark_folder, open_storage
from sequitur.pipelines.topology.processing import Processing
from sequitur.pipelines.topology.topology_file import (
    check_growth,
    check_settings,
    check_stores,
    keeping_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from pyspark.sql import SparkSession

    from sequitur.consumer import (
        FoldLimits,
        ReorderSettings,
        StepDone,
        StepEntry,
    )
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.ordering.progress import JobReport


@dataclass(frozen=True, slots=True)
class ProcessStage:
    """A topology that is given the ordered events, and how it is run."""

    topology: Topology
    settings: ProcessSettings


def run_reorder(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    stop: Event,
    available_now: bool = False,
    drain: bool = False,
    on_done: Callable[[StepEntry, StepDone], None] = print_step,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    process: ProcessStage | None = None,
    reset_input: bool = False,
    fold_limits: FoldLimits = FOLD_LIMITS,
    on_step: StepFunction | None = None,
) -> JobReport:
    """Run the job until it is asked to stop, or has read what there is."""
    begun = time.monotonic()
    _check_login(kafka)
    outages = Outages(settings.patience.total_seconds(), settings.restarts, wait=stop.wait)
    topics = KafkaTopics(kafka, outages)
    with contextlib.ExitStack() as opened:
        measure = opened.enter_context(serve_metrics(settings.metrics, outages))
        subscription = subscribe(kafka, settings, topics, outages, opened)
        if subscription is not None:
            measure.show_cursors(subscription.copies)
        epoch = 0 if subscription is None else subscription.state.epoch
        root = open_storage(spark, settings.checkpoint)
        folder = folder_of_epoch(settings.checkpoint, epoch)
        storage = root if folder == settings.checkpoint else open_storage(spark, folder)
        checkpoint = Checkpoint(storage, open_spark_folder(spark, storage))
        check_epoch(root, epoch, settings.subscription)
        opened.enter_context(contextlib.closing(checkpoint))
        opened.enter_context(checkpoint.while_owned())

        def tell(entry: StepEntry, done: StepDone) -> None:
            outages.step_is_done()
            measure(entry, done)
            on_done(entry, done)

        job = JobContext(
            spark=spark,
            kafka=kafka,
            settings=settings,
            topics=topics,
            checkpoint=checkpoint,
            outages=outages,
            now_ms=now_ms,
            on_done=tell,
            is_bounded=available_now,
            fold_limits=fold_limits,
            on_step=on_step,
            subscription=subscription,
            sink=TopicSink(spark, kafka, settings, checkpoint, outages),
        )
        require_name(job)
        engine = _open_engine(job, process, ends=available_now and drain)
        read_before = engine.totals.read
        with (
            contextlib.suppress(StopRequestedError),
            watched_executors(spark, stop, outages.tell),
            contextlib.closing(engine),
        ):
            engine.recover()
            if subscription is not None:
                if not engine.input.has_log:
                    engine.input.begin_at_cursors(subscription)
                opened.enter_context(checks_of(job, subscription))
            if not reset_input:
                engine.input.check()
            if not reset_input or engine.input.reset(stop.wait):
                RestartingQuery(job, engine, stop).run()
                if available_now:
                    engine.release_behind_cuts()
                if drain:
                    engine.drain()
                if available_now or drain:
                    engine.process_pending(stop.wait)
                engine.tidy()
    return engine.report(read_before, time.monotonic() - begun)


def _open_engine(job: JobContext, process: ProcessStage | None, *, ends: bool) -> ReorderEngine:
    """Claim the checkpoint, make the topics that are missing, and give the engine."""
    settings, topics = job.settings, job.topics
    if process is not None:
        check_settings(settings, process.settings, process.topology)
        check_stores(process.settings, process.topology, str(job.spark.sparkContext.master))
    _check_expiry(topics, settings)
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
    began = job.checkpoint.claim(
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
    log = StepLog(job.checkpoint)
    counts = known_counts(job.checkpoint.root, log.head, began.output_partitions, outputs.released)
    processing = None
    if process is not None:
        output, known = settings.output_topic, counts.newest
        if ends and keeping_state(process.topology):
            outputs = replace(outputs, released=replace(outputs.released, partitions=known))
        if began.hash_version != HASH_VERSION:
            job.outages.tell(
                f"{job.checkpoint.root} was begun by a version that grouped by an older hash, and "
                "keeps it: equal values of types other than text, bytes, numbers and lists of "
                "these may go to different tasks. A new checkpoint has the new one"
            )
        check_growth(process.topology, output, had=known, has=outputs.released.partitions)
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
            spout_tasks=known,
            hash_version=began.hash_version,
            dead_letters=ensure_aside(process.settings.dead_letters(output)),
            limit_of=topics.record_limit,
            timestamps=settings.output_timestamp,
            outages=job.outages,
        )
    return ReorderEngine(job, outputs, processing, log, counts)


def _check_login(kafka: KafkaSettings) -> None:
    """Check that no broker rejects the connection: to wait would not help; for silence it may."""
    try:
        require_broker(kafka)
    except FatalError as error:
        raise TopicError(f"the brokers refuse the job: {error}") from error
    except BrokerError:
        return  # told, and waited for, when the first question has no answer


def _check_expiry(topics: KafkaTopics, settings: ReorderSettings) -> None:
    """Check that brokers remember what the job has written for as long as that is relied on."""
    expiry_ms, floor_ms = topics.producer_expiry_ms(), milliseconds(settings.timestamp_floor)
    # A step's records are as old as they may be when it first tries to send them.
    if expiry_ms - floor_ms < TRUSTED_MS + milliseconds(settings.patience):
        raise TopicError(
            f"brokers forget a producer {expiry_ms / 1000:g} s after its newest record's timestamp "
            "(producer.id.expiration.ms), and records may be "
            f"{format_duration(settings.timestamp_floor)} old (timestamp_floor): the floor has to "
            "be shorter by an hour and patience, or what is written twice is not noticed"
        )
