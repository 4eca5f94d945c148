"""`sequitur run`: a user's topology behind the reorder stage, through spark-submit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sequitur._submission import Conf, Master, submit
from sequitur.pipelines.launch import PROCESS_JOB
from sequitur.pipelines.ordering.progress import ProgressStyle
from sequitur.pipelines.session import DEFAULT_MASTER
from sequitur.pipelines.settings import (
    AvailableNow,
    Drain,
    ProcessJob,
    Progress,
    ReportFile,
    ResetInput,
)
from sequitur.pipelines.topology.topology_file import load_topology
from sequitur.producer.settings_flags import with_flags


@with_flags(ProcessJob)
def run_topology(
    settings: ProcessJob,
    topology: Annotated[Path, typer.Argument(help="Python file that says `topology = ...`")],
    available_now: AvailableNow = False,
    drain: Drain = False,
    reset_input: ResetInput = False,
    report: ReportFile = None,
    progress: Progress = ProgressStyle.AUTO,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Run a topology on events in event-time order, and track each until its tree is done."""
    from sequitur.pipelines.ordering.job import Behind  # noqa: PLC0415 - other commands need no Spark

    submit(
        PROCESS_JOB,
        settings,
        arguments=[str(topology)],
        available_now=available_now,
        drain=drain,
        reset_input=reset_input,
        report=report,
        progress=progress,
        master=master,
        conf=conf,
        # What is wrong with it is told at once, and not after Spark's start.
        behind=Behind(load_topology(topology), settings.process),
    )
