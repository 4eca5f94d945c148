"""Handing a job to spark-submit: what it is told beside its settings."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipelines._progress import ProgressStyle
from pipelines.launch import run_spark_submit
from producer.settings import environment_name
from producer.settings_flags import given_flags

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipelines.settings import ProcessJob, ReorderJob

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
    report: Path | None,
    progress: ProgressStyle,
    master: str,
    conf: Sequence[str] | None,
) -> NoReturn:
    """Become spark-submit, running a job with these settings and flags.

    Args:
        job: The job's file.
        settings: Its settings.
        arguments: What stands before its flags.
        available_now: End when what is there is read.
        drain: Release what is held, at the end.
        report: Where the final report goes.
        progress: How steps are shown.
        master: Spark master.
        conf: Spark settings, as KEY=VALUE.
    """
    options: dict[str, str] = {}
    for given in conf or ():
        key, separator, value = given.partition("=")
        if not separator:
            raise typer.BadParameter(f"{given!r}: expected KEY=VALUE", param_hint="--conf")
        options[key] = value
    words = [*arguments, *given_flags(settings)]
    words += ["--available-now"] if available_now else []
    words += ["--drain"] if drain else []
    words += ["--report", str(report)] if report is not None else []
    # Through spark-submit the job sees neither the terminal nor its width, so it is told.
    shown = progress.on(is_terminal=sys.stdout.isatty())
    words += ["--progress", shown.value]
    if shown is ProgressStyle.LIVE:
        os.environ["COLUMNS"] = str(shutil.get_terminal_size().columns)
    if settings.kafka.sasl_password is not None:
        twin = environment_name("kafka", "sasl_password")
        os.environ[twin] = settings.kafka.sasl_password.get_secret_value()
    run_spark_submit(words, job=job, master=master, options=options)
