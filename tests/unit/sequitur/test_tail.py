"""Which records `sequitur tail` takes for the newest, and how it shows one."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer

from sequitur.cli.tail import ShownRecord, ValueStyle, newest
from sequitur.cli.topic_reader import OpenTopic, TopicRecord
from sequitur.consumer.reorder import parse_event_time_spec
from sequitur.errors import UnknownTopicError
from sequitur.kafka.settings import KafkaSettings

T0 = 1_700_000_000_000


def _record(
    value: bytes | None = b"v",
    *,
    partition: int = 0,
    offset: int = 0,
    timestamp_ms: int = T0,
    key: bytes | None = b"k",
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> TopicRecord:
    return TopicRecord(partition, offset, timestamp_ms, key, value, headers)


def _shown(record: TopicRecord, style: ValueStyle = ValueStyle.TEXT) -> ShownRecord:
    return ShownRecord.of("t", record, None, style)


@pytest.mark.promise("cli-records-topic-looked")
def test_the_newest_are_those_with_the_latest_timestamps() -> None:
    """Of each partition its last ones, in its order, also where timestamps fall within it."""
    stamps = {0: [1, 9, 4, 8], 1: [5, 6, 7], 2: []}
    found = {
        partition: [
            _record(partition=partition, offset=offset, timestamp_ms=stamp)
            for offset, stamp in enumerate(some)
        ]
        for partition, some in stamps.items()
    }
    taken = [(one.partition, one.offset) for one in newest(found, 5)]
    assert taken == [(0, 2), (1, 0), (1, 1), (1, 2), (0, 3)]
    assert len(newest(found, 100)) == 7


def test_a_record_is_a_line_and_what_its_headers_say_another() -> None:
    """Place, timestamp, key and value; event time, id, reason and headers."""
    record = _record(
        b'{"at": 5}',
        partition=2,
        offset=17,
        headers=(
            ("trace", b"x"),
            ("sequitur-event-time", str(T0 - 5).encode()),
            ("sequitur-event-id", b"cpu~1:7"),
            ("sequitur-reason", b"late"),
            ("blob", b"\xff"),
            ("none", None),
        ),
    )
    assert _shown(record).as_text().plain == (
        '2:17  2023-11-14T22:13:20.000+00:00  k  {"at": 5}\n'
        "    event time 2023-11-14T22:13:19.995+00:00  id cpu~1:7  reason late"
        "  trace=x  blob=base64 /w==  none=-"
    )
    assert _shown(_record(None, key=None)).as_text().plain == (
        "0:0  2023-11-14T22:13:20.000+00:00  -  -"
    )


def test_as_json_a_record_has_all_of_it() -> None:
    """A program gets the headers as they are beside what they say."""
    headers = (("sequitur-dlq-event-time-ms", b"5"), ("sequitur-dlq-reason", b"hung"))
    found = _shown(_record(b"\xff", headers=headers)).as_json()
    assert found == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": T0,
        "key": "k",
        "value": {"base64": "/w=="},
        "headers": [["sequitur-dlq-event-time-ms", "5"], ["sequitur-dlq-reason", "hung"]],
        "event_time_ms": 5,
        "event_id": None,
        "reason": "hung",
    }


@pytest.mark.promise("cli-records-topic-looked")
@pytest.mark.parametrize(
    ("style", "value", "in_json", "in_text"),
    [
        (ValueStyle.TEXT, b'{"a":1}', '{"a":1}', '{"a":1}'),
        (ValueStyle.JSON, b'{"a":1}', {"a": 1}, '{\n  "a": 1\n}'),
        (ValueStyle.JSON, b"no JSON", "no JSON", "no JSON"),
        (ValueStyle.JSON, b"12", 12, "12"),
        (ValueStyle.JSON, b"\xff", {"base64": "/w=="}, "base64 /w=="),
        (ValueStyle.HEX, b"ab\xff", {"hex": "6162ff"}, "hex 6162ff"),
        (ValueStyle.HEX, None, None, "-"),
        (ValueStyle.TEXT, b"\x1b[31m\x9b", {"base64": "G1szMW2b"}, "base64 G1szMW2b"),
        (ValueStyle.TEXT, b"\x1b[31m", "\x1b[31m", "\\x1b[31m"),
        (ValueStyle.JSON, b'{"\\u009b": 1}', {"\x9b": 1}, '{\n  "\\x9b": 1\n}'),
    ],
)
def test_values_are_shown_as_asked(
    style: ValueStyle, value: bytes | None, in_json: object, in_text: str
) -> None:
    """As text, JSON or hex; nothing in them reaches the terminal as a control sequence."""
    found = _shown(_record(value), style)
    assert json.loads(json.dumps(found.as_json()))["value"] == in_json
    assert found.as_text().plain.partition("  k  ")[2] == in_text


def test_the_event_time_is_found_as_the_user_says() -> None:
    """With a spec the headers that the jobs add are not asked."""
    record = _record(b'{"at": 7}', headers=(("sequitur-event-time", b"5"),))
    spec = parse_event_time_spec("json:at")
    assert ShownRecord.of("t", record, spec, ValueStyle.TEXT).event_time_ms == 7
    assert _shown(record).event_time_ms == 5
    assert _shown(_record(headers=(("sequitur-event-time", b"noon"),))).event_time_ms is None


@pytest.mark.parametrize("name", ["gr\udcf6sse", "a/b", ""])
def test_a_name_that_no_topic_can_have_is_of_no_topic(name: str) -> None:
    """A terminal of another encoding gives bytes that are no UTF-8."""
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(UnknownTopicError, match=r"topic '.*' does not exist"):
        OpenTopic(consumer, kafka, name)
    consumer.close()
