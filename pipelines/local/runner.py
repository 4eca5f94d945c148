"""The local runner: a reorder job as one program on this machine, without Spark and Java.

The engine, its steps and all that it writes are those of the job on Spark. Here stands what Spark
does beside it: batches are planned, run one after the other, and committed, in Spark's own files
(`plan_log`). So a checkpoint goes from one runner to the other.
"""

from __future__ import annotations

import contextlib
import math
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import print_line
from sequitur.base.settings import format_duration, milliseconds
from sequitur.errors import CheckpointError, TopicError
from sequitur.kafka.log_watch import LogWatch
from sequitur.kafka.settings import settings_of
from sequitur.pipelines._stop import StopRequestedError, calling_at_stop
from sequitur.pipelines.local.arrow_pool import use_small_pool
from sequitur.pipelines.local.plan_log import PlanLog
from sequitur.pipelines.local.planner import Planner
from sequitur.pipelines.local.workers import ProcessWorkers
from sequitur.pipelines.ordering.command import JobCommand
from sequitur.pipelines.ordering.preflight import SAME_IN_JAVA, check_before_start
from sequitur.pipelines.ordering.restarts import Ticks
from sequitur.pipelines.ordering.run import run_reorder
from sequitur.pipelines.ordering.source import KafkaSource
from sequitur.pipelines.store.storage import storage_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from datetime import timedelta
    from threading import Event

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.local.planner import Ends
    from sequitur.pipelines.ordering.batch_size import BatchSize
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.engine import ReorderEngine
    from sequitur.pipelines.ordering.opening import ProcessStage
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.ordering.progress import JobReport
    from sequitur.pipelines.ordering.restarts import Begin
    from sequitur.pipelines.run_options import RunOptions
    from sequitur.pipelines.store.storage import SparkFolder, Storage
    from sequitur.pipelines.workers import Workers

    OnDone = Callable[[StepEntry, StepDone], None]

_PAUSE_FACTOR: Final = 4
"""A job that is up to date takes a quarter of a core, or a step each `_LONGEST_PAUSE_S`."""
_LONGEST_PAUSE_S: Final = 0.1
_IDLE_S: Final = 60.0
"""Processes that have read a backlog wait so long for the next one."""
_HDFS: Final = ("hdfs:", "viewfs:", "webhdfs:", "swebhdfs:")


