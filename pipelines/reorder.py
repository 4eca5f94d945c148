r"""The reorder job, for spark-submit.

    spark-submit --jars "$(python -m pipelines.jars list spark | paste -sd,)" \
        pipelines/reorder.py --config job.toml

One JSON line a step on standard output, and the final report as the last one; on a terminal one
line that renews itself, and the report as a table. spark-submit hides the terminal, so say
`--progress live`; `sequitur reorder` does.
"""

from __future__ import annotations

import json
import logging
from typing import Final

import typer

from consumer import ConsumerError
from pipelines._errors import PipelineError
from pipelines._job import run_reorder
from pipelines._progress import ProgressStyle
from pipelines._shown import shown
from pipelines._stop import Stop, stop_on_signals
from pipelines.session import build_session
from pipelines.settings import AvailableNow, Drain, Progress, ReorderJob, ReportFile
from producer.settings_flags import with_flags

FAILED_EXIT_CODE: Final = 3

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
    # py4j logs every error that crosses it; those that matter reach us as exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    stop = Stop()
    try:
        spark = build_session("sequitur reorder")
        with stop_on_signals(stop, spark):
            with shown(progress) as (on_step, on_end):
                result = run_reorder(
                    spark,
                    settings.kafka,
                    settings.reorder,
                    stop=stop,
                    available_now=available_now,
                    drain=drain,
                    on_step=on_step,
                )
            on_end(result)
            if report is not None:
                report.parent.mkdir(parents=True, exist_ok=True)
                report.write_text(json.dumps(result.as_json()) + "\n")
            spark.stop()
    except (ConsumerError, PipelineError) as error:
        typer.echo(f"reorder: {error}", err=True)
        raise typer.Exit(FAILED_EXIT_CODE) from None


if __name__ == "__main__":
    app()
