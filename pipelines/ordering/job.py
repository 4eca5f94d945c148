"""The reorder job on Spark, started from a program, or by spark-submit."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

from sequitur.base.program import run_program
from sequitur.errors import ConsumerError, PipelineError, ProducerError, ReorderError
from sequitur.kafka.settings import settings_of
from sequitur.pipelines.ordering.command import JobCommand
from sequitur.pipelines.ordering.preflight import check_before_spark
from sequitur.pipelines.ordering.run_job import run_reorder
from sequitur.pipelines.ordering.spark_runner import SparkRunner
from sequitur.pipelines.ordering.spark_signals import stop_on_signals
from sequitur.pipelines.python_path import MODULES
from sequitur.pipelines.session import build_session, log_level
from sequitur.pipelines.spark.tasks import start_python
from sequitur.pipelines.spark_settings import is_local
from sequitur.pipelines.store.hadoop_folder import check_nameable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import typer

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.job_report import JobReport
    from sequitur.pipelines.ordering.opening import ProcessStage
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.run_options import RunOptions


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
    """Run the reorder job in this process, and return its report.

    ::

        settings = ReorderSettings(
            input_topics=("readings",),
            output_topic="readings.ordered",
            event_time="json:at",
            checkpoint="/data/state/readings",
        )
        report = reorder("broker-1:9092", settings, on_step=print, available_now=True)
        print(report.totals.released)

    Rows go to the output topic as with `sequitur reorder`. Your function `on_step` also gets each
    step that released rows, once they are in the topic. It may write them elsewhere. If the process
    dies or the function raises before the job has noted that it returned, the function gets the
    same rows under the same id again. So store the id with the rows.

    The Spark session is the one of this process, with the job's options set, or a new one on
    `local[2,4]`. It is left running.

    Args:
        kafka: How to reach the brokers, or only their addresses.
        settings: The job's settings.
        on_step: Called with each step, in the driver, one after the other.
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
    check_before_spark(kafka, settings)
    spark = build_session(f"sequitur {settings.app_name}", checkpoint=settings.checkpoint)
    start_python(spark)
    ends = stop or threading.Event()
    is_program = stop is None and threading.current_thread() is threading.main_thread()
    with stop_on_signals(ends, spark) if is_program else contextlib.nullcontext():
        return run_reorder(
            SparkRunner(spark),
            kafka,
            settings,
            stop=ends,
            available_now=available_now,
            drain=drain,
            reset_input=reset_input,
            on_done=lambda *_: None,
            on_step=on_step,
        )


def run_submitted(
    name: str,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    options: RunOptions,
    *,
    load: Callable[[], tuple[ProcessStage, Path]] | None = None,
) -> None:
    refuse_local(settings)
    command = JobCommand.begin(settings, options)
    # py4j logs every error that crosses it; those that matter reach us as exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    stop = threading.Event()
    process, file = (None, None) if load is None else load()
    check_before_spark(kafka, settings, process)
    title = name if process is None else f"process {process.topology.name}"
    spark = build_session(f"sequitur {title}", checkpoint=settings.checkpoint, leaves_ctrl_c=True)
    # An error here becomes one line; Spark's log would have hundreds of lines for it.
    spark.sparkContext.setLogLevel(log_level())
    if file is not None:
        check_nameable(spark, str(file), "topology file")
    if file is not None and is_local(str(spark.sparkContext.master)):
        spark.sparkContext.environment[MODULES] = str(file.resolve().parent)
    start_python(spark)
    if file is not None:
        spark.sparkContext.addPyFile(str(file))
    with stop_on_signals(stop, spark):
        result = command.show(
            lambda on_done: run_reorder(
                SparkRunner(spark),
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
    spark.stop()
    command.end(result)


def refuse_local(settings: ReorderSettings) -> None:
    if settings.runner == "local":
        raise ReorderError(
            'runner = "local" runs a job without Spark, and spark-submit runs it on Spark: start '
            "it by `sequitur reorder` or `sequitur process`, or leave the setting out"
        )


def run_job(app: typer.Typer) -> NoReturn:
    """Run a job's command line; each error is one line, and `--debug` shows where it is from."""
    run_program("sequitur", app, errors=(ProducerError, ConsumerError, PipelineError))
