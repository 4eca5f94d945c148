"""Handing a job to spark-submit: what it is told beside its settings."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sequitur.pipelines.java import find_java
from sequitur.pipelines.launch import run_spark_submit
from sequitur.pipelines.ordering.progress import ProgressStyle
from sequitur.producer.program import is_debugging
from sequitur.producer.settings import environment_name, fields_of, is_secret
from sequitur.producer.settings_flags import given_flags

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sequitur.pipelines.ordering.job import Behind
    from sequitur.pipelines.settings import ProcessJob, ReorderJob

Master = Annotated[str, typer.Option(help="Spark master")]
Conf = Annotated[
    list[str] | None, typer.Option(help="Spark setting, as KEY=VALUE; may be repeated")
]


def submit(
    job: Path,
    settings: ReorderJob | ProcessJob,
    *,
    arguments: Sequence[str] = (),
    available_now: bool,
    drain: bool,
    reset_input: bool,
    report: Path | None,
    progress: ProgressStyle,
    master: str,
    conf: Sequence[str] | None,
    behind: Behind | None = None,
) -> NoReturn:
    """Become spark-submit, running a job with these settings and flags.

    Args:
        job: The job's file.
        settings: Its settings.
        arguments: What stands before its flags.
        available_now: End when what is there is read.
        drain: Release what is held, at the end.
        reset_input: Have Spark's part of the checkpoint begin anew.
        report: Where the final report goes.
        progress: How steps are shown.
        master: Spark master.
        conf: Spark settings, as KEY=VALUE.
        behind: The topology that the job runs, where it runs one.

    Raises:
        ReorderError: The job would refuse to start; it would say so, too, but seconds later.
        JavaError: There is no Java.
        ProducerError: No broker can be reached, or it refuses us.
    """
    from sequitur.pipelines.ordering.preflight import check_before_start  # noqa: PLC0415 - other commands need no Spark

    find_java()
    check_before_start(settings.kafka, settings.reorder, behind)
    options: dict[str, str] = {}
    for given in conf or ():
        key, separator, value = given.partition("=")
        if not separator:
            raise typer.BadParameter(f"{given!r}: expected KEY=VALUE", param_hint="--conf")
        options[key] = value
    words = [*arguments, *given_flags(settings)]
    words += ["--available-now"] if available_now else []
    words += ["--drain"] if drain else []
    words += ["--debug"] if is_debugging() else []
    words += ["--reset-input"] if reset_input else []
    words += ["--report", str(report)] if report is not None else []
    # Through spark-submit the job sees neither the terminal nor its width, so it is told.
    shown = progress.on(is_terminal=sys.stdout.isatty())
    words += ["--progress", shown.value]
    if shown is ProgressStyle.LIVE:
        os.environ["COLUMNS"] = str(shutil.get_terminal_size().columns)
    for section, field, info in fields_of(type(settings)):
        secret = getattr(getattr(settings, section), field) if is_secret(info) else None
        if secret is not None:
            os.environ[environment_name(section, field)] = secret.get_secret_value()
    run_spark_submit(words, job=job, master=master, options=options)