class LocalRunner:
    """This machine; see `Runner`."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def storage(self, location: str) -> Storage:
        """See `Runner`; stores take endpoint and credentials from the environment."""
        return storage_at(location)

    def spark_folder(self, storage: Storage) -> SparkFolder:
        """See `Runner`."""
        return storage

    def source(
        self, kafka: KafkaSettings, settings: ReorderSettings, outages: Outages
    ) -> KafkaSource:
        """See `Runner`."""
        return KafkaSource(kafka, settings, self.workers, outages, _matcher)

    def query(self, job: JobContext, engine: ReorderEngine, stop: Event) -> LocalQuery:
        """See `Runner`."""
        watch = LogWatch(job.kafka, is_stopping=stop.is_set)
        return LocalQuery(job, engine, stop, lambda: contextlib.closing(watch))

    def unfit(self) -> Exception | None:
        """See `Runner`."""
        return None

    def watched(self, stop: Event, tell: Callable[[str], object]) -> AbstractContextManager[object]:
        """See `Runner`."""
        del stop, tell
        return contextlib.nullcontext()

    def looked_at(self, storage: Storage) -> AbstractContextManager[object]:
        """See `Runner`; a worker on this machine has what the driver has."""
        del storage
        return contextlib.nullcontext()


class LocalQuery:
    """Plans batches, has the engine run them, and commits them; see `Query`.

    Args:
        job: The job.
        engine: Its engine.
        stop: Set once the job is to stop, behind the step at work.
        watch: Opens what tells where the input ends, for a life.
    """

    def __init__(
        self,
        job: JobContext,
        engine: ReorderEngine,
        stop: Event,
        watch: Callable[[], AbstractContextManager[Ends]],
    ) -> None:
        self._job = job
        self._engine = engine
        self._stop = stop
        self._watch = watch

    def live(self, begin: Begin, size: BatchSize | None) -> Exception | None:
        """See `Query`."""
        failed = None
        try:
            with self._watch() as ends:
                self._read(begin, size, ends)
        except StopRequestedError:
            pass
        except Exception as error:  # noqa: BLE001 - `Restarts` raises it, if it does not pass
            failed = error
        # The steps that are staged end; a step may fail in that, too.
        self._engine.close()
        return self._engine.failure or failed

    def passes(self, error: Exception) -> bool:
        """See `Query`."""
        del error
        return False

    def may_be_loss(self, error: Exception) -> bool:
        """See `Query`."""
        del error
        return False

    def _read(self, begin: Begin, size: BatchSize | None, ends: Ends) -> None:
        log = PlanLog.of(self._job.checkpoint, self._engine.input.source)
        read_ahead = self._engine.read_ahead
        planner = Planner(self._job, log, ends, begin, size, read_ahead=read_ahead)
        ticks = Ticks(self._job, self._engine)
        pace = Pace(self._job.settings.trigger_interval)
        while self._goes_on():
            plan = planner.next(ticks.left_s) if self._is_due(pace, ticks) else None
            if plan is not None:
                pace.begin(is_behind=planner.is_behind)
                staged = self._engine.run_batch(plan.batch_id)
                log.commit()
                if staged is not None and staged.run is not None:
                    planner.take(staged.staged.read, staged.run.size_bytes)
            elif self._job.is_bounded:
                return
            ticks.tick_if_due()

    def _goes_on(self) -> bool:
        is_over = self._stop.is_set() or self._job.checkpoint.is_lost
        if (unfit := self._job.unfit()) is not None:
            raise unfit
        return not is_over and self._engine.failure is None

    def _is_due(self, pace: Pace, ticks: Ticks) -> bool:
        """Wait until the next batch may begin, or a tick; a bounded run waits for neither."""
        left_s = 0.0 if self._job.is_bounded else pace.left_s
        if left_s <= 0:
            pace.is_due()
            return True
        self._stop.wait(min(left_s, ticks.left_s))
        return False


class Pace:
    """When the next batch may begin, by what the one before it takes.

    A step costs about as much with few rows as with some thousands. So without a pause a job that
    is up to date takes a whole core, for rows that would go out as soon with the next step.

    Args:
        interval: Shortest time between the starts of two batches; None for the default.
    """

    def __init__(self, interval: timedelta | None) -> None:
        self._interval_s = None if interval is None else milliseconds(interval) / 1000
        self._begun_s = -math.inf
        self._used_s = self._used_before_s = time.process_time()

    def is_due(self) -> None:
        """Take note that what is computed from now on is of the next batch: it is read first."""
        self._used_before_s = time.process_time()

    def begin(self, *, is_behind: bool) -> None:
        """Take note that a batch begins; `is_behind` says whether it leaves rows that are there."""
        is_free = is_behind and self._interval_s is None
        self._begun_s = -math.inf if is_free else time.monotonic()
        self._used_s = self._used_before_s

    @property
    def left_s(self) -> float:
        """Seconds until the next may begin, by what this process has computed since the last."""
        interval_s = self._interval_s
        if interval_s is None:
            used_s = time.process_time() - self._used_s
            interval_s = min(_LONGEST_PAUSE_S, _PAUSE_FACTOR * used_s)
        return self._begun_s + interval_s - time.monotonic()


# What is refused before the start: what this machine alone cannot do, or might do otherwise.


def check_local(settings: ReorderSettings) -> None:
    """Check that the local runner can run a job with these settings."""
    if settings.checkpoint.startswith(_HDFS):
        raise CheckpointError(
            f"checkpoint {settings.checkpoint}: the local runner does not write to HDFS. Give a "
            'local folder or an object store (s3, gs, abfs), or runner = "spark"'
        )
    if settings.input_pattern is not None:
        checked_pattern(settings.input_pattern)


def checked_pattern(pattern: str) -> str:
    """Return an `input_pattern` that means the same to Python and to Java, so to Spark."""
    if SAME_IN_JAVA.fullmatch(pattern) is None:
        raise TopicError(
            f"input_pattern {pattern!r}: Java may read it otherwise than the local runner. Use "
            r"letters, digits and _ . * + ? | ( ) - and \. alone, or give runner = "
            '"spark"'
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise TopicError(f"input_pattern {pattern!r}: {error}") from error
    return pattern


def _matcher(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(checked_pattern(pattern))
    return lambda topic: compiled.fullmatch(topic) is not None


def run_here(
    kafka: KafkaSettings,
    settings: ReorderSettings,
    options: RunOptions,
    process: ProcessStage | None = None,
) -> None:
    """Run the job of a command in this process, until it ends or is stopped."""
    check_local(settings)
    check_before_start(kafka, settings, process)
    command = JobCommand.begin(settings, options)
    stop = threading.Event()
    with stop_on_signals(stop):
        result = command.show(
            lambda on_done: run_local(
                kafka,
                settings,
                stop=stop,
                available_now=options.available_now,
                drain=options.drain,
                reset_input=options.reset_input,
                on_done=on_done,
                process=process,
            )
        )
    # All is done: a Ctrl-C from here on need not say where it came.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command.end(result)


# The reorder job on this machine, started from a program of one's own.


def reorder(
    kafka: KafkaSettings | str | Iterable[str],
    settings: ReorderSettings,
    *,
    on_step: StepFunction | None = None,
    stop: threading.Event | None = None,
    available_now: bool = False,
    drain: bool = False,
    reset_input: bool = False,
) -> JobReport:
    """Run the reorder job on this machine, without Spark, and return its report.

    ::

        settings = ReorderSettings(
            input_topics=("readings",),
            output_topic="readings.ordered",
            event_time="json:at",
            checkpoint="/data/state/readings",
        )
        report = reorder("broker-1:9092", settings, on_step=print, available_now=True)
        print(report.totals.released)

    The job is that of `sequitur.spark.reorder`, with the same output, and it takes the same
    arguments. A checkpoint that one of them has begun, the other continues. The setting `runner`
    counts for commands alone.

    Args:
        kafka: How to reach the brokers, or only their addresses.
        settings: The job's settings.
        on_step: Called with each step, in this process, one after the other.
        stop: Once it is set, the job ends after the current step. Without it, SIGINT and SIGTERM do
            that if the main thread makes the call.
        available_now: End when all rows that were there at the start are read.
        drain: At the end, release all held rows. Rows that come later may then be late.
        reset_input: Only when the job asks for it: read on from the end of its log, and read
            recreated topics from their beginning.

    Raises:
        StepFunctionError: `on_step` raised. The next start calls it with the same step.
        ReorderError: The job cannot continue. The message says why.
        ConservationError: A row is unaccounted for.
        ProducerError: No broker can be reached, or authentication or TLS failed.
    """
    kafka = settings_of(kafka)
    check_local(settings)
    check_before_start(kafka, settings)
    ends = stop or threading.Event()
    is_program = stop is None and threading.current_thread() is threading.main_thread()
    with stop_on_signals(ends) if is_program else contextlib.nullcontext():
        return run_local(
            kafka,
            settings,
            stop=ends,
            available_now=available_now,
            drain=drain,
            reset_input=reset_input,
            on_step=on_step,
        )


def run_local(
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    stop: Event,
    available_now: bool = False,
    drain: bool = False,
    reset_input: bool = False,
    process: ProcessStage | None = None,
    on_done: OnDone = lambda *_: None,
    on_step: StepFunction | None = None,
) -> JobReport:
    """Run the job until it is asked to stop, or has read what there is."""
    use_small_pool()
    with running_workers(settings, stop, has_bolts=process is not None) as workers:
        return run_reorder(
            LocalRunner(workers),
            kafka,
            settings,
            stop=stop,
            available_now=available_now,
            drain=drain,
            reset_input=reset_input,
            process=process,
            on_done=on_done,
            on_step=on_step,
        )


@contextlib.contextmanager
def running_workers(
    settings: ReorderSettings, stop: Event, *, has_bolts: bool
) -> Iterator[ProcessWorkers]:
    """Run the tasks of a job for as long as the block runs, and some time after a stop at most.

    Without bolts no process is started before there is a task, and none stays for long without one.
    With bolts there always are tasks, and what these import is imported while the job asks brokers.
    """
    # Bolts stay warm.
    idle_s = None if has_bolts else _IDLE_S
    workers = ProcessWorkers(settings.workers, tell=print_line, idle_s=idle_s)

    def give_up() -> None:
        print_line(
            f"tasks are ended: the job was to stop {format_duration(settings.stop_timeout)} ago. "
            "The next start finishes their step"
        )
        workers.close()

    with contextlib.closing(workers):
        if has_bolts:
            workers.start()
        grace_s = settings.stop_timeout.total_seconds()
        with calling_at_stop(stop.is_set, grace_s, give_up):
            yield workers


@contextlib.contextmanager
def stop_on_signals(stop: Event) -> Iterator[None]:
    """Set `stop` on SIGINT and SIGTERM for as long as the block runs; for the main thread."""
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
