"""Event time of a record: where it stands, and what counts as one.

Where (`EventTimeSpec`): `json:<path>` in the value (`json:occurred_at`, `json:meta.at`),
`header:<name>`, or `kafka-timestamp`.

What, as text after surrounding blanks are cut:

- a decimal number of epoch milliseconds, fractions floored: `1700000000123`, `1.7e12`,
  `"1700000000123"`;
- an ISO 8601 calendar time: `2026-11-20`, `2026-11-20T10:15`, `2026-11-20 10:15:00.123+01:00`,
  `...Z`. Without a zone it is UTC. Digits beyond microseconds are cut. A leap second is not a time.

JSON follows the reader of Spark's `get_json_object`: of equal names the first that is not null
counts, what follows the document is not read, bytes that are not UTF-8 are replaced. (Spark also
takes strings in single quotes, which is not JSON and which this reference refuses.) Of equal header
names the last counts, as in Kafka's own `lastHeader`.

This module is the reference. The job computes the same as Spark columns, and a test holds the two
together.
"""

from __future__ import annotations

import calendar
import json
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from consumer._errors import EventTimeSpecError
from consumer._reasons import MISSING, NEGATIVE, TOO_FAR_FUTURE, UNPARSABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TIME_MS: Final = 2**63 - 1

# ASCII digits only: [0-9] and not \d, so that Python and Java agree.
NUMBER_PATTERN: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
ISO_PATTERN: Final = (
    r"^([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"([T ]([0-9]{2}):([0-9]{2})(:([0-9]{2})([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?$"
)
# What Spark's casts trim: ASCII blanks and control characters.
BLANKS: Final = "".join(map(chr, (*range(0x21), 0x7F)))

_NUMBER = re.compile(NUMBER_PATTERN.removesuffix("$") + r"\Z")
_INTEGER = re.compile(r"^[+-]?[0-9]+\Z")
_ISO = re.compile(ISO_PATTERN.removesuffix("$") + r"\Z")
_MAX_ZONE_MINUTES = 18 * 60  # java.time's limit
_MAX_DIGITS = 4_000  # int() refuses more than 4,300
_MAX_MINUTE = 59
_MAX_SECOND = 59
_MAX_HOUR = 23


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
    """

    source: EventTimeSource
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `json:<path>`, `header:<name>` or `kafka-timestamp`.

        Raises:
            EventTimeSpecError: It is none of these, or a name in it cannot be used.
        """
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
            "no ' * ? in names), header:<name> or kafka-timestamp"
        )

    def of(
        self,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        timestamp_ms: int,
    ) -> int | None:
        """Event time of a record in epoch ms, None when it has no usable one."""
        return read_event_time(
            self, value=value, headers=headers, kafka_timestamp_ms=timestamp_ms
        ).ms

    def __str__(self) -> str:
        return ":".join(filter(None, (self.source.value, ".".join(self.path))))


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
    latest_ms: int = MAX_TIME_MS,
) -> EventTime:
    """Event time of one record.

    Args:
        spec: Where it stands.
        value: The record's value.
        headers: The record's headers, in order.
        kafka_timestamp_ms: The record's timestamp; Kafka's own "none" is -1.
        latest_ms: Now + max_future_skew; anything later is a broken clock.
    """
    match spec.source:
        case EventTimeSource.KAFKA_TIMESTAMP:
            found = (
                EventTime(reason=MISSING)
                if kafka_timestamp_ms < 0
                else EventTime(kafka_timestamp_ms)
            )
        case EventTimeSource.HEADER:
            values = [item for name, item in headers or () if name == spec.path[0]]
            found = _of_text(None if not values or values[-1] is None else _decode(values[-1]))
        case EventTimeSource.JSON:
            found = _of_json(value, spec.path)
    if found.ms is None:
        return found
    if found.ms < 0:
        return EventTime(reason=NEGATIVE)
    return EventTime(reason=TOO_FAR_FUTURE) if found.ms > latest_ms else found


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


def _of_json(value: bytes | None, path: tuple[str, ...]) -> EventTime:
    if value is None:
        return EventTime(reason=MISSING)
    try:
        document, _ = _decoder.raw_decode(_decode(value).lstrip(" \t\r\n"))
    except (ValueError, RecursionError):
        return EventTime(reason=UNPARSABLE)
    found = _first(document, path)
    if found is None or isinstance(found, str):
        return _of_text(found)
    return EventTime(reason=UNPARSABLE)  # true, false, an array, an object


def _first(node: object, path: tuple[str, ...]) -> object | None:
    if not path:
        return node
    if isinstance(node, _Object):
        for name, child in node:
            if name == path[0] and (found := _first(child, path[1:])) is not None:
                return found
    return None


def _of_text(text: str | None) -> EventTime:
    if text is None:
        return EventTime(reason=MISSING)
    trimmed = text.strip(BLANKS)
    if _INTEGER.match(trimmed) and len(trimmed) < _MAX_DIGITS and abs(int(trimmed)) <= MAX_TIME_MS:
        return EventTime(int(trimmed))
    if _NUMBER.match(trimmed):
        number = float(trimmed)
        if math.isinf(number):
            return EventTime(reason=UNPARSABLE)
        return EventTime(max(-MAX_TIME_MS, min(math.floor(number), MAX_TIME_MS)))
    if iso := _ISO.match(trimmed):
        return _of_iso(iso)
    return EventTime(reason=UNPARSABLE)


def _of_iso(match: re.Match[str]) -> EventTime:
    year, month, day = (int(match[i]) for i in (1, 2, 3))
    hour, minute, second = (int(match[i] or 0) for i in (5, 6, 8))
    zone = match[10] or "Z"
    offset = 0
    if zone != "Z":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        hours, minutes = int(digits[:2]), int(digits[2:])
        if minutes > _MAX_MINUTE or hours * 60 + minutes > _MAX_ZONE_MINUTES:
            return EventTime(reason=UNPARSABLE)
        offset = (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
    # A leap year stands in for year 0, which calendar does not know; both lie before 1970.
    days = calendar.monthrange(year or 4, month)[1] if 1 <= month <= 12 else 0  # noqa: PLR2004
    if not 1 <= day <= days or hour > _MAX_HOUR or minute > _MAX_MINUTE or second > _MAX_SECOND:
        return EventTime(reason=UNPARSABLE)
    seconds = calendar.timegm((year or 4, month, day, hour, minute, second)) - offset * 60
    micros = int((match[9] or ".0")[1:7].ljust(6, "0"))
    return EventTime(seconds * 1000 + micros // 1000)
