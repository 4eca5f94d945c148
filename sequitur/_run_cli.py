"""`sequitur run`: a user's topology behind the reorder stage, through spark-submit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines._progress import ProgressStyle
from pipelines._topology_file import load_topology
from pipelines.launch import PROCESS_JOB
from pipelines.session import DEFAULT_MASTER
from pipelines.settings import AvailableNow, Drain, ProcessJob, Progress, ReportFile
from producer.settings_flags import with_flags
from sequitur._submission import Conf, Master, submit


@with_flags(ProcessJob)
def run_topology(
    settings: ProcessJob,
    topology: Annotated[Path, typer.Argument(help="Python file that says `topology = ...`")],
    available_now: AvailableNow = False,
    drain: Drain = False,
    report: ReportFile = None,
    progress: Progress = ProgressStyle.AUTO,
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Run a topology on events in event-time order, and track each until its tree is done."""
    load_topology(topology)  # what is wrong with it is told at once, and not after Spark's start
    submit(
        PROCESS_JOB,
        settings,
        arguments=[str(topology)],
        available_now=available_now,
        drain=drain,
        report=report,
        progress=progress,
        master=master,
        conf=conf,
    )
