"""`sequitur run`: a user's topology behind the reorder stage, through spark-submit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sequitur._submission import SparkOptions, submit
from sequitur.base.flags import with_flags
from sequitur.pipelines.launch import PROCESS_JOB
from sequitur.pipelines.run_options import RunOptions, with_options
from sequitur.pipelines.settings import ProcessJob
from sequitur.pipelines.topology.topology_file import load_topology


@with_flags(ProcessJob)
@with_options
def run_topology(
    settings: ProcessJob,
    topology: Annotated[Path, typer.Argument(help="Python file that says `topology = ...`")],
    options: RunOptions,
    spark: SparkOptions,
) -> None:
    """Run a topology on events in event-time order, and track each until its tree is done."""
    from sequitur.pipelines.ordering.opening import ProcessStage  # noqa: PLC0415 - other commands need no Spark

    submit(
        PROCESS_JOB,
        settings,
        options,
        spark,
        arguments=[str(topology)],
        # Errors in the file are reported at once, and not after Spark's start.
        process=ProcessStage(load_topology(topology), settings.process),
    )
