"""Flags made from the settings themselves, so that no flag is ever forgotten or renamed alone."""

from __future__ import annotations

import functools
import inspect
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from producer.settings import (
    Settings,
    SettingsError,
    environment_name,
    fields_of,
    flag_name,
    format_duration,
    load_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

S = TypeVar("S", bound=Settings)

BAD_SETTINGS_EXIT_CODE = 2


def with_flags(model: type[S]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a typer command of a function that takes `settings: model` first.

    The command gets `--config FILE` and one flag for each setting of the model, beside the
    function's own further parameters. Settings that are refused are printed, one a line, and end
    the program with status 2.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        flags = _flag_parameters(model)
        fields = {flag.name for flag in flags}

        @functools.wraps(function)
        def command(*, config: Path | None = None, **given: Any) -> None:
            chosen = {name: value for name, value in given.items() if name in fields}
            rest = {name: value for name, value in given.items() if name not in fields}
            try:
                settings = load_settings(model, config=config, environ=os.environ, flags=chosen)
            except SettingsError as error:
                typer.echo(str(error), err=True)
                raise typer.Exit(BAD_SETTINGS_EXIT_CODE) from None
            function(settings, **rest)

        config = inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Path | None, typer.Option("--config", help="TOML file with the settings")
            ],
        )
        parameters = [
            *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own),
            config,
            *flags,
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def given_flags(settings: Settings) -> list[str]:
    """The settings of a program as flags, for handing them to another process.

    All that have a value, defaults too, so that the other process' own environment changes nothing;
    but never a password: that goes by the environment. An empty list is no value.
    """
    words: list[str] = []
    dumped = settings.model_dump(mode="json")
    for section, field, _ in fields_of(type(settings)):
        value = dumped.get(section, {}).get(field)
        if value is None or value == [] or "password" in field:
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
    for section, field, info in fields_of(model):
        if "password" in field:
            continue  # a flag shows in the list of processes
        if field in parameters:
            raise TypeError(f"{model.__name__}: two sections have a setting {field}")
        is_switch = info.annotation is bool
        names = f"{flag_name(field)}/--no-{flag_name(field)[2:]}" if is_switch else flag_name(field)
        option = typer.Option(names, help=_help(section, field, info), show_default=False)
        parameters[field] = inspect.Parameter(
            field,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[(bool if is_switch else str) | None, option],
        )
    return list(parameters.values())


def _help(section: str, field: str, info: FieldInfo) -> str:
    default = info.get_default(call_default_factory=True, validated_data={})
    shown = "" if info.is_required() or default in (None, ()) else f"default {_shown(default)}; "
    return f"{info.description or field} ({shown}{environment_name(section, field)})"


def _shown(default: object) -> str:
    return format_duration(default) if isinstance(default, timedelta) else str(default)
