"""Event time of a record: where it stands, and what counts as one.

- **Where** (`EventTimeSpec`): `json:<path>` in the value (`json:occurred_at`, `json:meta.at`,
  `json:/event.created`; see `sequitur.base.json_field`), `header:<name>`, or `kafka-timestamp`. A
  format other than `ms` follows as ` as <format>`.
- **What**: `sequitur.base.time_format` reads the text, without the blanks around it.
- **JSON** is read as Spark's `get_json_object` reads it. Of equal names the first that is not null
  counts. What follows the document is not read. Bytes that are not UTF-8 are replaced. (Spark also
  takes strings in single quotes, which is not JSON and which this module refuses.)
- **Headers**: of equal names the last counts, as in Kafka's own `lastHeader`.

Pure, and the reference: the job's tasks compute the same in columns
(`sequitur.pipelines.rows.event_times`), and a test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from sequitur.base.json_field import FieldPath, first_at
from sequitur.base.text import encodable
from sequitur.base.time_format import FORMAT_BEGINS, MILLISECONDS, TimeFormat, split_format
from sequitur.consumer.reorder.reasons import MISSING, UNPARSABLE
from sequitur.consumer.reorder.time_bounds import TimeBounds
from sequitur.errors import EventTimeSpecError

if TYPE_CHECKING:
    from collections.abc import Sequence


_POINTER: Final = "json-pointer:/"
_BEFORE_POINTERS: Final = "json:/"
ALL_TIMES: Final = TimeBounds()


class EventTimeSource(StrEnum):
    """Part of the record that carries the event time."""

    JSON = "json"
    """A field of its JSON value."""
    HEADER = "header"
    """A header."""
    KAFKA_TIMESTAMP = "kafka-timestamp"
    """Its timestamp."""


@dataclass(frozen=True, slots=True)
class EventTimeSpec:
    """Where the event time of a record is.

    ::

        spec = EventTimeSpec.parse("json:at as s")
        assert spec.of(b'{"at": 1700000000}', None, 0) == 1_700_000_000_000

    Attributes:
        source: The part of the record.
        path: Names from the top of the JSON value down to the field, or the header's name.
            Otherwise empty.
        format: How it is written there.
        is_pointer: Whether the path was given as a JSON Pointer, whose names may contain dots.
    """

    source: EventTimeSource
    path: tuple[str, ...] = ()
    format: TimeFormat = MILLISECONDS
    is_pointer: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `json:<path>`, `header:<name>` or `kafka-timestamp`, with ` as <format>` or without.

        Raises:
            EventTimeSpecError: It is none of these, a name in it cannot be used, or the format is
                none.
        """
        if encodable(text) != text:  # no field or header has such a name
            raise EventTimeSpecError(f"event time {text!r}: it has half a surrogate pair")
        where, time_format = split_format(text)
        found = cls._at(where)
        if time_format.form is not None and found.source is EventTimeSource.KAFKA_TIMESTAMP:
            raise EventTimeSpecError(f"event time {text!r}: a kafka-timestamp is a number")
        return replace(found, format=time_format)

    @classmethod
    def _at(cls, text: str) -> Self:
        kind, _, name = text.partition(":")
        if text == EventTimeSource.KAFKA_TIMESTAMP:
            return cls(EventTimeSource.KAFKA_TIMESTAMP)
        if kind == EventTimeSource.HEADER and name:
            return cls(EventTimeSource.HEADER, (name,))
        why = ""
        if kind == EventTimeSource.JSON and name:
            try:
                path = FieldPath.parse(name)
            except ValueError as error:
                why = f" ({error})"
            else:
                return cls(EventTimeSource.JSON, path.names, is_pointer=path.is_pointer)
        raise EventTimeSpecError(
            f"event time {text!r}: expected json:<path> (json:occurred_at, json:meta.at, "
            f"json:/event.created){why}, header:<name> or kafka-timestamp, and its format "
            "(json:at as s)"
        )

    def of(
        self,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        timestamp_ms: int,
    ) -> int | None:
        """Return the event time of a record in epoch ms, or None if it has no usable one."""
        return read_event_time(
            self, value=value, headers=headers, kafka_timestamp_ms=timestamp_ms
        ).ms

    @property
    def _where(self) -> str:
        if self.source is EventTimeSource.JSON:
            return str(FieldPath(self.path, self.is_pointer))
        return "".join(self.path)

    @property
    def _as(self) -> str:
        if self.format == MILLISECONDS and FORMAT_BEGINS not in self._where:
            return ""
        return f"{FORMAT_BEGINS}{self.format}"

    def __str__(self) -> str:
        return ":".join(filter(None, (self.source.value, self._where))) + self._as


