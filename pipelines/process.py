r"""The process job, for spark-submit: a user's topology behind the reorder stage.

    spark-submit --jars "$(python -m sequitur.pipelines.jars list spark | paste -sd,)" \
        pipelines/process.py wordcount.py --config job.toml

What it prints is as of the reorder job. Further modules that the topology imports go to the tasks
by spark-submit's own `--py-files`.
"""

from __future__ import annotations

import signal

from sequitur.base.standard_streams import reserve_descriptors

if __name__ == "__main__":
    reserve_descriptors()
    # Until the job handles it: a Ctrl-C while modules load, or Spark starts, says nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from sequitur.pipelines.python_path import leave_out_archives
from sequitur.pipelines.submitted import check_arguments, separate_output

if __name__ == "__main__":
    leave_out_archives()
    separate_output()
    check_arguments()

from pathlib import Path
from typing import Annotated

import typer

from sequitur.base.flags import with_flags
from sequitur.pipelines.ordering.job import run_job, run_submitted
from sequitur.pipelines.ordering.opening import ProcessStage
from sequitur.pipelines.run_options import DropState, ProcessJob, RunOptions, with_options
from sequitur.pipelines.topology.topology_file import load_topology

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(ProcessJob)
@with_options
def process(
    settings: ProcessJob,
    topology: Annotated[Path, typer.Argument(help="Python file that says `topology = ...`")],
    options: RunOptions,
    drop_state: DropState = None,
) -> None:
    """Run a topology on events in event-time order, and track each until its tree is done."""
    run_submitted(
        "process",
        settings.kafka,
        settings.reorder,
        options,
        load=lambda: (
            ProcessStage(load_topology(topology), settings.process, tuple(drop_state or ())),
            topology,
        ),
    )


if __name__ == "__main__":
    run_job(app)
