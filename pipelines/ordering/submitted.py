"""A job that spark-submit has started: from its session to its report and its exit code."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from sequitur.base.program import NOTHING_USABLE_EXIT_CODE, complain, run_program
from sequitur.consumer import ConsumerError
from sequitur.errors import PipelineError, ProducerError
from sequitur.pipelines.ordering.job import run_reorder
from sequitur.pipelines.ordering.preflight import check_before_start
from sequitur.pipelines.ordering.progress import (
    LiveLine,
    ProgressStyle,
    TextLines,
    print_step,
    report_table,
)
from sequitur.pipelines.ordering.stop import stop_on_signals
from sequitur.pipelines.session import build_session, log_level
from sequitur.pipelines.spark.tasks import start_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sequitur.consumer import ReorderSettings, StepDone, StepEntry
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.opening import ProcessStage
    from sequitur.pipelines.ordering.progress import JobReport
    from sequitur.pipelines.run_options import RunOptions


def run_submitted(
    name: str,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    options: RunOptions,
    *,
    load: Callable[[], tuple[ProcessStage, Path]] | None = None,
) -> None:
    """Run the reorder job, with a topology behind it or without, until it ends or is stopped."""
    # py4j logs every error that crosses it; those that matter reach us as exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for warning in settings.warnings:
        complain(f"warning: {warning}")
    stop = threading.Event()
    process, file = (None, None) if load is None else load()
    check_before_start(kafka, settings, process)
    title = name if process is None else f"run {process.topology.name}"
    spark = build_session(f"sequitur {title}", checkpoint=settings.checkpoint, leaves_ctrl_c=True)
    # What goes wrong is an error here, and is told in a line: Spark's log has hundreds for it.
    spark.sparkContext.setLogLevel(log_level())
    start_python(spark)
    if file is not None:
        spark.sparkContext.addPyFile(str(file))
    with stop_on_signals(stop, spark):
        with _shown(options.progress) as (on_done, on_end):
            result = run_reorder(
                spark,
                kafka,
                settings,
                stop=stop,
                available_now=options.available_now,
                drain=options.drain,
                reset_input=options.reset_input,
                on_done=on_done,
                process=process,
            )
        on_end(result)
        if options.report is not None:
            options.report.parent.mkdir(parents=True, exist_ok=True)
            options.report.write_text(json.dumps(result.as_json()) + "\n")
    # All is done: a Ctrl-C from here on need not say where it came.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    spark.stop()
    if options.available_now and result.all_quarantined:
        complain(str(result.all_quarantined))
        raise typer.Exit(NOTHING_USABLE_EXIT_CODE)


def run_job(app: typer.Typer) -> NoReturn:
    """Run a job's command line; its errors are one line each, `--debug` shows where."""
    run_program("sequitur", app, errors=(ProducerError, ConsumerError, PipelineError))


@contextlib.contextmanager
def _shown(
    progress: ProgressStyle,
) -> Iterator[tuple[Callable[[StepEntry, StepDone], None], Callable[[JobReport], None]]]:
    """Return what shows each step, and what shows the end."""
    style = progress.on(is_terminal=sys.stdout.isatty())
    if style is ProgressStyle.JSON:
        yield print_step, lambda result: typer.echo(json.dumps(result.as_json()))
        return
    # spark-submit stands between us and the terminal, so rich would not find one.
    console = Console(force_terminal=True) if style is ProgressStyle.LIVE else Console()
    line = LiveLine(console) if style is ProgressStyle.LIVE else TextLines(console)
    with line:
        yield line, lambda result: console.print(report_table(result.as_json()))
