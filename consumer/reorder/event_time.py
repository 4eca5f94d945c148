"""Event time: what one is, the clock of each source partition, the frontier, the learned delay.

Pure. Called by the jobs, and by whoever reads their log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from sequitur.base.json_field import FieldPath, first_at
from sequitur.base.text import encodable
from sequitur.base.time_format import (
    FORMAT_BEGINS,
    MAX_EVENT_TIME_MS,
    MILLISECONDS,
    UNITS,
    TimeFormat,
    TimeUnit,
    split_format,
)
from sequitur.errors import EventTimeSpecError

if TYPE_CHECKING:
    from collections.abc import Sequence


# Why a row went to a side output, and the headers that say so there.
#
# The names are part of the output format: a reader of the late or quarantine topic matches on them.


LATE: Final = "late"
"""The event time is behind what was already released."""

STALE: Final = "stale"
"""In latest mode: not newer than what was already released of its key."""

MISSING: Final = "event-time-missing"
"""No event time where the setting says it stands."""

UNPARSABLE: Final = "event-time-unparsable"
"""Not written as the setting says, or the JSON around it is broken."""

NEGATIVE: Final = "event-time-negative"
"""Before 1970."""

TOO_FAR_FUTURE: Final = "event-time-too-far-future"
"""Beyond now + max_future_skew: a clock that is wrong, and must not move ours."""

TOO_LARGE: Final = "record-too-large"
"""Larger than the output topic takes."""

NO_KEY: Final = "key-missing"
"""Without a key, which a compacted output topic takes of none."""

TOO_EARLY: Final = "event-time-too-early"
"""Before min_event_time."""

LIKELY_UNITS: Final = {
    "s": "event-time-likely-seconds",
    "ms": "event-time-likely-milliseconds",
    "us": "event-time-likely-microseconds",
    "ns": "event-time-likely-nanoseconds",
}
"""Too early or too far in the future, and neither if the number counted these: by unit."""

QUARANTINE_REASONS: Final = (
    MISSING,
    UNPARSABLE,
    NEGATIVE,
    TOO_FAR_FUTURE,
    TOO_EARLY,
    *LIKELY_UNITS.values(),
    TOO_LARGE,
    NO_KEY,
)

# Headers added, in this order, behind the row's own headers, and then those of its place.
REASON_HEADER: Final = "sequitur-reason"
LATE_BY_HEADER: Final = "sequitur-late-by-ms"  # behind the frontier, or behind its key if stale
FRONTIER_HEADER: Final = "sequitur-frontier"  # epoch ms; the frontier the row was held against
LAST_RELEASED_HEADER: Final = "sequitur-last-released"  # epoch ms; of its key, where that is known
OVERSIZED_HEADER: Final = "sequitur-oversized-file"
"""Of a record that stands for one too large for its topic: where the whole one is, in the job's
checkpoint."""


# Which event times are believed: not before the earliest, not beyond the latest.
#
# A number in the wrong unit is off by a factor of a thousand, so it falls far outside, and in the
# right unit it would not. The reason then names that unit, as the mistake is one of the setting, or
# of whoever writes the events, and not of single events.


_FACTOR: Final = 1000
_PLAUSIBLE_MS: Final = 946_684_800_000
"""The year 2000: a unit is likely that makes a number a time from then on. Where times of 1970 are
believed, any number would be one in some unit."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The event times that are believed.

    Attributes:
        earliest_ms: Anything before it is a mistake, epoch ms.
        latest_ms: Now + max_future_skew; anything later is a broken clock, or a mistake.
        unit: What numbers are taken for; None, or auto, where no other unit comes into question.
    """

    earliest_ms: int = 0
    latest_ms: int = MAX_EVENT_TIME_MS
    unit: TimeUnit | None = None

    def reason(self, time_ms: int) -> str | None:
        """Return why a time is not believed, None when it is."""
        if time_ms < 0:
            return NEGATIVE
        if self.earliest_ms <= time_ms <= self.latest_ms:
            return None
        return next(name for name, first, last in self.refusals() if first <= time_ms <= last)

    def refusals(self) -> list[tuple[str, int, int]]:
        """Return why times are not believed: reason, first and last ms; the first one counts.

        Those of likely units may reach into times that are believed.
        """
        return [
            *self._likely_units(),
            (TOO_EARLY, 0, self.earliest_ms - 1),
            (TOO_FAR_FUTURE, self.latest_ms + 1, MAX_EVENT_TIME_MS),
        ]

    def _likely_units(self) -> list[tuple[str, int, int]]:
        if self.unit not in UNITS:
            return []
        own = UNITS.index(self.unit)
        plausible_ms = max(self.earliest_ms, _PLAUSIBLE_MS)
        found = []
        for place, unit in enumerate(UNITS):
            if place == own:
                continue
            if place < own:  # the true unit is coarser: the time is too small
                factor = _FACTOR ** (own - place)
                first, last = -(-plausible_ms // factor), self.latest_ms // factor
            else:
                factor = _FACTOR ** (place - own)
                first, last = plausible_ms * factor, self.latest_ms * factor + factor - 1
            if first <= MAX_EVENT_TIME_MS:
                found.append((LIKELY_UNITS[unit], first, min(last, MAX_EVENT_TIME_MS)))
        return found


# Event time of a record: where it stands, and what counts as one.
#
# Where (`EventTimeSpec`): `json:<path>` in the value (`json:occurred_at`, `json:meta.at`,
# `json:/event.created`; `sequitur.base.json_field`), `header:<name>`, or `kafka-timestamp`; and
# ` as <format>` behind it, where it is not `ms`.
#
# What, as text after surrounding blanks are cut, `sequitur.base.time_format` says.
#
# JSON follows the reader of Spark's `get_json_object`: of equal names the first that is not null
# counts, what follows the document is not read, bytes that are not UTF-8 are replaced. (Spark also
# takes strings in single quotes, which is not JSON and which this reference refuses.) Of equal
# header names the last counts, as in Kafka's own `lastHeader`.
#
# This module is the reference. The job's tasks compute the same in columns, and a test holds the
# two together.


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
        if encodable(text) != text:  # no field or header is called that
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
    """Return what a checkpoint says of its spec, as `identity_of` says it."""
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


# Which timestamp a record of an output topic gets.
#
# Kafka's own clients seek by it, Kafka Streams and Flink take it for the event time, brokers delete
# a segment by the newest in it and forget a producer by the last one it sent. So it is the event
# time, but never older than `now - floor`: retention would delete a backfill as soon as it is
# written; and never newer than `now`: a broker refuses what is too far ahead (INVALID_TIMESTAMP).
#
# Clamping keeps an order: where the times of rows do not fall, neither do the timestamps, within a
# step and, as `now` does not go back (`now_of_step`), from one step to the next.
#
# **No event time is lost**: a record whose timestamp is not its event time carries the event time
# in the header `EVENT_TIME_HEADER`.
#
# Pure: this module is the reference. `sequitur.pipelines.rows.record_timestamps` says the same of
# columns.


EVENT_TIME_HEADER: Final = "sequitur-event-time"
"""Epoch milliseconds, as text."""


class OutputTimestamp(StrEnum):
    """Which time becomes the timestamp of an output record."""

    EVENT_TIME = "event-time"
    """The event time of the row."""
    SOURCE = "source"
    """The timestamp that the record had in its source topic."""
    NOW = "now"
    """When the step began to write."""


MOST_AHEAD_MS: Final = 5 * 60_000
"""A clock that is set back by more than that takes the timestamps back with it."""


def now_of_step(clock_ms: int, before_ms: int) -> int:
    """Return a step's time: no earlier than that of the step before, unless that is far ahead.

    A now far ahead is of a clock that was wrong. Brokers refuse what is too far ahead of their own
    clock, so to wait until ours has caught up would stop the job for as long.

    Args:
        clock_ms: What the machine's clock says; epoch ms.
        before_ms: What the step before took for now; epoch ms.
    """
    return before_ms if clock_ms < before_ms <= clock_ms + MOST_AHEAD_MS else clock_ms


@dataclass(frozen=True, slots=True)
class TimestampRule:
    """The timestamps of the records that a step writes to one topic.

    Attributes:
        taken_from: What they are taken from.
        now_ms: No timestamp is newer; epoch ms.
        floor_ms: Nor older than `now_ms` less this.
        is_kept: Whether the topic keeps the timestamps it is given: one with
            `message.timestamp.type = LogAppendTime` does not.
        tells_event_time: Whether a record whose timestamp is not its event time says so in
            `EVENT_TIME_HEADER`. Dead letters have a header of their own for it.
    """

    taken_from: OutputTimestamp
    now_ms: int
    floor_ms: int
    is_kept: bool = True
    tells_event_time: bool = True

    @property
    def earliest_ms(self) -> int:
        """No timestamp is older."""
        return max(0, self.now_ms - self.floor_ms)

    def of(self, event_time_ms: int | None, source_ms: int) -> tuple[int, bool]:
        """Return a record's timestamp, and whether its event time is in a header.

        Args:
            event_time_ms: Its event time; None without one.
            source_ms: Its timestamp in the source topic.
        """
        wanted = {
            OutputTimestamp.EVENT_TIME: event_time_ms,
            OutputTimestamp.SOURCE: source_ms,
            OutputTimestamp.NOW: None,
        }[self.taken_from]
        time_ms = self.now_ms if wanted is None else wanted
        timestamp_ms = max(self.earliest_ms, min(time_ms, self.now_ms))
        is_told = (
            self.tells_event_time
            and event_time_ms is not None
            and (timestamp_ms != event_time_ms or not self.is_kept)
        )
        return timestamp_ms, is_told
