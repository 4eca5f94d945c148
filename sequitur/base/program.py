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
import io
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from sequitur.base.extras import how_to_install, refusal_of_namesake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOUND_WRONG_EXIT_CODE: Final = 1
"""The program did its work, and the check failed."""

REFUSED_EXIT_CODE: Final = 2
"""Arguments or settings were refused."""
FAILED_EXIT_CODE: Final = 3
"""The program could not do its work."""
NOTHING_USABLE_EXIT_CODE: Final = 4
"""A bounded run quarantined all its rows: it did its work without a result."""
INTERRUPTED_EXIT_CODE: Final = 130
"""Ctrl-C. As in shells, it is 128 and the signal's number."""

UsageError, _ClickError = typer.BadParameter.__mro__[1:3]
"""Errors of the command line itself. typer has no public names for them."""

_debug: ContextVar[bool] = ContextVar("debug", default=False)
_name: ContextVar[str] = ContextVar("name", default="")


def is_debugging() -> bool:
    return _debug.get()


def complain(text: str) -> None:
    """Print to standard error, each line behind the program's name."""
    name = _name.get()
    for line in text.splitlines():
        typer.echo(f"{name}: {line}" if name else line, err=True)


def take_stdout() -> TextIO:
    """Take standard output. All other prints go to standard error from now on."""
    sys.stdout.flush()
    taken = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return taken


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send everything that the block prints to standard error."""
    with take_stdout() as taken:
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(taken.fileno(), 1)


def run_program(
    name: str,
    app: typer.Typer,
    *,
    errors: tuple[type[Exception], ...],
    examples: Mapping[str, str] | None = None,
) -> NoReturn:
    _debug.set(False)
    _name.set(name)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # As standard error itself does: messages quote foreign text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if refusal := refusal_of_namesake():
            complain(refusal)
            sys.exit(FAILED_EXIT_CODE)
        sys.exit(command_of(app, examples or {})(prog_name=name, standalone_mode=False))
    except typer.Abort:  # the answer to a question was no
        complain("aborted")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:  # noqa: BLE001 - nobody is above it
        if isinstance(error, _ClickError):
            _refuse(error)
        # The reader of standard error may be gone.
        with contextlib.suppress(OSError):
            complain(sentence(error, errors=errors))
            if is_debugging():
                traceback.print_exc()
        sys.exit(FAILED_EXIT_CODE)
    finally:
        # From here on Ctrl-C would only show a traceback of the interpreter's shutdown.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def sentence(error: Exception, *, errors: tuple[type[Exception], ...]) -> str:
    if isinstance(error, errors):
        return str(error)
    if isinstance(error, FileNotFoundError) and error.filename is None and _has_no_folder():
        return "the working folder was removed: change to one that is there, or give absolute paths"
    if isinstance(error, ModuleNotFoundError) and (told := how_to_install(error)):
        return told
    first_line = str(error).strip().partition("\n")[0]
    hint = "" if is_debugging() else " (--debug shows where)"
    if isinstance(error, OSError):  # it names file and reason by itself
        return f"{first_line}{hint}"
    kind = type(error).__name__
    return f"{kind}: {first_line}{hint}" if first_line else f"{kind}{hint}"


def _has_no_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - it is what fails
    except FileNotFoundError:
        return True
    return False


def command_of(app: typer.Typer, examples: Mapping[str, str]) -> Any:
    command = typer.main.get_command(app)
    _complete(command, (), _flags(), examples)
    return command


def _flags() -> list[Any]:
    """Return the flags of each command, in the form that typer makes."""

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
        help: Annotated[  # noqa: A002 - the flag's name
            bool,
            typer.Option(
                "--help",
                help="Show this message and exit",
                metavar="",
                is_eager=True,
                expose_value=False,
                callback=_show_help,
            ),
        ] = False,
    ) -> None:
        """Do nothing: only its parameters are used."""

    app = typer.Typer(add_completion=False)
    app.command()(template)
    return list(typer.main.get_command(app).params)


def _remember(given: bool) -> None:
    if given:
        _debug.set(True)


def _show_help(context: typer.Context, given: bool) -> None:
    if given and not context.resilient_parsing:
        typer.echo(context.get_help())
        raise typer.Exit


def _complete(
    command: Any, words: tuple[str, ...], flags: list[Any], examples: Mapping[str, str]
) -> None:
    """Give a command and all its subcommands their flags and examples."""
    command.add_help_option = False
    command.params += flags
    for flag in command.params:
        if getattr(flag, "is_flag", False):
            flag.metavar = ""  # it takes no value, so it shows no type
    example = examples.get(" ".join(words))
    if example is not None:
        command.epilog = f"Example: {example}"
    if isinstance(command, TyperGroup):

        def complete(name: str, below: Any) -> None:
            _complete(below, (*words, name), flags, examples)

        if isinstance(command.commands, ImportedCommands):
            command.commands.on_import = complete
        else:
            for name, below in command.commands.items():
                complete(name, below)


class ImportedCommands(Mapping[str, Any]):
    """Commands of which each is imported when it is asked for: all together take a second.

    Args:
        places: Module and attribute of each, by its name: a function, or a Typer of commands.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self.on_import: Callable[[str, Any], None] = lambda _name, _command: None
        self._places = places
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            module, attribute = self._places[name].split(":")
            found = getattr(import_module(module), attribute)
            app = typer.Typer(callback=lambda: None)
            if isinstance(found, typer.Typer):
                app.add_typer(found, name=name)
            else:
                app.command(name)(found)
            self._commands[name] = typer.main.get_group(app).commands[name]
            self.on_import(name, self._commands[name])
        return self._commands[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _refuse(error: Any) -> NoReturn:
    """End with the error in the words; without any words, end with the help."""
    context = getattr(error, "ctx", None)
    said = error.format_message()
    if said and context is not None and isinstance(error, UsageError):
        said = f"{said.rstrip('.')} ({context.command_path} --help)"
    if said:
        complain(said)
    elif context is not None:
        typer.echo(context.get_help(), err=True)
    sys.exit(error.exit_code)
