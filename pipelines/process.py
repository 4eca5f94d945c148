r"""The process job, for spark-submit: a user's topology behind the reorder stage.

    spark-submit --jars "$(python -m pipelines.jars list spark | paste -sd,)" \
        pipelines/process.py wordcount.py --config job.toml

What it prints is as of the reorder job. Further modules that the topology imports go to the tasks
by spark-submit's own `--py-files`.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from consumer import ConsumerError
from pipelines._errors import PipelineError
from pipelines._job import Behind, run_reorder
from pipelines._progress import ProgressStyle
from pipelines._shown import shown
from pipelines._stop import Stop, stop_on_signals
from pipelines._topology_file import load_topology
from pipelines.session import build_session
from pipelines.settings import AvailableNow, Drain, ProcessJob, Progress, ReportFile
from producer.settings_flags import with_flags

FAILED_EXIT_CODE = 3

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
    # py4j logs every error that crosses it; those that matter reach us as exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    stop = Stop()
    try:
        behind = Behind(load_topology(topology), settings.process)
        spark = build_session(f"sequitur run {behind.topology.name}")
        spark.sparkContext.addPyFile(str(topology))
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
                    behind=behind,
                )
            on_end(result)
            if report is not None:
                report.parent.mkdir(parents=True, exist_ok=True)
                report.write_text(json.dumps(result.as_json()) + "\n")
            spark.stop()
    except (ConsumerError, PipelineError) as error:
        typer.echo(f"process: {error}", err=True)
        raise typer.Exit(FAILED_EXIT_CODE) from None


if __name__ == "__main__":
    app()
