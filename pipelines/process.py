r"""The process job, for spark-submit: a user's topology behind the reorder stage.

    spark-submit --jars "$(python -m pipelines.jars list spark | paste -sd,)" \
        pipelines/process.py wordcount.py --config job.toml

What it prints is as of the reorder job. Further modules that the topology imports go to the tasks
by spark-submit's own `--py-files`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines._job import Behind
from pipelines._progress import ProgressStyle
from pipelines._submitted import run_submitted
from pipelines._topology_file import load_topology
from pipelines.settings import AvailableNow, Drain, ProcessJob, Progress, ReportFile
from producer.settings_flags import with_flags

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(ProcessJob)
def process(
    settings: ProcessJob,
    topology: Annotated[Path, typer.Argument(help="Python file that says `topology = ...`")],
    available_now: AvailableNow = False,
    drain: Drain = False,
    report: ReportFile = None,
    progress: Progress = ProgressStyle.AUTO,
) -> None:
    """Run a topology on events in event-time order, and track each until its tree is done."""
    run_submitted(
        "process",
        settings.kafka,
        settings.reorder,
        available_now=available_now,
        drain=drain,
        report=report,
        progress=progress,
        load=lambda: (Behind(load_topology(topology), settings.process), topology),
    )


if __name__ == "__main__":
    app()
