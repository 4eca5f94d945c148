r"""The reorder job, for spark-submit.

    spark-submit --jars "$(python -m sequitur.pipelines.jars list spark | paste -sd,)" \
        pipelines/reorder.py --config job.toml

One JSON line a step on standard output, and the final report as the last one; on a terminal one
line that renews itself, and the report as a table. spark-submit hides the terminal, so say
`--progress live`; `sequitur reorder` does.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Until the job handles it: a Ctrl-C while modules load, or Spark starts, says nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import typer

from sequitur.pipelines.ordering.progress import ProgressStyle
from sequitur.pipelines.ordering.submitted import run_job, run_submitted
from sequitur.pipelines.settings import (
    AvailableNow,
    Drain,
    Progress,
    ReorderJob,
    ReportFile,
    ResetInput,
)
from sequitur.producer.settings_flags import with_flags

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(ReorderJob)
def reorder(  # noqa: PLR0917 - a command's parameters are flags: given by name
    settings: ReorderJob,
    available_now: AvailableNow = False,
    drain: Drain = False,
    reset_input: ResetInput = False,
    report: ReportFile = None,
    progress: Progress = ProgressStyle.AUTO,
) -> None:
    """Restore event-time order: read topics, hold each row for the delay, write it in its place."""
    run_submitted(
        "reorder",
        settings.kafka,
        settings.reorder,
        available_now=available_now,
        drain=drain,
        reset_input=reset_input,
        report=report,
        progress=progress,
    )


if __name__ == "__main__":
    run_job("reorder", app)
