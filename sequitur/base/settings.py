"""Settings: TOML, each with an environment twin and a flag; wrong ones are refused by name.

Every package of Sequitur describes its own settings as a `Section`; a program composes the sections
it needs into a `Settings` model and calls `load_settings`. Where a setting is given more than once,
the flag wins over the environment, and the environment over the file:

    flag  >  SEQUITUR_<SECTION>_<FIELD>  >  KAFKA_BOOTSTRAP_SERVERS  >  TOML  >  default

One TOML file serves all programs, so a section that a program does not use is passed over; a
section, setting or `SEQUITUR_` variable that *no* program knows is an error, since a misspelt
setting that is silently ignored is how a delay of ten minutes becomes one of ten seconds.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sequitur.base.text import encodable
from sequitur.base.units import (
    Address,
    Duration,
    Size,
    Words,
    format_duration,
    milliseconds,
    parse_address,
    split,
)
from sequitur.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

__all__ = [
    "Address",
    "Duration",
    "Section",
    "Settings",
    "SettingsError",
    "Size",
    "Words",
    "environment_name",
    "fields_of",
    "flag_name",
    "format_duration",
    "former_names",
    "is_secret",
    "load_settings",
    "milliseconds",
    "parse_address",
    "split",
]

ENVIRONMENT_PREFIX: Final = "SEQUITUR_"
SECTION_NAMES: Final = ("kafka", "broker", "producer", "produce", "reorder", "process")
"""Every section of any of our programs. A program may use a subset."""

_NOT_SETTINGS: Final = frozenset(
    {
        "SEQUITUR_CACHE",
        "SEQUITUR_IVY_SETTINGS",
        # Variables of the tests:
        "SEQUITUR_CURSOR_OPERATIONS",
        "SEQUITUR_DRIVER_KILL_ROUNDS",
        "SEQUITUR_KILL_EVENTS",
        "SEQUITUR_KILL_ROUNDS",
        "SEQUITUR_KILL_SEED",
        "SEQUITUR_REFERENCE_EXAMPLES",
        "SEQUITUR_REQUIRE_CONTAINERS",
        "SEQUITUR_TEST_BROKER",
        "SEQUITUR_TEST_PATIENCE",
    }
)
_SERVICE_HOST: Final = "_SERVICE_HOST"
_OF_A_SERVICE: Final = re.compile(
    r"_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)


class Section(BaseModel):
    """A group of settings that belong together: one table of the TOML file.

    Attributes:
        title: The panel of `--help` that its flags are in.
        panels: Further panels by title, and the settings whose flags are in them.
        former: Names that settings had before, which are understood still, and the names of today.
    """

    title: ClassVar[str] = "Settings"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    former: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        hide_input_in_errors=True,  # it may hold a password
    )

    @classmethod
    def by_names_of_today(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by the names that they have today.

        Raises:
            ValueError: One is given by both its names.
        """
        found = dict(given)
        for former, name in cls.former.items():
            if former in found:
                if name in found:
                    raise ValueError(f"{former} is called {name} now: give only {name}")
                found[name] = found.pop(former)
        return found

    @field_validator("*", mode="before")
    @classmethod
    def _is_utf_8(cls, value: Any, about: ValidationInfo) -> Any:
        """Raise if text is not UTF-8: no broker and no file takes a byte of another encoding."""
        may_be_path = Path in {type(value), *_parts(cls.model_fields[str(about.field_name)])}
        if not may_be_path and any(encodable(text) != text for text in _texts(value)):
            raise ValueError("expected UTF-8, and no half of a surrogate pair")
        return value

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        return cls.by_names_of_today(given) if isinstance(given, Mapping) else given


def _parts(info: FieldInfo) -> tuple[Any, ...]:
    return (info.annotation, *get_args(info.annotation))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value from a file, a variable or a program."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


