"""Whoever named the wrong event time is told what the rows have instead."""

from __future__ import annotations

import pytest

from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.consumer.reorder.advice import UnusableRow, advice
from sequitur.consumer.reorder.reasons import MISSING, NO_KEY, TOO_EARLY, TOO_LARGE, UNPARSABLE


@pytest.mark.promise("order-event-time-names")
@pytest.mark.parametrize(
    ("event_time", "reason", "values", "expected"),
    [
        (
            "json:at", MISSING, [b'{"id": 1, "meta": {"when": 5, "by": {}}}', b'{"id": 2, "x": 1}'],
            "and they have the fields id, meta.when, meta.by, x",
        ),
        ("json:at", MISSING, [b'{"when": 5}'], "and they have the field when"),
        ("json:at", MISSING, [b"{}"], "and they have no fields"),
        ("json:a.b", MISSING, [b'{"a": {"c": {"d": {"e": 1}}}}'], "and they have the field a.c.d"),
        (
            "json:at", MISSING, [b'{"event.created": 5, "a": {"b/c": 1, "": 2}, "/d": 3, "e.": 4}'],
            "and they have the fields /event.created, a.b/c, /a/, /~1d, /e.",
        ),
        ("json:/m.at/0", UNPARSABLE, [b'{"m.at": ["1.12.26"]}'], "where one has '1.12.26'"),
        ("json:m.at", UNPARSABLE, [b'{"m.at": "1.12.26"}'], "where one has '1.12.26'"),
        ("json:at", UNPARSABLE, [b"at=5", None], "and their values are not JSON objects"),
        ("json:at", MISSING, [b"5"], "and their values are not JSON objects"),
        ("json:m.at", UNPARSABLE, [b'{"m": {"at": "1.12.26"}}'], "where one has '1.12.26'"),
        ("json:at", UNPARSABLE, [b'{"at": true}'], "where one has 'true'"),
        ("json:at", TOO_EARLY, [b'{"at": 12}'], "where one has '12'"),
        (
            "json:at", UNPARSABLE, [b'{"at": "%s"}' % (b"x" * 50)],
            f"where one has '{'x' * 40}...'",
        ),
    ],
)  # fmt: skip
def test_a_wrong_event_time_is_answered_with_what_there_is(
    event_time: str, reason: str, values: list[bytes | None], expected: str
) -> None:
    """Fields, or an example of what cannot be read."""
    rows = [UnusableRow(value, ()) for value in values]
    found = advice(parse_event_time_spec(event_time), reason, rows)
    assert found == f"event_time = '{event_time}', {expected}"


@pytest.mark.promise("order-event-time-names")
@pytest.mark.parametrize(
    ("event_time", "reason", "expected"),
    [
        ("json:ts", "event-time-likely-seconds", 'write `as s`: event_time = "json:ts as s"'),
        (
            "header:ts as s", "event-time-likely-nanoseconds",
            'write `as ns`: event_time = "header:ts as ns"',
        ),
        (
            "json:ts as s", "event-time-likely-milliseconds",
            'write `as ms`: event_time = "json:ts"',
        ),
        ("kafka-timestamp", MISSING, ""),
        ("json:at", TOO_LARGE, ""),
        ("json:at", NO_KEY, ""),
    ],
)  # fmt: skip
def test_another_unit_is_answered_with_the_setting(
    event_time: str, reason: str, expected: str
) -> None:
    rows = [UnusableRow(b"{}", ())]
    assert advice(parse_event_time_spec(event_time), reason, rows) == expected


def test_fields_beyond_twenty_are_counted() -> None:
    """A document of any width is answered in a line."""
    value = b"{%s}" % b", ".join(b'"f%d": 0' % number for number in range(2_000))
    found = advice(parse_event_time_spec("json:at"), MISSING, [UnusableRow(value, ())])
    assert found.endswith("f18, f19 and 1,980 more")


def test_names_of_others_fit_into_a_line() -> None:
    """However long they are, and whatever a terminal would make of them."""
    value = b'{"a\\nb": 1, "\\u001b[2J": 2, "\\ud800": 3, "%s": 4}' % (b"x" * 900_000)
    found = advice(parse_event_time_spec("json:at"), MISSING, [UnusableRow(value, ())])
    assert found.endswith(r"fields a\nb, \x1b[2J, \ud800, " + "x" * 40 + "...")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("trace", b"x"), ("time", b"5")], "and they have the headers trace, time"),
        ([], "and they have no headers"),
        ([("at", b"5"), ("at", b"noon")], "where one has 'noon'"),
    ],
)
def test_headers_are_named_likewise(headers: list[tuple[str, bytes]], expected: str) -> None:
    """Of equal names the last counts, as for the event time itself."""
    found = advice(parse_event_time_spec("header:at"), MISSING, [UnusableRow(None, headers)])
    assert found == f"event_time = 'header:at', {expected}"
