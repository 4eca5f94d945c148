"""`sequitur journal`: what a producer's journal holds, and whether it is sound.

Both commands only read, and take no lock: the journal of a running producer can be looked at too.
Its newest round may then be half written and show as a torn tail.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from sequitur.cli.console import table_console
from sequitur.producer.journal.report import (
    JournalReport,
    JournalVerdict,
    inspect_journal,
    report_as_json,
    report_as_tables,
)

_NARROWEST: Final = 100
"""A segment's frames need so many columns. A pipe has none, and rich would take 80."""

journal_app = typer.Typer(
    name="journal",
    help="The journal of a producer: what it holds, and whether it is sound.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The journal's folder")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, not tables")]


@journal_app.command()
def show(directory: Directory, as_json: AsJson = False) -> None:
    """Show identity, source positions, partitions and segments. Status 2: there is no journal."""
    report = inspect_journal(directory)
    _print(report, as_json=as_json)
    if report.verdict is JournalVerdict.UNREADABLE:
        raise typer.Exit(report.exit_status)


@journal_app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Read every frame. Status 1: one is damaged or missing. Status 2: there is no journal.

    A torn tail is sound. The producer never counted on it, and cuts it off when it starts.
    """
    report = inspect_journal(directory)
    _print(report, as_json=as_json)
    if report.exit_status:
        raise typer.Exit(report.exit_status)


def _print(report: JournalReport, *, as_json: bool) -> None:
    if as_json:
        typer.echo(report_as_json(report))
        return
    if report.verdict is JournalVerdict.UNREADABLE:
        said = "; ".join(report.problems)
        typer.echo(f"sequitur: {report.directory}: {report.verdict.value}: {said}", err=True)
        return
    table_console(_NARROWEST).print(report_as_tables(report))
