"""The commands that run a job: through spark-submit, or in this process without Spark.

`sequitur reorder` runs the reorder job, and `reorder inspect` shows its checkpoint. `sequitur
process` runs a user's topology behind the reorder stage.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from sequitur.base.extras import DISTRIBUTION, load
from sequitur.base.flags import given_flags, with_flags
from sequitur.base.program import is_debugging, printing_to_stderr
from sequitur.base.settings import environment_name, fields_of, is_secret
from sequitur.cli.console import table_console
from sequitur.errors import MissingExtraError
from sequitur.pipelines.java import find_java
from sequitur.pipelines.launch import (
    DEFAULT_MASTER,
    PROCESS_JOB,
    REORDER_JOB,
    WAITING_MASTER,
    chosen_master,
    require_user_name,
    run_spark_submit,
    spark_submit_command,
)
from sequitur.pipelines.ordering.progress import ProgressStyle, instant
from sequitur.pipelines.run_options import (
    DropState,
    ProcessJob,
    ReorderJob,
    RunOptions,
    drop_flags,
    with_options,
)
from sequitur.pipelines.spark_settings import spark_home
from sequitur.pipelines.topology.topology_file import load_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from sequitur.pipelines.ordering.inspection import CheckpointReport
    from sequitur.pipelines.ordering.opening import ProcessStage

_NARROWEST: Final = 110
"""The tables need so many columns. A pipe has none, and rich would take 80."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    # spark master; None for the one in Spark's settings, or this machine
    master: str | None = field(
        default=None,
        metadata={
            "help": f"Spark master (that of spark-defaults.conf, or {DEFAULT_MASTER}, "
            f"or {WAITING_MASTER} with `concurrency`)"
        },
    )
    # spark settings, as KEY=VALUE
    conf: list[str] | None = field(
        default=None, metadata={"help": "Spark setting, as KEY=VALUE. May be repeated"}
    )

    def settings(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for given in self.conf or ():
            key, separator, value = given.partition("=")
            if not separator:
                raise typer.BadParameter(f"{given!r}: expected KEY=VALUE", param_hint="--conf")
            found[key] = value
        return found


def run_job(
    job: Path,
    settings: ReorderJob | ProcessJob,
    options: RunOptions,
    spark: SparkOptions,
    *,
    arguments: Sequence[str] = (),
    process: ProcessStage | None = None,
) -> None:
    """Run a job with these settings and flags, on the runner in its settings."""
    if settings.reorder.runner == "spark":
        _submit(job, settings, options, spark, arguments=arguments, process=process)
        return
    if spark.master is not None or spark.conf:
        flag = "--conf" if spark.master is None else "--master"
        raise typer.BadParameter(
            "the local runner has no Spark: leave it out, or give --runner spark", param_hint=flag
        )
    for module in ("cloudpickle", "pyarrow"):
        load(module, "a job without Spark")
    from sequitur.pipelines.local.job import run_here  # noqa: PLC0415 - other commands need no Arrow

    run_here(settings.kafka, settings.reorder, options, process)


def _submit(
    job: Path,
    settings: ReorderJob | ProcessJob,
    options: RunOptions,
    spark: SparkOptions,
    *,
    arguments: Sequence[str],
    process: ProcessStage | None,
) -> None:
    """Replace this process with spark-submit, which runs the job with these settings and flags."""
    try:
        spark_home()  # report the missing Spark, not what it contains
    except MissingExtraError as error:
        raise MissingExtraError(
            f"{error}. Or run the job without Spark: --runner local (pip install "
            f"'{DISTRIBUTION}[local]')"
        ) from error
    from sequitur.pipelines.ordering.preflight import check_before_spark  # noqa: PLC0415 - other commands need no Spark
    from sequitur.pipelines.topology.topology_file import check_stores  # noqa: PLC0415 - likewise

    find_java()
    require_user_name()
    spark_settings = spark.settings()
    waits = process is not None and process.topology.is_concurrent
    default = WAITING_MASTER if waits else DEFAULT_MASTER
    master = spark.master or chosen_master(spark_settings, default)
    if process is not None:
        check_stores(process.settings, process.topology, master)
    check_before_spark(settings.kafka, settings.reorder, process)
    # Through spark-submit the job sees neither the terminal nor its width: pass both.
    shown = options.progress.on(is_terminal=sys.stdout.isatty())
    words = [*arguments, *given_flags(settings), *replace(options, progress=shown).flags()]
    words += ["--debug"] if is_debugging() else []
    if shown is ProgressStyle.LIVE:
        os.environ["COLUMNS"] = str(shutil.get_terminal_size().columns)
    os.environ.update(secrets_of(settings))
    command = spark_submit_command(
        words,
        job=job,
        master=master,
        options=spark_settings,
        checkpoint=settings.reorder.checkpoint,
    )
    run_spark_submit(command)


def secrets_of(settings: ReorderJob | ProcessJob) -> dict[str, str]:
    """Return the settings that have no flag. A job gets them in its environment."""
    found = {}
    for section, name, info in fields_of(type(settings)):
        secret = getattr(getattr(settings, section), name) if is_secret(info) else None
        if secret is not None:
            found[environment_name(section, name)] = secret.get_secret_value()
    return found


class _JobUnlessNamed(TyperGroup):
    """`sequitur reorder FLAGS` is the job; a name in the first place is another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the job's name in front if the words name no command."""
        named = next((word for word in args if word != "--debug"), None)
        if named not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


reorder_app = typer.Typer(
    cls=_JobUnlessNamed,
    help="Restore event-time order: run the reorder job.",
    pretty_exceptions_enable=False,
)


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


@reorder_app.command(cls=_JobBesideCommands)
@with_flags(ReorderJob)
@with_options
def run(settings: ReorderJob, options: RunOptions, spark: SparkOptions) -> None:
    """Restore event-time order: run the reorder job, on Spark or on this machine alone."""
    run_job(REORDER_JOB, settings, options, spark)


@with_flags(ProcessJob)
@with_options
def run_topology(
    settings: ProcessJob,
    topology: Annotated[Path, typer.Argument(help="Python file that says `topology = ...`")],
    options: RunOptions,
    spark: SparkOptions,
    drop_state: DropState = None,
) -> None:
    """Run a topology on events in event-time order, and track each until its tree is done."""
    from sequitur.pipelines.ordering.opening import ProcessStage  # noqa: PLC0415 - other commands need no Spark

    # Report errors in the file at once instead of after Spark's start.
    with printing_to_stderr():
        loaded = load_topology(topology)
    run_job(
        PROCESS_JOB,
        settings,
        options,
        spark,
        arguments=[str(topology), *drop_flags(drop_state)],
        process=ProcessStage(loaded, settings.process, tuple(drop_state or ())),
    )


@reorder_app.command()
def inspect(
    checkpoint: Annotated[str, typer.Argument(help="The job's folder, a path or a URI")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not tables")] = False,
) -> None:
    """Show frontier, clocks, held rows, keys and the last steps of a job, running or not.

    The command only reads, and needs no Spark.
    """
    load("pyarrow", "the report of a checkpoint")
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
    if report.empty_partitions:
        table.add_row("empty partitions", f"{report.empty_partitions:,}, which the topic gained")
    table.add_row("frontier", instant(report.frontier_ms))
    totals = report.done.totals
    table.add_row("read", f"{totals.read:,}")
    table.add_row("released", f"{totals.released:,}")
    table.add_row("late", f"{totals.late:,}")
    quarantined = ", ".join(f"{why} {rows:,}" for why, rows in sorted(totals.quarantined.items()))
    table.add_row("quarantined", f"{sum(totals.quarantined.values()):,} {quarantined}".strip())
    for name in ("duplicates", "skipped", "held"):
        table.add_row(name, f"{getattr(totals, name):,}")
    if report.staged:
        rows = sum(one.counts.read for one in report.staged)
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
