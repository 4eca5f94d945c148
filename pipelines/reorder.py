r"""The reorder job, for spark-submit.

    spark-submit --jars "$(python -m pipelines.jars list spark | paste -sd,)" \
        pipelines/reorder.py --config job.toml

One JSON line a step on standard output, and the final report as the last one; on a terminal one
line that renews itself, and the report as a table. spark-submit hides the terminal, so say
`--progress live`; `sequitur reorder` does.
"""

from __future__ import annotations

import typer

from pipelines._progress import ProgressStyle
from pipelines._submitted import run_submitted
from pipelines.settings import AvailableNow, Drain, Progress, ReorderJob, ReportFile
from producer.settings_flags import with_flags

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
@with_flags(ReorderJob)
def reorder(
    settings: ReorderJob,
    available_now: AvailableNow = False,
    drain: Drain = False,
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
        report=report,
        progress=progress,
    )


if __name__ == "__main__":
    app()
