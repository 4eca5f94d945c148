"""The settings of the jobs, composed of the sections of the packages below."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sequitur.consumer import ReorderSettings
from sequitur.consumer.topology import ProcessSettings
from sequitur.pipelines.ordering.progress import ProgressStyle
from sequitur.producer.settings import KafkaSettings, Settings


class ReorderJob(Settings):
    """What the reorder job needs."""

    kafka: KafkaSettings
    reorder: ReorderSettings


class ProcessJob(Settings):
    """What the process job needs: a topology behind the reorder stage."""

    kafka: KafkaSettings
    reorder: ReorderSettings
    process: ProcessSettings = ProcessSettings()


# What a single run is told beside its settings; the job and `sequitur reorder` take the same.
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="End when what is there now is read")
]
Drain = Annotated[bool, typer.Option("--drain", help="At the end release what is held, too")]
ResetInput = Annotated[
    bool,
    typer.Option(
        "--reset-input",
        help="Once, when the job says so: read on where its log has got to, and topics that were "
        "made anew from their beginning",
    ),
]
Progress = Annotated[
    ProgressStyle,
    typer.Option("--progress", help="live: one line that renews itself; json: a line a step"),
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", help="Write the final report to this file, as JSON")
]
