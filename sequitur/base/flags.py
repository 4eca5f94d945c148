"""Flags made from the settings themselves, so that flags and settings never differ."""

from __future__ import annotations

import functools
import inspect
import os
import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    get_args,
    get_origin,
)

import typer
from typer.models import OptionInfo

from sequitur.base.program import REFUSED_EXIT_CODE, complain
from sequitur.base.settings import (
    Settings,
    fields_of,
    flag_name,
    former_names,
    is_secret,
    load_settings,
    panel_of,
)
from sequitur.base.units import format_duration
from sequitur.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

S = TypeVar("S", bound=Settings)

_BINARY_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_LINE_END: Final = re.compile(r"(?<!\n)\n(?!\n)")
"""The end of a line within a paragraph. The terminal's width decides where lines end."""
_RULE: Final = """\
Give a setting as a flag, as the variable SEQUITUR_<SECTION>_<FIELD>, or in its section of the \
--config file. The first of these counts. The panel's title names the section. Passwords and \
tokens have no flag, only the variable.
"""


def with_flags(model: type[S]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a typer command of a function that takes `settings: model` first.

    The command gets `--config FILE` and one flag for each setting of the model, beside the
    function's own further parameters. Refused settings are printed, one per line, and end the
    program with status 2.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        flags = _flag_parameters(model)
        fields = {flag.name for flag in flags}

        @functools.wraps(function)
        def command(*, config: Path | None = None, **given: Any) -> None:
            chosen = {
                name: ",".join(value) or None if isinstance(value, list) else value
                for name, value in given.items()
                if name in fields
            }
            rest = {name: value for name, value in given.items() if name not in fields}
            try:
                settings = load_settings(model, config=config, environ=os.environ, flags=chosen)
            except SettingsError as error:
                complain(str(error))
                raise typer.Exit(REFUSED_EXIT_CODE) from None
            function(settings, **rest)

        text = inspect.cleandoc(function.__doc__ or "")
        command.__doc__ = _LINE_END.sub(" ", f"{text}\n\n{_RULE}")
        config = inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Path | None,
                typer.Option("--config", help="TOML file with the settings", metavar=""),
            ],
        )
        parameters = [
            *(_keyword_only(parameter) for parameter in own),
            config,
            *flags,
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _keyword_only(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a function's own parameter. The help text tells its type instead of the flag."""
    for given in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(given, OptionInfo):
            given.metavar = given.metavar or ""
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def given_flags(settings: Settings) -> list[str]:
    """Return the settings of a program as flags, for handing them to another process.

    All that have a value, defaults too, so that the other process' own environment changes nothing;
    but never a secret: that goes by the environment. An empty list is no value.
    """
    words: list[str] = []
    dumped = settings.model_dump(mode="json")
    for section, field, info in fields_of(type(settings)):
        value = dumped.get(section, {}).get(field)
        if value is None or value == [] or is_secret(info):
            continue
        if isinstance(value, bool):
            words.append(flag_name(field) if value else f"--no-{flag_name(field)[2:]}")
        elif isinstance(value, list):
            words.extend((flag_name(field), ",".join(map(str, value))))
        else:
            words.extend((flag_name(field), str(value)))
    return words


def _flag_parameters(model: type[Settings]) -> list[inspect.Parameter]:
    parameters: dict[str, inspect.Parameter] = {}
    for section, field, info in _by_panel(model):
        if is_secret(info):
            continue  # process lists show flags
        if field in parameters:
            raise TypeError(f"{model.__name__}: two sections have a setting {field}")
        is_switch = _flag_type(info) == bool | None
        names = f"{flag_name(field)}/--no-{flag_name(field)[2:]}" if is_switch else flag_name(field)
        option = typer.Option(
            names,
            help=_help(field, info),
            metavar="",  # all are text; the help describes the values
            show_default=False,
            rich_help_panel=panel_of(model, section, field),
        )
        parameters[field] = inspect.Parameter(
            field,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_flag_type(info), option],
        )
    for former, name in former_names(model).items():
        now = parameters[name]
        hidden = typer.Option(flag_name(former), hidden=True, metavar="", show_default=False)
        of_today: Any = now.annotation.__origin__
        parameters[former] = now.replace(name=former, annotation=Annotated[of_today, hidden])
    return list(parameters.values())


def _flag_type(info: FieldInfo) -> Any:
    """Return typer's kind of a flag: a switch, text, or text that may be repeated."""
    if info.annotation is bool:
        return bool | None
    return (list[str] if get_origin(info.annotation) is tuple else str) | None


def _by_panel(model: type[Settings]) -> list[tuple[str, str, FieldInfo]]:
    """Return the settings by panel. The first setting of each panel decides the order."""
    found = list(fields_of(model))
    panels = list(dict.fromkeys(panel_of(model, section, field) for section, field, _ in found))
    return sorted(found, key=lambda one: panels.index(panel_of(model, one[0], one[1])))


def _help(field: str, info: FieldInfo) -> str:
    text, default = described(field, info), shown_default(info)
    return f"{text} ({default})" if default else text


def described(field: str, info: FieldInfo) -> str:
    """Return what a setting is for, with its possible values if they are few."""
    text = info.description or field
    choices = _choices(info.annotation)
    if any(choice not in text for choice in choices):
        text += f": {', '.join(choices)}"
    return text


def shown_default(info: FieldInfo) -> str:
    """Return a setting's default as people write it, "required", or "" if there is none."""
    default = info.get_default(call_default_factory=True, validated_data={})
    if info.is_required():
        return "required"
    return "" if default in (None, (), "") else _shown(default)


def _choices(annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return [str(choice.value) for choice in annotation]
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in inner]
    return [choice for one in inner for choice in _choices(one)]


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, int):
        fitting = (u for u in _BINARY_UNITS if default >= u[1] and default % u[1] == 0)
        unit, size = next(fitting, ("", 1))
        return f"{default // size:,} {unit}".strip()
    return format_duration(default) if isinstance(default, timedelta) else str(default)