def identity_of(spec: EventTimeSpec) -> str:
    """Return a spec as checkpoints hold it.

    Before there were JSON Pointers `json:/a.b` was the member `b` of the member `/a`; so that no
    checkpoint changes its meaning, pointers are written otherwise.
    """
    if not spec.is_pointer:
        return str(spec)
    return str(spec).replace(_BEFORE_POINTERS, _POINTER, 1)


def current_identity(identity: str) -> str:
    """Return the event time spec of a checkpoint in the form of `identity_of`."""
    if not identity.startswith(_BEFORE_POINTERS):
        return identity
    where, begins, written = identity.rpartition(FORMAT_BEGINS)
    if not begins:
        where, written = identity, ""
    names = tuple(where.removeprefix("json:").split("."))
    pointer = str(FieldPath(names, is_pointer=True)).removeprefix("/")
    return f"{_POINTER}{pointer}{begins}{written}"


def parse_event_time_spec(text: str) -> EventTimeSpec:
    """Read a setting such as `json:occurred_at`. See `EventTimeSpec.parse`."""
    return EventTimeSpec.parse(text)


@dataclass(frozen=True, slots=True)
class EventTime:
    """An event time, or why there is none: exactly one of the two is set."""

    ms: int | None = None
    reason: str | None = None


def read_event_time(
    spec: EventTimeSpec,
    *,
    value: bytes | None = None,
    headers: Sequence[tuple[str, bytes | None]] | None = None,
    kafka_timestamp_ms: int = -1,
    bounds: TimeBounds = ALL_TIMES,
) -> EventTime:
    """Read the event time of one record.

    Args:
        spec: Where it stands.
        value: The record's value.
        headers: The record's headers, in order.
        kafka_timestamp_ms: The record's timestamp; Kafka's own "none" is -1.
        bounds: The times that are believed.
    """
    match spec.source:
        case EventTimeSource.KAFKA_TIMESTAMP:
            found = (
                EventTime(reason=MISSING)
                if kafka_timestamp_ms < 0
                else EventTime(spec.format.of_whole(kafka_timestamp_ms))
            )
        case EventTimeSource.HEADER:
            values = [item for name, item in headers or () if name == spec.path[0]]
            last = None if not values or values[-1] is None else _decode(values[-1])
            found = _of_text(last, spec.format)
        case EventTimeSource.JSON:
            found = _of_json(value, spec)
    if found.ms is None:
        return found
    reason = bounds.reason(found.ms)
    return found if reason is None else EventTime(reason=reason)


class _Object(list[tuple[str, object]]):
    """A JSON object with its repeated names."""


class _Number(str):
    """A JSON number as written."""

    __slots__ = ()


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_Number,
    parse_float=_Number,
    parse_constant=_refuse_constant,
    strict=False,  # control characters in strings, as Spark
)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


def _of_json(value: bytes | None, spec: EventTimeSpec) -> EventTime:
    if value is None:
        return EventTime(reason=MISSING)
    try:
        document, _ = _decoder.raw_decode(_decode(value).lstrip(" \t\r\n"))
    except (ValueError, RecursionError):
        return EventTime(reason=UNPARSABLE)
    found = first_at(document, spec.path, _members, is_pointer=spec.is_pointer)
    if found is None or isinstance(found, str):
        return _of_text(found, spec.format)
    return EventTime(reason=UNPARSABLE)  # true, false, an array, an object


def _members(node: object, name: str, index: int | None) -> list[object]:
    if isinstance(node, _Object):
        return [child for own, child in node if own == name and child is not None]
    if index is not None and isinstance(node, list):
        return [child for child in node[index : index + 1] if child is not None]
    return []


def _of_text(text: str | None, written: TimeFormat) -> EventTime:
    if text is None:
        return EventTime(reason=MISSING)
    found = written.read(text)
    return EventTime(reason=UNPARSABLE) if found is None else EventTime(found)
