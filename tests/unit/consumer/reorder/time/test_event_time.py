"""What counts as an event time, and why something does not."""

from __future__ import annotations

import json

import pytest

from sequitur.consumer.reorder import (
    EventTimeSource,
    EventTimeSpec,
    TimeFormat,
    TimeUnit,
    parse_event_time_spec,
)
from sequitur.consumer.reorder.event_time import EventTime, read_event_time
from sequitur.consumer.reorder.reasons import (
    LATE,
    LIKELY_UNITS,
    MISSING,
    QUARANTINE_REASONS,
    STALE,
    TOO_EARLY,
    TOO_FAR_FUTURE,
    UNPARSABLE,
)
from sequitur.consumer.reorder.time_bounds import TimeBounds
from sequitur.errors import EventTimeSpecError
from tests.support.event_time_cases import (
    BOUNDS,
    FORMAT_CASES,
    HEADER_CASES,
    JSON_CASES,
    TIMESTAMP_CASES,
)


@pytest.mark.parametrize(("text", "expected"), [
    ("kafka-timestamp", EventTimeSpec(EventTimeSource.KAFKA_TIMESTAMP)),
    ("json:occurred_at", EventTimeSpec(EventTimeSource.JSON, ("occurred_at",))),
    ("json:a.b", EventTimeSpec(EventTimeSource.JSON, ("a", "b"))),
    ("json:what's*up?", EventTimeSpec(EventTimeSource.JSON, ("what's*up?",))),
    ("json:/a.b", EventTimeSpec(EventTimeSource.JSON, ("a.b",), is_pointer=True)),
    ("json:/", EventTimeSpec(EventTimeSource.JSON, ("",), is_pointer=True)),
    ("json:/a~1b~01/0", EventTimeSpec(EventTimeSource.JSON, ("a/b~1", "0"), is_pointer=True)),
    ("json:/a.b as s",
     EventTimeSpec(EventTimeSource.JSON, ("a.b",), TimeFormat(TimeUnit.S), is_pointer=True)),
    ("json:/seen as b as ms", EventTimeSpec(EventTimeSource.JSON, ("seen as b",), is_pointer=True)),
    ("header:at", EventTimeSpec(EventTimeSource.HEADER, ("at",))),
    ("header:a.b:c", EventTimeSpec(EventTimeSource.HEADER, ("a.b:c",))),
    ("json:@timestamp", EventTimeSpec(EventTimeSource.JSON, ("@timestamp",))),
    ("json:at as s", EventTimeSpec(EventTimeSource.JSON, ("at",), TimeFormat(TimeUnit.S))),
    ("header:at as ns", EventTimeSpec(EventTimeSource.HEADER, ("at",), TimeFormat(TimeUnit.NS))),
    ("kafka-timestamp as us",
     EventTimeSpec(EventTimeSource.KAFKA_TIMESTAMP, (), TimeFormat(TimeUnit.US))),
    ("json:seen as b as ms", EventTimeSpec(EventTimeSource.JSON, ("seen as b",))),
    ("json:at as %d.%m.%Y %H:%M",
     EventTimeSpec(EventTimeSource.JSON, ("at",), TimeFormat.parse("%d.%m.%Y %H:%M"))),
])  # fmt: skip
def test_spec_is_read_and_written_back(text: str, expected: EventTimeSpec) -> None:
    """A spec keeps its source and path, and prints as it was given."""
    spec = parse_event_time_spec(text)
    assert expected == spec
    assert text == str(spec)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "json",
        "json:",
        "json:a..b",
        "json:/a~b",
        "json:/~",
        "header:",
        "kafka-timestamp:x",
        "xml:a",
    ],
)
def test_wrong_spec_is_refused_with_the_forms_expected(text: str) -> None:
    """A spec that cannot work is refused at once, naming it and what was expected."""
    with pytest.raises(EventTimeSpecError, match="expected json:<path>") as error:
        parse_event_time_spec(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["json:half \ud83d", "json:/a/\udcf6", "header:\udcf6"])
def test_name_with_half_a_surrogate_pair_is_refused(text: str) -> None:
    """No record has it: columns could not look for it, and a reader would find nothing."""
    with pytest.raises(EventTimeSpecError, match="it has half a surrogate pair"):
        parse_event_time_spec(text)


@pytest.mark.parametrize(("value", "expected"), JSON_CASES)
def test_json_event_time(value: bytes | None, expected: int | str) -> None:
    found = read_event_time(parse_event_time_spec("json:occurred_at"), value=value, bounds=BOUNDS)
    assert _event_time(expected) == found


@pytest.mark.parametrize(("value", "expected"), [
    (b'{"a":{"b":5}}', 5),
    (b'{"b":5}', MISSING),
    (b'{"a":5}', MISSING),
    (b'{"a.b":5}', 5),
    (b'{"a.b":4,"a":{"b":5}}', 5),
    (b'{"a.b":5,"a":{"b":null}}', 5),
    (b'{"a.b":5,"a":7}', 5),
    (b'{"a.b":5,"a":{"b":{}}}', UNPARSABLE),
    (b'{"x":{"a.b":5}}', MISSING),
    (b'{"a":[{"b":5}]}', MISSING),
    (b'{"a":{"b":{"b":5}}}', UNPARSABLE),
    (b'{"a":{},"a":{"b":6}}', 6),
])  # fmt: skip
def test_nested_json_event_time(value: bytes, expected: int | str) -> None:
    """A dotted path goes down into objects, and only into them."""
    assert _event_time(expected) == read_event_time(parse_event_time_spec("json:a.b"), value=value)


