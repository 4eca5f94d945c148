"""Event time of a record: where it stands, and what counts as one.

Where (`EventTimeSpec`): `json:<path>` in the value (`json:occurred_at`, `json:meta.at`),
`header:<name>`, or `kafka-timestamp`; and ` as <format>` behind it, where it is not `ms`.

What, as text after surrounding blanks are cut (`sequitur.consumer.time.time_text`), with a unit as
format:

- a decimal number of epoch milliseconds, or of what the unit says, fractions floored:
  `1700000000123`, `1.7e12`, `"1700000000123"`;
- an ISO 8601 calendar time: `2026-11-20`, `2026-11-20T10:15`, `2026-11-20 10:15:00.123+01:00`,
  `...Z`. Without a zone it is UTC. Digits beyond microseconds are cut. A leap second is not a time.

With a form of `strptime`'s as format, nothing but what is written so.

JSON follows the reader of Spark's `get_json_object`: of equal names the first that is not null
counts, what follows the document is not read, bytes that are not UTF-8 are replaced. (Spark also
takes strings in single quotes, which is not JSON and which this reference refuses.) Of equal header
names the last counts, as in Kafka's own `lastHeader`.

This module is the reference. The job's tasks compute the same in columns, and a test holds the two
together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from sequitur.consumer.time.bounds import TimeBounds
from sequitur.consumer.time.reasons import MISSING, UNPARSABLE
from sequitur.consumer.time.time_text import MILLISECONDS, TimeFormat
from sequitur.errors import EventTimeSpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMAT_BEGINS: Final = " as "
ALL_TIMES: Final = TimeBounds()


class EventTimeSource(StrEnum):
    """Part of the record that carries the event time."""

    JSON = "json"
    HEADER = "header"
    KAFKA_TIMESTAMP = "kafka-timestamp"


@dataclass(frozen=True, slots=True)
class EventTimeSpec:
    """Where the event time of a record stands.

    Attributes:
        source: The part of the record.
        path: Names from the top of the JSON value down to the field, or the one header name; else
            empty.
        format: How it is written there.
    """

    source: EventTimeSource
    path: tuple[str, ...] = ()
    format: TimeFormat = MILLISECONDS

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `json:<path>`, `header:<name>` or `kafka-timestamp`, and ` as <format>` behind it.

        Raises:
            EventTimeSpecError: It is none of these, a name in it cannot be used, or the format is
                none.
        """
        where, begins, written = text.rpartition(_FORMAT_BEGINS)
        if not begins:
            return cls._at(text)
        found = cls._at(where)
        time_format = TimeFormat.parse(written)
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
        if kind == EventTimeSource.JSON and name:
            path = tuple(name.split("."))
            # A quote, * and ? have a meaning of their own in Spark's JSON paths, even between
            # quotes.
            if all(part and not set("'*?") & set(part) for part in path):
                return cls(EventTimeSource.JSON, path)
        raise EventTimeSpecError(
            f"event time {text!r}: expected json:<path> (json:occurred_at, json:meta.at; "
            "no ' * ? in names), header:<name> or kafka-timestamp, and what it is written in "
            "(json:at as s)"
        )

    def of(
        self,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        timestamp_ms: int,
    ) -> int | None:
        """Return the event time of a record in epoch ms; None without a usable one."""
        return read_event_time(
            self, value=value, headers=headers, kafka_timestamp_ms=timestamp_ms
        ).ms

    def __str__(self) -> str:
        where = ":".join(filter(None, (self.source.value, ".".join(self.path))))
        if self.format == MILLISECONDS and _FORMAT_BEGINS not in where:
            return where
        return f"{where}{_FORMAT_BEGINS}{self.format}"


def parse_event_time_spec(text: str) -> EventTimeSpec:
    """Read a setting such as `json:occurred_at`; see `EventTimeSpec.parse`."""
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
    found = _first(document, spec.path)
    if found is None or isinstance(found, str):
        return _of_text(found, spec.format)
    return EventTime(reason=UNPARSABLE)  # true, false, an array, an object


def _first(node: object, path: tuple[str, ...]) -> object | None:
    if not path:
        return node
    if isinstance(node, _Object):
        for name, child in node:
            if name == path[0] and (found := _first(child, path[1:])) is not None:
                return found
    return None


def _of_text(text: str | None, written: TimeFormat) -> EventTime:
    if text is None:
        return EventTime(reason=MISSING)
    found = written.read(text)
    return EventTime(reason=UNPARSABLE) if found is None else EventTime(found)
