"""A reorder job from its start to its report, whatever it runs on."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol

from sequitur.base.retry import Outages
from sequitur.consumer.reorder.key_state import FOLD_LIMITS
from sequitur.errors import BrokerError, FatalError, TopicError
from sequitur.kafka.admin import KafkaTopics
from sequitur.kafka.broker_check import require_broker
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.context import JobContext
from sequitur.pipelines.ordering.job_checks import checks_of
from sequitur.pipelines.ordering.job_metrics import serve_metrics
from sequitur.pipelines.ordering.job_subscription import require_name, subscribe
from sequitur.pipelines.ordering.opening import open_engine
from sequitur.pipelines.ordering.progress import print_step
from sequitur.pipelines.ordering.restarts import Restarts
from sequitur.pipelines.sink.sink import TopicSink
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.epochs import check_epoch, folder_of_epoch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from threading import Event

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.key_state import FoldLimits
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.context import Source
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.ordering.job_report import JobReport
    from sequitur.pipelines.ordering.opening import ProcessStage
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.ordering.restarts import Query
    from sequitur.pipelines.store.storage import SparkFolder, Storage
    from sequitur.pipelines.workers import Workers


class Runner(Protocol):
    """What a job runs on: Spark, or this machine alone."""

    @property
    def workers(self) -> Workers:
        """Where tasks run."""

    def storage(self, location: str) -> Storage:
        """Return the folder at a path or URI."""

    def spark_folder(self, storage: Storage) -> SparkFolder:
        """Return the same folder, for plans and commits."""

    def source(self, kafka: KafkaSettings, settings: ReorderSettings, outages: Outages) -> Source:
        """Return what reads the rows of batches."""

    def query(self, job: JobContext, engine: ReorderEngine, stop: Event) -> Query:
        """Return what plans batches."""

    def unfit(self) -> Exception | None:
        """Return why tasks cannot do the job's work at all; None if no reason is known."""

    def watched(self, stop: Event, tell: Callable[[str], object]) -> AbstractContextManager[object]:
        """Watch what tasks run on while the block runs."""

    def looked_at(self, storage: Storage) -> AbstractContextManager[object]:
        """Have workers check whether they can do tasks while the block runs; see `unfit`."""


def run_reorder(
    runner: Runner,
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
    begun = time.monotonic()
    _check_login(kafka)
    outages = Outages(settings.patience.total_seconds(), settings.restarts, wait=stop.wait)
    topics = KafkaTopics(kafka, outages, by_thread=True)
    with contextlib.ExitStack() as opened:
        measure = opened.enter_context(serve_metrics(settings.metrics, outages))
        subscription = subscribe(kafka, settings, topics, outages, opened)
        if subscription is not None:
            measure.show_cursors(subscription.copies)
        epoch = 0 if subscription is None else subscription.state.epoch
        root = runner.storage(settings.checkpoint)
        folder = folder_of_epoch(settings.checkpoint, epoch)
        storage = root if folder == settings.checkpoint else runner.storage(folder)
        checkpoint = Checkpoint(storage, runner.spark_folder(storage))
        check_epoch(root, epoch, settings.subscription)
        opened.enter_context(contextlib.closing(checkpoint))
        opened.enter_context(checkpoint.while_owned())

        def tell(entry: StepEntry, done: StepDone) -> None:
            outages.step_is_done()
            measure(entry, done)
            on_done(entry, done)

        workers = runner.workers
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
            unfit=runner.unfit,
            source=runner.source(kafka, settings, outages),
            workers=workers,
            sink=TopicSink(workers, kafka, settings, checkpoint, outages),
        )
        require_name(job)
        engine = open_engine(job, process)
        measure.empty_partitions = engine.empty_partitions
        measure.show_late(lambda: engine.late_for_window)
        measure.show_keys(lambda: engine.keys)
        read_before = engine.totals.read
        with (
            contextlib.suppress(StopRequestedError),
            runner.watched(stop, outages.tell),
            contextlib.closing(engine),
            runner.looked_at(storage),
        ):
            engine.recover()
            if subscription is not None:
                if not engine.input.has_log:
                    engine.input.begin_at_cursors(subscription)
                opened.enter_context(checks_of(job, subscription))
            if not reset_input:
                engine.input.check()
            if not reset_input or engine.input.reset(stop.wait):
                Restarts(job, engine, runner.query(job, engine, stop), stop).run()
                if drain:
                    engine.drain()
                if available_now or drain:
                    engine.process_pending(stop.wait)
                if drain:
                    engine.close_windows(stop.wait)
                engine.tidy()
    return engine.report(read_before, time.monotonic() - begun)


def _check_login(kafka: KafkaSettings) -> None:
    """Check that no broker rejects the login: waiting helps only against silence."""
    try:
        require_broker(kafka)
    except FatalError as error:
        raise TopicError(f"the brokers refuse the job: {error}") from error
    except BrokerError:
        return  # the first request without an answer says so, and waits
