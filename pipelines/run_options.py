"""What a job is given: its settings, by section, and the options of a single run.

The scripts for spark-submit, `sequitur reorder`, `sequitur process` and the demo all take the
options from `RunOptions`: a field is the flag, its default, its help, and what is handed on to
spark-submit.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path  # noqa: TC003 - flags are made of the types
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

from sequitur.base.settings import Settings, flag_name
from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.topology import ProcessSettings
from sequitur.kafka.settings import KafkaSettings
from sequitur.pipelines.ordering.progress import ProgressStyle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ReorderJob(Settings):
    """What the reorder job needs."""

    kafka: KafkaSettings
    reorder: ReorderSettings


class ProcessJob(ReorderJob):
    """What the process job needs: a topology behind the reorder stage."""

    process: ProcessSettings = ProcessSettings()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a single run beside its settings; each field's help says what it means."""

    available_now: bool = field(
        default=False, metadata={"help": "End when all rows that are there at the start are read"}
    )
    drain: bool = field(
        default=False, metadata={"help": "At the end, release all held rows and close all windows"}
    )
    reset_input: bool = field(
        default=False,
        metadata={
            "help": "Only when the job asks for it: read on from the end of its log, and read "
            "recreated topics from their beginning"
        },
    )
    report: Path | None = field(
        default=None, metadata={"help": "Write the final report to this file, as JSON"}
    )
    progress: ProgressStyle = field(
        default=ProgressStyle.AUTO,
        metadata={
            "help": "live: one line that is updated in place. text, json: a line for each step"
        },
    )

    def flags(self) -> list[str]:
        """Return the options as flags, for handing them to another process."""
        words: list[str] = []
        for one in fields(self):
            value, flag = getattr(self, one.name), flag_name(one.name)
            if isinstance(value, bool):
                words += [flag] if value else []
            elif value is not None:
                words += [flag, str(value)]
        return words


DropState: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="Drop the state of this keyed bolt, which is gone. May be repeated"),
]
"""An option of a topology's run."""


def drop_flags(names: Sequence[str] | None) -> list[str]:
    """Return the option as flags, for handing it to another process."""
    return [word for name in names or () for word in ("--drop-state", name)]


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function with parameters of classes of options: a flag for each field.

    The class of such a parameter is a dataclass; the metadata of its fields has the help.
    """
    parameters = inspect.signature(function, eval_str=True).parameters
    groups = {
        name: one.annotation
        for name, one in parameters.items()
        if is_dataclass(one.annotation) and isinstance(one.annotation, type)
    }
    members = {name: [one.name for one in fields(group)] for name, group in groups.items()}

    @functools.wraps(function)
    def command(*positional: Any, **given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{member: given.pop(member) for member in members[name]})
        function(*positional, **given)

    kept = [one for name, one in parameters.items() if name not in groups]
    flags = [flag for group in groups.values() for flag in _flags(group)]
    shown = inspect.Signature([*kept, *flags])
    command.__signature__ = shown  # type: ignore[attr-defined]
    command.__annotations__ = {name: one.annotation for name, one in shown.parameters.items()}
    return command


def _flags(group: type[Any]) -> list[inspect.Parameter]:
    types = get_type_hints(group)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=Annotated[
                types[one.name], typer.Option(flag_name(one.name), help=one.metadata["help"])
            ],
        )
        for one in fields(group)
    ]
