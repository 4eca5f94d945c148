"""How every program begins and ends: an error is one sentence, and not a traceback.

| status | when |
|---|---|
| 2 | arguments or settings were refused |
| 3 | the program could not do its work; one line says why |
| 4 | a bounded run of a job could use none of the rows it read; one line says why |
| 130 | Ctrl-C |

`--debug`, which every command takes, adds the traceback.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from contextvars import ContextVar
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

FAILED_EXIT_CODE: Final = 3
"""The program could not do its work."""
NOTHING_USABLE_EXIT_CODE: Final = 4
"""All rows of a bounded run were quarantined: it did its work, and nothing came of it."""
INTERRUPTED_EXIT_CODE: Final = 130
"""Ctrl-C, as shells have it: 128 and the signal's number."""

_debug: ContextVar[bool] = ContextVar("debug", default=False)


def is_debugging() -> bool:
    """Return whether `--debug` was given."""
    return _debug.get()


def run_program(name: str, app: typer.Typer, *, errors: tuple[type[Exception], ...]) -> NoReturn:
    """Run the command line of a program, and end the process with its status.

    Args:
        name: The program's name in error messages.
        app: Its commands.
        errors: Exceptions that are raised on purpose: their text is the whole sentence.

    Raises:
        SystemExit: Always.
    """
    _debug.set(False)
    try:
        command = typer.main.get_command(app)
        _add(_debug_flag(), command)
        sys.exit(command(prog_name=name))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:  # noqa: BLE001 - nobody is above it
        # The reader of standard error may be gone.
        with contextlib.suppress(OSError):
            typer.echo(f"{name}: {sentence(error, errors=errors)}", err=True)
            if is_debugging():
                traceback.print_exc()
        sys.exit(FAILED_EXIT_CODE)
    finally:
        # From here on a Ctrl-C would only show a traceback of the interpreter's own end.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def sentence(error: Exception, *, errors: tuple[type[Exception], ...]) -> str:
    """Return what to tell a user of an exception.

    Args:
        error: The exception.
        errors: Exceptions that are raised on purpose: their text is the whole sentence.
    """
    if isinstance(error, errors):
        return str(error)
    first_line = str(error).strip().partition("\n")[0]
    hint = "" if is_debugging() else " (--debug shows where)"
    if isinstance(error, OSError):  # it names file and reason by itself
        return f"{first_line}{hint}"
    kind = type(error).__name__
    return f"{kind}: {first_line}{hint}" if first_line else f"{kind}{hint}"


def _debug_flag() -> Any:
    """Return the flag, as typer makes it."""

    def template(
        debug: Annotated[
            bool,
            typer.Option(
                "--debug",
                help="Show the traceback of an error",
                metavar="",
                is_eager=True,
                expose_value=False,
                callback=_remember,
            ),
        ] = False,
    ) -> None:
        """Has no other use."""

    app = typer.Typer(add_completion=False)
    app.command()(template)
    (flag,) = typer.main.get_command(app).params
    return flag


def _remember(given: bool) -> None:
    if given:
        _debug.set(True)


def _add(flag: Any, command: Any) -> None:
    """Add a flag to a command and all its subcommands."""
    command.params.append(flag)
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            _add(flag, below)
