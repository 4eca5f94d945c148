"""A job that a command runs: its steps are shown, then its report and its exit code."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from typing import TYPE_CHECKING, Self, TextIO

import typer
from rich.console import Console

from sequitur.base.program import NOTHING_USABLE_EXIT_CODE, complain, take_stdout
from sequitur.pipelines.ordering.progress import (
    LiveLine,
    ProgressStyle,
    TextLines,
    print_step,
    report_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry
    from sequitur.pipelines.ordering.job_report import JobReport
    from sequitur.pipelines.run_options import RunOptions

    OnDone = Callable[[StepEntry, StepDone], None]


class JobCommand:
    def __init__(self, options: RunOptions, style: ProgressStyle, output: TextIO) -> None:
        self._options = options
        self._style = style
        self._output = output

    @classmethod
    def begin(cls, settings: ReorderSettings, options: RunOptions) -> Self:
        """Take standard output before anything else is printed, and show the warnings."""
        style = options.progress.on(is_terminal=sys.stdout.isatty())
        # A program that reads the steps must not get what bolts and their modules print.
        output = take_stdout() if style is ProgressStyle.JSON else sys.stdout
        for warning in settings.warnings:
            complain(f"warning: {warning}")
        return cls(options, style, output)

    def show(self, run: Callable[[OnDone], JobReport]) -> JobReport:
        """Run the job, show each step and the report, and write the report if an option asks."""
        with self._shown() as (on_done, on_end):
            result = run(on_done)
        on_end(result)
        if self._options.report is not None:
            self._options.report.parent.mkdir(parents=True, exist_ok=True)
            self._options.report.write_text(json.dumps(result.as_json()) + "\n")
        return result

    def end(self, result: JobReport) -> None:
        """Exit with a code of its own if a bounded run could use no row."""
        if self._options.available_now and result.all_quarantined:
            complain(str(result.all_quarantined))
            raise typer.Exit(NOTHING_USABLE_EXIT_CODE)

    @contextlib.contextmanager
    def _shown(self) -> Iterator[tuple[OnDone, Callable[[JobReport], None]]]:
        """Yield what shows each step, and what shows the end."""
        if self._style is ProgressStyle.JSON:
            yield (
                functools.partial(print_step, output=self._output),
                lambda result: typer.echo(json.dumps(result.as_json()), self._output),
            )
            return
        # spark-submit stands between us and the terminal, so rich would not find one.
        console = Console(force_terminal=True) if self._style is ProgressStyle.LIVE else Console()
        line = LiveLine(console) if self._style is ProgressStyle.LIVE else TextLines(console)
        with line:
            yield line, lambda result: console.print(report_table(result.as_json()))
