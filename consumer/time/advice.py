"""What to do where rows have no usable event time, from what some of them do have."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sequitur.consumer.time.event_time import EventTimeSource, EventTimeSpec
from sequitur.consumer.time.reasons import LIKELY_UNITS, NO_KEY, TOO_LARGE
from sequitur.consumer.time.time_text import TimeFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MOST_NAMED: Final = 20
_MOST_SHOWN: Final = 40
_DEEPEST: Final = 3
_UNITS: Final = {reason: unit for unit, reason in LIKELY_UNITS.items()}


class UnusableRow(NamedTuple):
    """What is looked at of a row without a usable event time."""

    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def advice(spec: EventTimeSpec, reason: str, rows: Sequence[UnusableRow]) -> str:
    """Return what to write as `event_time`, or what such rows have instead; may be empty.

    Args:
        spec: Where the event time was looked for.
        reason: Why the rows were quarantined.
        rows: Some of them.
    """
    if reason in _UNITS:
        unit = _UNITS[reason]
        return f'write `as {unit}`: event_time = "{replace(spec, format=TimeFormat.parse(unit))}"'
    if reason in {NO_KEY, TOO_LARGE} or spec.source is EventTimeSource.KAFKA_TIMESTAMP:
        return ""
    have = _headers if spec.source is EventTimeSource.HEADER else _fields
    return f"event_time = {str(spec)!r}, {have(spec, rows)}"


def _headers(spec: EventTimeSpec, rows: Sequence[UnusableRow]) -> str:
    for row in rows:
        for name, value in reversed(row.headers):
            if name == spec.path[0] and value is not None:
                return _example(value.decode(errors="replace"))
    return _named((name for row in rows for name, _ in row.headers), "header")


def _fields(spec: EventTimeSpec, rows: Sequence[UnusableRow]) -> str:
    documents = [found for row in rows if isinstance(found := _document(row.value), dict)]
    if not documents:
        return "and their values are no JSON objects"
    for document in documents:
        if (time := _at(document, spec.path)) is not None:
            return _example(time if isinstance(time, str) else json.dumps(time))
    return _named((name for document in documents for name in _paths(document)), "field")


def _named(names: Iterable[str], kind: str) -> str:
    """Say which names there are, each once and in the order in which they were seen."""
    different = list(dict.fromkeys(names))
    if not different:
        return f"and they have no {kind}s"
    more = len(different) - _MOST_NAMED
    listed = ", ".join(map(_in_line, different[:_MOST_NAMED]))
    listed += f" and {more:,} more" if more > 0 else ""
    return f"and they have the {kind}{'s' if len(different) > 1 else ''} {listed}"


def _example(text: str) -> str:
    return f"where one has {_cut(text)!r}"


def _in_line(name: str) -> str:
    """Return others' name as a line of a log can hold it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in _cut(name))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _document(value: bytes | None) -> Any:
    try:
        return json.loads((value or b"").decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _at(node: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(node, dict):
            return None
        node = node.get(name)
    return node


def _paths(node: dict[str, Any], prefix: str = "", depth: int = 1) -> Iterator[str]:
    """Yield the paths of an object's fields, as `json:` takes them."""
    for name, value in node.items():
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from _paths(value, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}"
