"""How a job shows what it does: a line that renews itself, or JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from pipelines._progress import LiveLine, ProgressStyle, print_step, report_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from consumer import StepDone, StepEntry
    from pipelines._job import JobReport


@contextlib.contextmanager
def shown(
    progress: ProgressStyle,
) -> Iterator[tuple[Callable[[StepEntry, StepDone], None], Callable[[JobReport], None]]]:
    """What shows each step, and what shows the end.

    Args:
        progress: How.
    """
    if progress.on(is_terminal=sys.stdout.isatty()) is ProgressStyle.JSON:
        yield print_step, lambda result: typer.echo(json.dumps(result.as_json()))
        return
    # spark-submit stands between us and the terminal, so rich would not find one.
    console = Console(force_terminal=True)
    with LiveLine(console) as line:
        yield line, lambda result: console.print(report_table(result.as_json()))
