"""A job that spark-submit has started: from its session to its report and its exit code."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console

from consumer import ConsumerError
from pipelines._errors import PipelineError
from pipelines._job import run_reorder
from pipelines._progress import LiveLine, ProgressStyle, print_step, report_table
from pipelines._stop import Stop, stop_on_signals
from pipelines.session import build_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from consumer import ReorderSettings, StepDone, StepEntry
    from pipelines._job import Behind, JobReport
    from producer import KafkaSettings

FAILED_EXIT_CODE: Final = 3


def run_submitted(
    name: str,
    kafka: KafkaSettings,
    settings: ReorderSettings,
    *,
    available_now: bool,
    drain: bool,
    report: Path | None,
    progress: ProgressStyle,
    load: Callable[[], tuple[Behind, Path]] | None = None,
) -> None:
    """Run the reorder job, with a topology behind it or without, until it ends or is stopped.

    Args:
        name: What the job calls itself where it complains.
        kafka: How to reach the brokers.
        settings: The job's settings.
        available_now: End when what is there is read.
        drain: Release what is held, at the end.
        report: Where the final report goes.
        progress: How steps are shown.
        load: Gives a topology that runs behind it, and the file that tasks need for it.

    Raises:
        typer.Exit: The job cannot go on; it has been told why.
    """
    # py4j logs every error that crosses it; those that matter reach us as exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    stop = Stop()
    try:
        behind, file = (None, None) if load is None else load()
        title = name if behind is None else f"run {behind.topology.name}"
        spark = build_session(f"sequitur {title}")
        if file is not None:
            spark.sparkContext.addPyFile(str(file))
        with stop_on_signals(stop, spark):
            with _shown(progress) as (on_step, on_end):
                result = run_reorder(
                    spark,
                    kafka,
                    settings,
                    stop=stop,
                    available_now=available_now,
                    drain=drain,
                    on_step=on_step,
                    behind=behind,
                )
            on_end(result)
            if report is not None:
                report.parent.mkdir(parents=True, exist_ok=True)
                report.write_text(json.dumps(result.as_json()) + "\n")
            spark.stop()
    except (ConsumerError, PipelineError) as error:
        typer.echo(f"{name}: {error}", err=True)
        raise typer.Exit(FAILED_EXIT_CODE) from None


@contextlib.contextmanager
def _shown(
    progress: ProgressStyle,
) -> Iterator[tuple[Callable[[StepEntry, StepDone], None], Callable[[JobReport], None]]]:
    """What shows each step, and what shows the end."""
    if progress.on(is_terminal=sys.stdout.isatty()) is ProgressStyle.JSON:
        yield print_step, lambda result: typer.echo(json.dumps(result.as_json()))
        return
    # spark-submit stands between us and the terminal, so rich would not find one.
    console = Console(force_terminal=True)
    with LiveLine(console) as line:
        yield line, lambda result: console.print(report_table(result.as_json()))
