"""What counts as an event time, and why something does not."""

from __future__ import annotations

import pytest

from consumer import (
    MISSING,
    NEGATIVE,
    TOO_FAR_FUTURE,
    UNPARSABLE,
    EventTime,
    EventTimeSource,
    EventTimeSpec,
    EventTimeSpecError,
    parse_event_time_spec,
    read_event_time,
)
from tests.event_time_cases import HEADER_CASES, JSON_CASES, LATEST_MS, TIMESTAMP_CASES


@pytest.mark.parametrize(("text", "expected"), [
    ("kafka-timestamp", EventTimeSpec(EventTimeSource.KAFKA_TIMESTAMP)),
    ("json:occurred_at", EventTimeSpec(EventTimeSource.JSON, ("occurred_at",))),
    ("json:a.b", EventTimeSpec(EventTimeSource.JSON, ("a", "b"))),
    ("header:at", EventTimeSpec(EventTimeSource.HEADER, ("at",))),
    ("header:a.b:c", EventTimeSpec(EventTimeSource.HEADER, ("a.b:c",))),
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
        "json:a'b",
        "json:*",
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


@pytest.mark.parametrize(("value", "expected"), JSON_CASES)
def test_json_event_time(value: bytes | None, expected: int | str) -> None:
    """A JSON value gives its event time, or exactly one reason."""
    found = read_event_time(
        parse_event_time_spec("json:occurred_at"), value=value, latest_ms=LATEST_MS
    )
    assert _event_time(expected) == found


@pytest.mark.parametrize(("value", "expected"), [
    (b'{"a":{"b":5}}', 5),
    (b'{"b":5}', MISSING),
    (b'{"a":5}', MISSING),
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
    """The last header of the name counts."""
    found = read_event_time(
        parse_event_time_spec("header:at"), headers=headers, latest_ms=LATEST_MS
    )
    assert _event_time(expected) == found


@pytest.mark.parametrize(("timestamp_ms", "expected"), TIMESTAMP_CASES)
def test_kafka_timestamp(timestamp_ms: int, expected: int | str) -> None:
    """Kafka's own "no timestamp" is a missing event time."""
    found = read_event_time(
        parse_event_time_spec("kafka-timestamp"),
        kafka_timestamp_ms=timestamp_ms,
        latest_ms=LATEST_MS,
    )
    assert _event_time(expected) == found


def test_of_gives_the_time_or_none() -> None:
    """A reader that only wants the time gets it from the record's parts."""
    spec = parse_event_time_spec("json:at")
    assert spec.of(b'{"at":7}', None, -1) == 7
    assert spec.of(b'{"at":-7}', [], 5) is None


def test_reasons_differ() -> None:
    """Each reason is a name of its own: readers of the quarantine topic match on it."""
    assert len({MISSING, UNPARSABLE, NEGATIVE, TOO_FAR_FUTURE}) == 4


def _event_time(expected: int | str) -> EventTime:
    return EventTime(expected) if isinstance(expected, int) else EventTime(reason=expected)
