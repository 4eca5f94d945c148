"""What to write as `event_time` where rows have no usable one, by what some of them have."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from sequitur.base.json_field import cut, documents_of, value_at, which_fields, which_names
from sequitur.base.time_format import TimeFormat
from sequitur.consumer.reorder.event_time import EventTimeSource
from sequitur.consumer.reorder.reasons import LIKELY_UNITS, NO_KEY, TOO_LARGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.reorder.event_time import EventTimeSpec


_UNITS: Final = {reason: unit for unit, reason in LIKELY_UNITS.items()}


class UnusableRow(NamedTuple):
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
    return which_names((name for row in rows for name, _ in row.headers), "header")


def _fields(spec: EventTimeSpec, rows: Sequence[UnusableRow]) -> str:
    documents = documents_of(row.value for row in rows)
    for document in documents:
        time = value_at(document, spec.path, is_pointer=spec.is_pointer)
        if time is not None:
            return _example(time if isinstance(time, str) else json.dumps(time))
    return which_fields(documents)


def _example(text: str) -> str:
    return f"where one has {cut(text)!r}"