@pytest.mark.parametrize(("headers", "expected"), HEADER_CASES)
def test_header_event_time(
    headers: list[tuple[str, bytes | None]] | None, expected: int | str
) -> None:
    found = read_event_time(parse_event_time_spec("header:at"), headers=headers, bounds=BOUNDS)
    assert _event_time(expected) == found


@pytest.mark.parametrize(("timestamp_ms", "expected"), TIMESTAMP_CASES)
def test_kafka_timestamp(timestamp_ms: int, expected: int | str) -> None:
    """Kafka's own "no timestamp" is a missing event time."""
    found = read_event_time(
        parse_event_time_spec("kafka-timestamp"),
        kafka_timestamp_ms=timestamp_ms,
        bounds=BOUNDS,
    )
    assert _event_time(expected) == found


@pytest.mark.promise("order-event-times-seconds")
@pytest.mark.parametrize(("written", "text", "expected"), FORMAT_CASES)
def test_units_and_forms(written: str, text: str, expected: int | str) -> None:
    """A time is read as the setting says it is written, from a header and from JSON."""
    for_header = parse_event_time_spec(f"header:at as {written}")
    headers: list[tuple[str, bytes | None]] = [("at", text.encode())]
    assert _event_time(expected) == read_event_time(for_header, headers=headers)
    for_json = parse_event_time_spec(f"json:at as {written}")
    value = json.dumps({"at": text}).encode()
    assert _event_time(expected) == read_event_time(for_json, value=value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("json:at as sec", "time format 'sec': expected s, ms, us, ns, auto or a form"),
        ("json:at as ", "time format ''"),
        ("json:at as %H:%M", "does not say the year"),
        ("json:at as %Y-%m", "does not say the day"),
        ("json:at as %Y-%m-%d %I", "%I is none of %Y"),
        ("json:at as %Y-%m-%d %", "% is none of %Y"),
        ("json:at as %Y %m %b %d", "two of one part, the month"),
        ("kafka-timestamp as %Y-%m-%d", "a kafka-timestamp is a number"),
        ("xml:at as s", "expected json:<path>"),
    ],
)
def test_wrong_format_is_refused(text: str, named: str) -> None:
    with pytest.raises(EventTimeSpecError) as error:
        parse_event_time_spec(text)
    assert named in str(error.value)


_EARLIEST_MS = 946_684_800_000
_NOW_S = 1_795_312_563


@pytest.mark.promise("order-event-times-seconds")
@pytest.mark.parametrize(("spec", "number", "expected"), [
    ("json:at", _NOW_S * 1_000, _NOW_S * 1_000),
    ("json:at", _NOW_S, LIKELY_UNITS["s"]),
    ("json:at", _NOW_S * 10**6, LIKELY_UNITS["us"]),
    ("json:at", _NOW_S * 10**9, LIKELY_UNITS["ns"]),
    ("json:at", 0, TOO_EARLY),
    ("json:at", 5, TOO_EARLY),
    ("json:at", _EARLIEST_MS - 1, TOO_EARLY),
    ("json:at", _EARLIEST_MS, _EARLIEST_MS),
    ("json:at", 32_503_680_000_000, TOO_FAR_FUTURE),
    ("json:at as s", _NOW_S, _NOW_S * 1_000),
    ("json:at as s", _NOW_S * 1_000, LIKELY_UNITS["ms"]),
    ("json:at as s", _NOW_S * 10**6, LIKELY_UNITS["us"]),
    ("json:at as us", _NOW_S, LIKELY_UNITS["s"]),
    ("json:at as ns", _NOW_S * 1_000, LIKELY_UNITS["ms"]),
    ("json:at as auto", _NOW_S, _NOW_S * 1_000),
    ("json:at as auto", _NOW_S * 10**9, _NOW_S * 1_000),
    ("json:at as auto", 5, TOO_EARLY),
])  # fmt: skip
def test_number_in_another_unit_is_not_believed(
    spec: str, number: int, expected: int | str
) -> None:
    """The reason names the unit in which it would be a time of these years."""
    found = parse_event_time_spec(spec)
    bounds = TimeBounds(
        earliest_ms=_EARLIEST_MS, latest_ms=1_900_000_000_000, unit=found.format.unit
    )
    value = b'{"at":%d}' % number
    assert _event_time(expected) == read_event_time(found, value=value, bounds=bounds)


def test_of_gives_the_time_or_none() -> None:
    """A reader that only wants the time gets it from the record's parts."""
    spec = parse_event_time_spec("json:at")
    assert spec.of(b'{"at":7}', None, -1) == 7
    assert spec.of(b'{"at":-7}', [], 5) is None


def test_reasons_differ() -> None:
    """Each reason is a name of its own: readers of the quarantine topic match on it."""
    assert len({LATE, STALE, *QUARANTINE_REASONS}) == len(QUARANTINE_REASONS) + 2


def _event_time(expected: int | str) -> EventTime:
    return EventTime(expected) if isinstance(expected, int) else EventTime(reason=expected)
