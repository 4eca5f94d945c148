r"""The reorder job, for spark-submit.

    spark-submit --jars "$(python -m sequitur.pipelines.jars list spark | paste -sd,)" \
        pipelines/reorder.py --config job.toml

One JSON line a step on standard output, and the final report as the last one; on a terminal one
line that renews itself, and the report as a table. spark-submit hides the terminal, so say
`--progress live`; `sequitur reorder` does.
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

import typer

from sequitur.base.flags import with_flags
from sequitur.pipelines.ordering.job import run_job, run_submitted
from sequitur.pipelines.run_options import ReorderJob, RunOptions, with_options

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(ReorderJob)
@with_options
def reorder(settings: ReorderJob, options: RunOptions) -> None:
    """Restore event-time order: read topics, hold each row for the delay, write it in its place."""
    run_submitted("reorder", settings.kafka, settings.reorder, options)


if __name__ == "__main__":
    run_job(app)
