"""Dead letters: what a record of the topic says, which are selected, what is replayed of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sequitur._dead_letters import DeadLetter, Selection, request_rows
from sequitur._foreign_text import shown
from sequitur._topic_reader import TopicRecord
from sequitur.consumer import SOURCE_OFFSET_HEADER, SOURCE_PARTITION_HEADER, SOURCE_TOPIC_HEADER
from sequitur.consumer.topology import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TIME_HEADER,
    Place,
)
from sequitur.errors import NotADeadLetterError
from tests.support.dead_letters import T0, TRACEBACK, dead_record


def _without(record: TopicRecord, header: str) -> TopicRecord:
    left = tuple(pair for pair in record.headers if pair[0] != header)
    return replace(record, headers=left)


@pytest.mark.promise("process-event-keeps-failing")
def test_all_that_the_job_wrote_is_read() -> None:
    """Why, where and how often it failed, and where the event came from."""
    letter = DeadLetter.of(dead_record(7, source_offset=41, event_time_ms=T0 + 9))
    assert (letter.partition, letter.offset) == (0, 7)
    assert (letter.reason, letter.attempts, letter.topology) == ("exception", 5, "words")
    assert letter.path == ("spout", "parse", "count")
    assert (letter.event_time_ms, letter.failed_at_ms) == (T0 + 9, T0 + 60_000)
    assert letter.source == Place("readings", 2, 41)
    assert letter.detail == TRACEBACK


def test_last_line_of_a_traceback_is_the_error() -> None:
    """That line says what was raised; those before it, where. Without any there is none."""
    letter = DeadLetter.of(dead_record())
    assert letter.error == "ValueError: invalid literal for int() with base 10: 'x'"
    assert DeadLetter.of(dead_record(detail="")).error == ""
    assert DeadLetter.of(_without(dead_record(), DEAD_DETAIL_HEADER)).error == ""


def test_own_headers_are_those_the_event_came_with() -> None:
    """In their order and with their repeats; also one that is called as one of the job's."""
    own = [("trace", "1"), (SOURCE_TOPIC_HEADER, "older"), ("trace", None), ("id", b"\xff")]
    letter = DeadLetter.of(dead_record(own=own))
    assert letter.headers == (
        ("trace", b"1"),
        (SOURCE_TOPIC_HEADER, b"older"),
        ("trace", None),
        ("id", b"\xff"),
    )
    assert letter.source.topic == "readings"


@pytest.mark.parametrize(
    "header",
    [
        DEAD_REASON_HEADER,
        DEAD_ATTEMPTS_HEADER,
        DEAD_TIME_HEADER,
        DEAD_EVENT_TIME_HEADER,
        SOURCE_TOPIC_HEADER,
        SOURCE_PARTITION_HEADER,
        SOURCE_OFFSET_HEADER,
    ],
)
def test_record_without_a_header_that_all_have_is_named(header: str) -> None:
    """Somebody else wrote it: it cannot be replayed, and the message says what it lacks."""
    with pytest.raises(NotADeadLetterError, match=f"record 0:3 is no dead letter.*{header}"):
        DeadLetter.of(_without(dead_record(3), header))


def test_record_without_headers_lacks_the_reason_first() -> None:
    """That is what tells a dead letter from all else."""
    with pytest.raises(NotADeadLetterError, match="it has no header sequitur-dlq-reason"):
        DeadLetter.of(replace(dead_record(3), headers=()))


def test_number_that_is_none_is_named() -> None:
    record = dead_record()
    record = replace(record, headers=(*record.headers, (DEAD_ATTEMPTS_HEADER, b"many")))
    with pytest.raises(NotADeadLetterError, match=f"{DEAD_ATTEMPTS_HEADER} is 'many'"):
        DeadLetter.of(record)


def test_selection_takes_what_fits_and_counts_what_is_foreign() -> None:
    """Reason and key both have to fit; a record of somebody else stops nothing."""
    records = [
        dead_record(0, reason="timeout", key=b"a"),
        dead_record(1, reason="exception", key=b"a"),
        TopicRecord(0, 2, T0, b"a", b"x", ()),
        dead_record(3, reason="exception", key=b"b"),
        dead_record(4, reason="exception", key=None),
    ]

    def offsets(selection: Selection) -> list[int]:
        return [letter.offset for letter in selection.of(records)]

    everything = Selection()
    assert offsets(everything) == [0, 1, 3, 4]
    assert everything.foreign == 1
    assert offsets(Selection(reason="exception")) == [1, 3, 4]
    assert offsets(Selection(key=b"a")) == [0, 1]
    assert offsets(Selection(reason="exception", key=b"a")) == [1]
    assert offsets(Selection(reason="crash")) == []


def test_event_is_requested_as_it_first_came() -> None:
    """Its own key, value, headers and place; what the job fills in is left open."""
    (row,) = request_rows([DeadLetter.of(dead_record(9, own=[("id", b"1")]))]).to_pylist()
    assert row == {
        "topic": "readings",
        "partition": 2,
        "offset": 0,
        "timestamp_ms": T0 + 5,
        "key": b"k",
        "value": b"x",
        "headers": [{"key": "id", "value": b"1"}],
        "output_partition": None,
        "event_time_ms": T0,
        "reason": None,
    }


def test_event_given_up_twice_is_requested_once() -> None:
    """Its last dead letter counts, wherever it stands among them."""
    letters = [
        DeadLetter.of(dead_record(0, source_offset=1, failed_at_ms=T0 + 1, own=[("id", "1")])),
        DeadLetter.of(dead_record(1, source_offset=1, failed_at_ms=T0 + 3, own=[("id", "3")])),
        DeadLetter.of(dead_record(2, source_offset=1, failed_at_ms=T0 + 2, own=[("id", "2")])),
        DeadLetter.of(dead_record(3, source_offset=2)),
    ]
    rows = request_rows(letters).to_pylist()
    assert [row["offset"] for row in rows] == [1, 2]
    assert rows[0]["headers"] == [{"key": "id", "value": b"3"}]


def test_bytes_that_are_no_text_are_base64_in_json() -> None:
    """Text stays readable, and nothing is lost of the rest."""
    letter = DeadLetter.of(dead_record(key=b"\xff\x00", own=[("id", b"\xfe"), ("none", None)]))
    found = letter.as_json()
    assert found["key"] == {"base64": "/wA="}
    assert found["value"] == "x"
    assert found["headers"] == [["id", {"base64": "/g=="}], ["none", None]]


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    """Control sequences are shown as text, markup is not followed; lines stay lines."""
    assert shown("\x1b[2Ja\nb [red]").plain == "\\x1b[2Ja\nb [red]"
    assert shown("[red]").spans == []
