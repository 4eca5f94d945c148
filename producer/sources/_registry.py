"""The sources there are: each module of this folder whose name has no `_` in front is one.

So a new source is one new file: its name is the module's, and `SOURCE` says the rest.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydantic import Field, create_model, field_validator, model_validator

from sequitur.base.json_field import parse_key
from sequitur.errors import SourceSpecError
from sequitur.producer.sources._lines import EventParser, TextParser, parse_header
from sequitur.producer.sources._source import CommonSettings, SourceKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sequitur.producer.sources._source import Source
    from sequitur.producer.sources.cpu import CpuSettings
    from sequitur.producer.sources.file import FileSettings
    from sequitur.producer.sources.http import HttpSettings
    from sequitur.producer.sources.replay import ReplaySettings

_FOLDER: Final = __name__.rpartition(".")[0]


def _found() -> Iterator[tuple[str, SourceKind[Any]]]:
    for module in iter_modules(import_module(_FOLDER).__path__):
        if not module.name.startswith("_"):
            yield module.name, import_module(f"{_FOLDER}.{module.name}").SOURCE


KINDS: Final[Mapping[str, SourceKind[Any]]] = dict(sorted(_found()))
_FORMS: Final = [f"{name}:{kind.takes}" if kind.takes else name for name, kind in KINDS.items()]
NAMES: Final = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"


def kind_of(source: str) -> SourceKind[Any]:
    """Return the kind that a setting `source` names."""
    name, colon, _ = source.partition(":")
    kind = KINDS.get(name)
    if kind is None:
        raise SourceSpecError(f"source {source!r}: expected {NAMES}")
    if kind.takes:
        try:
            kind.verify(source)
        except ValueError as error:
            raise SourceSpecError(f"source {source!r}: {error}") from None
    elif colon:
        raise SourceSpecError(f"source {source!r}: {name} takes nothing after it")
    return kind


# The settings of one kind may derive from those of another, and stand before them then.
_SECTIONS: Final[list[type[CommonSettings]]] = sorted(
    dict.fromkeys(kind.settings for kind in [*KINDS.values()][::-1]),
    key=lambda one: -len(one.__mro__),
)


def _panels() -> dict[str, tuple[str, ...]]:
    panels: dict[str, tuple[str, ...]] = {}
    for section in _SECTIONS:
        # Switches stand by themselves: see `panel_of`.
        own = [
            name
            for name, field in section.model_fields.items()
            if name not in CommonSettings.model_fields and field.annotation is not bool
        ]
        panels[section.title] = (*panels.get(section.title, ()), *own)
    return panels | {CommonSettings.title: tuple(CommonSettings.model_fields)}


if TYPE_CHECKING:  # for who checks types: those known when this was written

    class _OfAllKinds(FileSettings, CpuSettings, HttpSettings, ReplaySettings): ...

else:
    _OfAllKinds = create_model("_OfAllKinds", __base__=tuple(_SECTIONS))


class SourceSettings(_OfAllKinds):
    """What the daemon reads, and how. Those that another source would use are passed over."""

    panels: ClassVar = _panels()

    source: str = Field(default="cpu", description=NAMES)

    @field_validator("source")
    @classmethod
    def _names_a_source(cls, value: str) -> str:
        kind_of(value)
        return value

    @model_validator(mode="after")
    def _text_is_no_json(self) -> Self:
        if self.format == "text" and kind_of(self.source).gives_json:
            raise ValueError(f"source {self.source!r} gives JSON: expected format json")
        return self


def make_source(settings: SourceSettings, *, max_event_bytes: int) -> Source:
    """Return the source, ready to run. What only one source needs is imported with it."""
    if settings.format == "text":
        parser: EventParser = TextParser(max_event_bytes)
    else:
        key = None if settings.key is None else parse_key(settings.key)
        parser = EventParser(key, max_event_bytes, [parse_header(one) for one in settings.header])
    return kind_of(settings.source).make(settings, parser)


def check_source(settings: SourceSettings) -> None:
    """Refuse at once what could not be read later. A `file` may still come."""
    kind_of(settings.source).check(settings)