class Settings(BaseModel):
    """The sections that one program uses, built by `load_settings`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )


S = TypeVar("S", bound=Settings)
_Values = dict[str, dict[str, Any]]


def load_settings(
    model: type[S],
    *,
    config: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> S:
    sections = _sections(model)
    values: _Values = {name: {} for name in sections}
    for layer in (
        _from_toml(config, sections),
        _from_environment(environ, sections),
        _from_flags(flags, sections),
    ):
        for section, fields in layer.items():
            try:
                values[section].update(sections[section].by_names_of_today(fields))
            except ValueError as error:
                raise SettingsError(f"{section}: {error}") from None
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(details, sections) for details in error.errors()]
        raise SettingsError("\n".join(lines)) from None


def flag_name(field: str) -> str:
    """Return the flag of a field: `--idle-timeout` for `idle_timeout`."""
    return "--" + field.replace("_", "-")


def environment_name(section: str, field: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{section}_{field}".upper()


def is_secret(info: FieldInfo) -> bool:
    """Return whether a setting is secret. It then has no flag, since process lists show flags."""
    return SecretStr in _parts(info)


def fields_of(model: type[Settings]) -> Iterator[tuple[str, str, FieldInfo]]:
    """Yield (section, field, description) of every setting of a program, in the order written."""
    for section, section_model in _sections(model).items():
        for field, info in section_model.model_fields.items():
            yield section, field, info


def former_names(model: type[Settings]) -> dict[str, str]:
    """Return the present name of each setting that had another name before."""
    return {old: new for one in _sections(model).values() for old, new in one.former.items()}


def panel_of(model: type[Settings], section: str, field: str) -> str:
    """Return the panel of `--help` that a setting's flag is in; its title names the section.

    Switches that no panel names are by themselves: their second form, `--no-...`, would take the
    width of all descriptions beside it.
    """
    found = _sections(model)[section]
    named = (title for title, fields in found.panels.items() if field in fields)
    is_switch = found.model_fields[field].annotation is bool
    return f"{next(named, 'Switches' if is_switch else found.title)} ({section})"


def _sections(model: type[Settings]) -> dict[str, type[Section]]:
    sections: dict[str, type[Section]] = {}
    for name, info in model.model_fields.items():
        if name not in SECTION_NAMES:
            raise TypeError(
                f"class {model.__name__}: its field {name!r} is not named after a section. "
                f"Rename it to one of: {', '.join(SECTION_NAMES)}"
            )
        if not (isinstance(info.annotation, type) and issubclass(info.annotation, Section)):
            raise TypeError(
                f"class {model.__name__}: the type of its field {name!r} is not a section. "
                "Annotate it with a subclass of Section"
            )
        sections[name] = info.annotation
    return sections


def _from_toml(config: Path | None, sections: Mapping[str, type[Section]]) -> _Values:
    if config is None:
        return {}
    try:
        document = tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{config}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{config}: no valid TOML: {error}") from error
    found: _Values = {}
    for name, table in document.items():
        if name not in SECTION_NAMES:
            raise SettingsError(f"{config}: unknown section [{name}]{_hint(name, SECTION_NAMES)}")
        if not isinstance(table, dict):
            raise SettingsError(f"{config}: {name} is {table!r}, expected a section [{name}]")
        if name in sections:
            found[name] = table
    return found


def _from_environment(environ: Mapping[str, str], sections: Mapping[str, type[Section]]) -> _Values:
    found: _Values = {}
    if "kafka" in sections and "KAFKA_BOOTSTRAP_SERVERS" in environ:
        found["kafka"] = {"bootstrap_servers": environ["KAFKA_BOOTSTRAP_SERVERS"]}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _NOT_SETTINGS:
            continue
        if _is_of_a_service(variable, environ):
            continue
        section, _, field = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
        if section not in SECTION_NAMES or not field:
            known = [environment_name(s, f) for s, m in sections.items() for f in m.model_fields]
            raise SettingsError(f"unknown environment variable {variable}{_hint(variable, known)}")
        if section in sections:
            if field not in (*sections[section].model_fields, *sections[section].former):
                known = [environment_name(section, f) for f in sections[section].model_fields]
                raise SettingsError(
                    f"unknown environment variable {variable}{_hint(variable, known)}"
                )
            found.setdefault(section, {})[field] = value
    return found


def _is_of_a_service(variable: str, environ: Mapping[str, str]) -> bool:
    """Return whether Kubernetes set a variable, for a service named `sequitur` or `sequitur-...`.

    It sets all of them, in every pod of the namespace
    (https://kubernetes.io/docs/concepts/containers/container-environment/).
    """
    services = (
        name.removesuffix(_SERVICE_HOST) for name in environ if name.endswith(_SERVICE_HOST)
    )
    ends = (variable.removeprefix(service) for service in services if variable.startswith(service))
    # `<SERVICE>_PORT` is an address then; otherwise it may be one of our settings.
    return any(
        _OF_A_SERVICE.fullmatch(end) and (end != "_PORT" or "://" in environ[variable])
        for end in ends
    )


def _from_flags(flags: Mapping[str, Any], sections: Mapping[str, type[Section]]) -> _Values:
    found: _Values = {}
    for field, value in flags.items():
        if value is None:
            continue
        owners = [
            name
            for name, model in sections.items()
            if field in model.model_fields or field in model.former
        ]
        if len(owners) != 1:
            raise SettingsError(f"unknown setting {flag_name(field)}")
        found.setdefault(owners[0], {})[field] = value
    return found


def _hint(name: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; expected one of {', '.join(names)}"


def _explain(details: ErrorDetails, sections: Mapping[str, type[Section]]) -> str:
    """Return a pydantic error as a sentence with the setting, its value and what is expected."""
    path = [str(part) for part in details["loc"]]
    name = ".".join(path)
    if details["type"] == "extra_forbidden":
        section = sections.get(path[0])
        known = list(section.model_fields) if section is not None and len(path) > 1 else []
        return f"unknown setting {name}{_hint(path[-1], known) if known else ''}"
    if details["type"] == "missing" and len(path) == 2:  # noqa: PLR2004 - section and field
        section_name, field = path
        twin = environment_name(section_name, field)
        also = " or KAFKA_BOOTSTRAP_SERVERS" if name == "kafka.bootstrap_servers" else ""
        return (
            f"missing setting {name}: give it in the file, as {twin}{also}, "
            f"or by {flag_name(field)}"
        )
    message = details["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "expected").replace("String should", "expected to")
    section_model = sections.get(path[0]) if path else None
    info = section_model.model_fields.get(path[1]) if section_model and path[1:] else None
    if info is None or is_secret(info):  # a whole section may hold a secret, too
        return f"{name}: {message}" if name else message
    return f"{name} = {details['input']!r}: {message}"
