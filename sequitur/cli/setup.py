"""What is done once after an installation, and what shows that it works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sequitur.base.program import FOUND_WRONG_EXIT_CODE, complain
from sequitur.pipelines.jars import fetch_jars


def setup(
    archive: Annotated[
        bool,
        typer.Option(
            "--archive/--no-archive",
            help="Write an archive of Spark's classes: local jobs then start with a third less CPU",
        ),
    ] = True,
) -> None:
    """Fetch the jars that jobs and broker need, and write an archive of Spark's classes.

    Run it once after an installation, as the user who runs the jobs. The jars take 50 MB, the
    archive 160 MB, in ~/.cache/sequitur or in the folder that SEQUITUR_CACHE names. Files that are
    there are kept. Ivy fetches the jars, with the settings file that SEQUITUR_IVY_SETTINGS names.
    """
    fetch_jars()
    if archive:
        from sequitur.pipelines.spark_classes import write_archive  # noqa: PLC0415 - loads Spark's

        if not write_archive():
            complain("the archive of Spark's classes could not be written. Jobs start without it")


def demo(
    seconds: Annotated[float, typer.Option(help="How long the daemons sample", min=1.0)] = 20.0,
    rate_hz: Annotated[float, typer.Option(help="Samples a second of each CPU", min=1.0)] = 100.0,
    delay: Annotated[str, typer.Option(help="How long the job waits for late events")] = "10 s",
    plot: Annotated[Path, typer.Option(help="The picture to draw")] = Path("demo.png"),
    report: Annotated[Path | None, typer.Option(help="Write the result as JSON")] = None,
) -> None:
    """Run the main job on this machine's own CPU readings, and check its output."""
    from sequitur.cli.demo import print_report, run_demo  # noqa: PLC0415 - only the demo needs it

    result = run_demo(seconds=seconds, rate_hz=rate_hz, delay=delay, plot=plot)
    print_report(result, Console())
    typer.echo(f"picture: {plot}")
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(result.as_json(), indent=2) + "\n")
    if result.problems:
        raise typer.Exit(FOUND_WRONG_EXIT_CODE)
