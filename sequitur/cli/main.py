"""The command-line program."""

from __future__ import annotations

import typer

from sequitur.base.program import run_program
from sequitur.cli.commands import EXAMPLES, ProgramCommands
from sequitur.errors import SequiturError

app = typer.Typer(
    name="sequitur",
    cls=ProgramCommands,
    help="Write events to Kafka once and in order, and read them in event-time order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _program() -> None:
    """Do nothing before a command."""


def main() -> None:
    run_program("sequitur", app, errors=(SequiturError,), examples=EXAMPLES)
