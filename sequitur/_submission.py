"""Submitting a job by spark-submit: its options beside the job's settings."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import typer

from sequitur.base.flags import given_flags
from sequitur.base.program import is_debugging
from sequitur.base.settings import environment_name, fields_of, is_secret
from sequitur.pipelines.java import find_java
from sequitur.pipelines.launch import (
    DEFAULT_MASTER,
    WAITING_MASTER,
    chosen_master,
    run_spark_submit,
    spark_submit_command,
)
from sequitur.pipelines.ordering.progress import ProgressStyle
from sequitur.pipelines.spark_settings import spark_home

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sequitur.pipelines.ordering.opening import ProcessStage
    from sequitur.pipelines.run_options import RunOptions
    from sequitur.pipelines.settings import ProcessJob, ReorderJob


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The options of spark-submit itself."""

    # spark master; None for that of Spark's own settings, or one on this machine
    master: str | None = field(
        default=None,
        metadata={
            "help": f"Spark master (that of spark-defaults.conf, or {DEFAULT_MASTER}; "
            f"{WAITING_MASTER} with `concurrency`)"
        },
    )
    # spark settings, as KEY=VALUE
    conf: list[str] | None = field(
        default=None, metadata={"help": "Spark setting, as KEY=VALUE; may be repeated"}
    )

    def settings(self) -> dict[str, str]:
        """Return the Spark settings by name."""
        found: dict[str, str] = {}
        for given in self.conf or ():
            key, separator, value = given.partition("=")
            if not separator:
                raise typer.BadParameter(f"{given!r}: expected KEY=VALUE", param_hint="--conf")
            found[key] = value
        return found


def submit(
    job: Path,
    settings: ReorderJob | ProcessJob,
    options: RunOptions,
    spark: SparkOptions,
    *,
    arguments: Sequence[str] = (),
    process: ProcessStage | None = None,
) -> NoReturn:
    """Become spark-submit, running a job with these settings and flags."""
    spark_home()  # who has no Spark is told of that, not of what it would bring
    from sequitur.pipelines.ordering.preflight import check_before_start  # noqa: PLC0415 - other commands need no Spark
    from sequitur.pipelines.topology.topology_file import check_stores  # noqa: PLC0415 - likewise

    find_java()
    spark_settings = spark.settings()
    waits = process is not None and process.topology.is_concurrent
    default = WAITING_MASTER if waits else DEFAULT_MASTER
    master = spark.master or chosen_master(spark_settings, default)
    if process is not None:
        check_stores(process.settings, process.topology, master)
    check_before_start(settings.kafka, settings.reorder, process)
    # Through spark-submit the job sees neither the terminal nor its width: pass both.
    shown = options.progress.on(is_terminal=sys.stdout.isatty())
    words = [*arguments, *given_flags(settings), *replace(options, progress=shown).flags()]
    words += ["--debug"] if is_debugging() else []
    if shown is ProgressStyle.LIVE:
        os.environ["COLUMNS"] = str(shutil.get_terminal_size().columns)
    os.environ.update(secrets_of(settings))
    command = spark_submit_command(
        words,
        job=job,
        master=master,
        options=spark_settings,
        checkpoint=settings.reorder.checkpoint,
    )
    run_spark_submit(command)


def secrets_of(settings: ReorderJob | ProcessJob) -> dict[str, str]:
    """Return the settings that no flag holds, as a job is given them: by its environment."""
    found = {}
    for section, name, info in fields_of(type(settings)):
        secret = getattr(getattr(settings, section), name) if is_secret(info) else None
        if secret is not None:
            found[environment_name(section, name)] = secret.get_secret_value()
    return found
