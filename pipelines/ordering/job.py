"""The reorder job: a streaming query, ticks beside it, and an orderly end."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from sequitur.base.retry import Outages
from sequitur.consumer import FOLD_LIMITS
from sequitur.errors import BrokerError, FatalError, TopicError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.connections import require_broker
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.context import JobContext
from sequitur.pipelines.ordering.metrics import serve_metrics
from sequitur.pipelines.ordering.opening import ProcessStage, open_engine
from sequitur.pipelines.ordering.progress import print_step
from sequitur.pipelines.ordering.restarting_query import RestartingQuery
from sequitur.pipelines.ordering.spark_source import SparkSource
from sequitur.pipelines.ordering.subscribing import checks_of, require_name, subscribe
from sequitur.pipelines.sink.sink import TopicSink
from sequitur.pipelines.spark.executors import watched_executors
from sequitur.pipelines.spark.tasks import SparkWorkers
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.epochs import check_epoch, folder_of_epoch
from sequitur.pipelines.store.hadoop_folder import open_spark_folder, open_storage

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
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.ordering.progress import JobReport


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

        workers = SparkWorkers(spark)
        job = JobContext(
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
            source=SparkSource(spark, kafka, topics, outages),
            workers=workers,
            sink=TopicSink(workers, kafka, settings, checkpoint, outages),
        )
        require_name(job)
        engine = open_engine(job, process, ends=available_now and drain)
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
                RestartingQuery(spark, job, engine, stop).run()
                if available_now:
                    engine.release_behind_cuts()
                if drain:
                    engine.drain()
                if available_now or drain:
                    engine.process_pending(stop.wait)
                engine.tidy()
    return engine.report(read_before, time.monotonic() - begun)


def _check_login(kafka: KafkaSettings) -> None:
    """Check that no broker rejects the connection: to wait would not help; for silence it may."""
    try:
        require_broker(kafka)
    except FatalError as error:
        raise TopicError(f"the brokers refuse the job: {error}") from error
    except BrokerError:
        return  # told, and waited for, when the first question has no answer
