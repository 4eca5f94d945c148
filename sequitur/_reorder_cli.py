"""`sequitur reorder`: the reorder job through spark-submit; `reorder inspect`: its checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from sequitur._console import table_console
from sequitur._submission import SparkOptions, submit
from sequitur.base.flags import with_flags
from sequitur.pipelines.launch import REORDER_JOB
from sequitur.pipelines.ordering.progress import instant
from sequitur.pipelines.run_options import RunOptions, with_options
from sequitur.pipelines.settings import ReorderJob
from sequitur.pipelines.spark_settings import spark_home

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from sequitur.pipelines.ordering.inspection import CheckpointReport

_NARROWEST: Final = 110
"""The tables need this many columns; a pipe has none, and rich would take 80."""


class _JobUnlessNamed(TyperGroup):
    """`sequitur reorder FLAGS` is the job; a name in the first place is another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the job's name in front where no command is named."""
        named = next((word for word in args if word != "--debug"), None)
        if named not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


class _JobBesideCommands(TyperCommand):
    """The job's own help is that of its group, so it shows the other commands, too."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the flags, and the commands below them."""
        super().format_help(ctx, formatter)
        table = Table.grid(padding=(0, 2))
        for name, command in ctx.parent.command.commands.items():
            default = " The command without a name." if command is self else ""
            table.add_row(f" {name}", f"{command.get_short_help_str(200)}{default}")
        Console().print(Panel(table, title="Commands", title_align="left", border_style="dim"))


reorder_app = typer.Typer(
    cls=_JobUnlessNamed,
    help="Restore event-time order: run the reorder job through spark-submit.",
    pretty_exceptions_enable=False,
)


@reorder_app.command(cls=_JobBesideCommands)
@with_flags(ReorderJob)
@with_options
def run(settings: ReorderJob, options: RunOptions, spark: SparkOptions) -> None:
    """Restore event-time order: run the reorder job through spark-submit."""
    submit(REORDER_JOB, settings, options, spark)


@reorder_app.command()
def inspect(
    checkpoint: Annotated[str, typer.Argument(help="The job's folder, a path or a URI")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not tables")] = False,
) -> None:
    """Show frontier, clocks, held rows, keys and the last steps of a job, running or not.

    Needs no Spark, and only reads.
    """
    spark_home()
    from sequitur.pipelines.ordering.inspection import inspect_checkpoint  # noqa: PLC0415

    report = inspect_checkpoint(checkpoint)
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
        return
    table_console(_NARROWEST).print(Group(*_tables(report)))


def _tables(report: CheckpointReport) -> list[RenderableType]:
    document = report.as_json()
    tables: list[RenderableType] = [_overview(report, document)]
    if document["partitions"]:
        tables.append(_partitions(document["partitions"]))
    if document["runs"]:
        tables.append(_runs(document["runs"]))
    if document["steps"]:
        tables.append(_steps(document["steps"]))
    return tables


def _overview(report: CheckpointReport, document: dict[str, Any]) -> Table:
    table = Table(title=f"Reorder job in {report.root}", title_justify="left", show_header=False)
    for name, value in report.job.items():
        if value:
            shown = ", ".join(value) if isinstance(value, list) else str(value)
            table.add_row(name.replace("_", " "), shown)
    table.add_section()
    table.add_row("frontier", instant(report.frontier_ms))
    totals = report.done.totals
    table.add_row("read", f"{totals.read:,}")
    table.add_row("released", f"{totals.released:,}")
    table.add_row("late", f"{totals.late:,}")
    quarantined = ", ".join(f"{why} {rows:,}" for why, rows in sorted(totals.quarantined.items()))
    table.add_row("quarantined", f"{sum(totals.quarantined.values()):,} {quarantined}".strip())
    table.add_row("duplicates", f"{totals.duplicates:,}")
    table.add_row("held", f"{totals.held:,}")
    if report.staged:
        rows = sum(one.staged.read for one in report.staged)
        table.add_row("staged", f"{rows:,} rows in {len(report.staged)} steps not decided yet")
    if totals.missing:
        table.add_row("missing", f"{totals.missing:,}")
    keys = "{rows:,} rows, {size_bytes:,} B in {files:,} files"
    table.add_row("keys", keys.format(**document["keys"]))
    learned = document["learned"]
    if isinstance(learned, dict):
        text = (
            "{late_target:.3%} is the target; {late_share:.3%} late, lately {recent_late_share:.3%}"
        )
        table.add_row("learned delay", text.format(**learned))
    return table


def _partitions(partitions: Sequence[dict[str, object]]) -> Table:
    table = _table("Clocks", "topic", "partition", "event time", "delay s", "position", "to go", "")
    for found in partitions:
        position, end = int(str(found["position"])), int(str(found["high_watermark"]))
        reached, delay_ms = found["max_event_time_ms"], int(str(found["delay_ms"]))
        table.add_row(
            str(found["topic"]),
            str(found["partition"]),
            instant(reached if isinstance(reached, int) else None),
            f"{delay_ms / 1000:.1f}",
            f"{position:,}",
            f"{max(0, end - position):,}",
            "idle" if found["was_idle"] else "live",
        )
    return table


def _runs(runs: Sequence[dict[str, int]]) -> Table:
    table = _table("Runs", "step", "rows", "held", "bytes", "from", "to")
    for found in runs:
        table.add_row(
            f"{found['step']:,}",
            f"{found['rows']:,}",
            f"{found['held']:,}",
            f"{found['size_bytes']:,}",
            instant(found["min_event_time_ms"]),
            instant(found["max_event_time_ms"]),
        )
    return table


def _steps(steps: Sequence[dict[str, object]]) -> Table:
    counted = ("read", "released", "late", "quarantined", "held", "seconds")
    table = _table("Last steps", "step", "kind", *counted)
    for found in steps:
        if found["done"]:
            table.add_row(
                str(found["step"]), str(found["kind"]), *(f"{found[c]:,}" for c in counted)
            )
        else:
            table.add_row(str(found["step"]), str(found["kind"]), "not done")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 and column == "topic" else "right")
    return table
