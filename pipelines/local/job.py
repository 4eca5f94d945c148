"""The reorder job as one program on this machine, without Spark and Java.

The engine, its steps and all that it writes are those of the job on Spark. `query` does what Spark
does beside it: batches are planned, run one after the other, and committed, in Spark's own files
(`plan_log`). So a checkpoint goes from one runner to the other.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import print_line
from sequitur.base.units import format_duration
from sequitur.kafka.settings import settings_of
from sequitur.pipelines._stop import calling_at_stop
from sequitur.pipelines.local.arrow_pool import use_small_pool
from sequitur.pipelines.local.refusals import check_local
from sequitur.pipelines.local.runner import LocalRunner
from sequitur.pipelines.local.workers import ProcessWorkers
from sequitur.pipelines.ordering.command import JobCommand
from sequitur.pipelines.ordering.preflight import check_before_start
from sequitur.pipelines.ordering.run_job import run_reorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from threading import Event

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.job_report import JobReport
    from sequitur.pipelines.ordering.opening import ProcessStage
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.run_options import RunOptions

    OnDone = Callable[[StepEntry, StepDone], None]


_IDLE_S: Final = 60.0
"""So long processes without a task are kept, for the next backlog."""


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
        drain: At the end, release all held rows and close all windows. Rows that come later may
            then be late.
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


def run_here(
    kafka: KafkaSettings,
    settings: ReorderSettings,
    options: RunOptions,
    process: ProcessStage | None = None,
) -> None:
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
    # All is done: a Ctrl-C from here on needs no traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command.end(result)


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
    """Set `stop` on SIGINT and SIGTERM while the block runs; only for the main thread."""
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
