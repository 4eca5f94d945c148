"""Lines come out of chunks with the places where they stood, and events out of lines."""

from __future__ import annotations

import pytest

from sequitur.base.json_field import JsonField, parse_key
from sequitur.errors import KeySpecError
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.producer._record import Record
from sequitur.producer.sources._lines import EventParser, LineSplitter, TextParser, parse_header


def test_a_line_waits_for_its_newline() -> None:
    splitter = LineSplitter(100)
    assert splitter.feed(b"ab").lines == []
    assert splitter.pending_length == 2
    batch = splitter.feed(b"c\nd")
    assert batch.lines == [b"abc"]
    assert (batch.first_line, batch.first_offset, batch.end_offset) == (1, 0, 4)
    assert (splitter.line, splitter.offset, splitter.pending_length) == (2, 4, 1)


def test_the_end_gives_the_last_line() -> None:
    """A last line without a newline is given out at the end, once."""
    splitter = LineSplitter(100, offset=7, line=3)
    splitter.feed(b"xy")
    batch = splitter.finish()
    assert (batch.lines, batch.first_line, batch.end_offset) == ([b"xy"], 3, 9)
    assert splitter.finish().lines == []


def test_each_line_knows_its_offset() -> None:
    """Offsets count newlines, and all bytes of a line that was cut."""
    batch = LineSplitter(3, offset=10).feed(b"a\nbbbbb\nc\n")
    assert batch.lines == [b"a", b"bbb", b"c"]
    assert batch.overlong == {1: 5}
    assert [batch.offset_of(index) for index in range(3)] == [10, 12, 18]
    assert batch.end_offset == 20


def test_an_endless_line_takes_no_more_than_the_limit() -> None:
    """Bytes beyond the limit are counted and not kept."""
    splitter = LineSplitter(4)
    for _ in range(1000):
        splitter.feed(b"0123456789")
    assert splitter.pending_length == 10_000
    batch = splitter.feed(b"\nnext\n")
    assert batch.lines == [b"0123", b"next"]
    assert batch.overlong == {0: 10_000}
    assert batch.offset_of(1) == 10_001


def test_a_line_as_long_as_the_limit_is_whole() -> None:
    assert LineSplitter(4).feed(b"abcd\n").overlong == {}


def _parse(data: bytes, key: str | None = None) -> tuple[list[Record], list[tuple[int, str]]]:
    parser = EventParser(None if key is None else parse_key(key), 64)
    records, refusals = parser.parse(LineSplitter(64).feed(data))
    return records, [(refusal.index, refusal.reason) for refusal in refusals]


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1}',
        b' { "a" : 1.50 } ',
        b'"text"',
        b"1e999",
        b"null",
        '{"ä":"€😀"}'.encode(),
        b'"\\u00e4\\ud83d\\ude00"',
        b'{"a":1,"a":2}',
    ],
)
def test_a_value_is_kept_as_it_was_written(line: bytes) -> None:
    """Blanks, order, number formats and repeated names are the sender's."""
    assert _parse(line + b"\n") == ([Record(line)], [])


def test_the_newline_of_windows_is_no_part_of_the_value() -> None:
    """A carriage return before the newline ends the line too."""
    assert _parse(b"1\r\n\r\n2\n") == ([Record(b"1"), Record(b"2")], [])


@pytest.mark.parametrize("blank", [b"\n", b"  \n", b"\t\r\n"])
def test_a_blank_line_is_no_event_and_no_fault(blank: bytes) -> None:
    assert _parse(blank) == ([], [])


@pytest.mark.parametrize(
    "line",
    [b"{", b"nul", b"{'a':1}", b"NaN", b"1 2", b"01", b'"a\tb"', b"[1,]", b"\xef\xbb\xbf1"],
)
def test_what_is_no_json_is_refused(line: bytes) -> None:
    """The reason says so, and the lines around it are taken."""
    records, refusals = _parse(b"1\n" + line + b"\n2\n")
    assert records == [Record(b"1"), Record(b"2")]
    assert [index for index, _ in refusals] == [1]
    assert refusals[0][1].startswith("no JSON: ")


@pytest.mark.parametrize(
    ("line", "lone", "byte"),
    [
        (b'{"a":"\\ud800"}', "\\ud800", 6),
        (b'{"a":"\\uDC00x"}', "\\uDC00", 6),
        (b'"\\ud83d\\ude00\\ud83d x"', "\\ud83d", 13),
        (b'"\\ude00\\ud83d"', "\\ude00", 1),
        (b'"\\\\\\ud800\\u0041"', "\\ud800", 3),
    ],
)
def test_half_a_character_is_refused_by_that_name(line: bytes, lone: str, byte: int) -> None:
    """Such text has no UTF-8: no reader of the topic could decode it."""
    reason = f"a lone surrogate is no character: {lone} (byte {byte})"
    for key in (None, "json:a"):
        assert _parse(line + b"\n", key) == ([], [(0, reason)])


def test_an_escaped_backslash_before_a_u_is_no_surrogate() -> None:
    ((_, reason),) = _parse(b'"\\\\ud800\n')[1]
    assert reason.startswith("no JSON: ")


@pytest.mark.parametrize("line", [b'"\xff"', b'{"\xc3":1}', b'"\xed\xa0\x80"'])
def test_what_is_no_utf8_is_refused(line: bytes) -> None:
    """Also inside of strings, where a lenient reader would let it pass."""
    assert _parse(line + b"\n")[1][0][1].startswith("no UTF-8: byte 0x")


def test_nesting_without_end_is_refused() -> None:
    """A line made to exhaust the reader is a bad line like any other."""
    parser = EventParser(parse_key("json:a"), 1 << 20)
    reason = parser.parse_value(b"[" * 100_000)
    assert isinstance(reason, str)
    assert reason.startswith("no JSON")


def test_a_line_beyond_the_limit_is_refused() -> None:
    assert _parse(b'"' + b"x" * 100 + b'"\n1\n') == (
        [Record(b"1")],
        [(0, "too long: 102 bytes, at most 64")],
    )


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"a":{"b":"x y"}}', b"x y"),
        (b'{"a":{"b":"\\u00e4\\n"}}', "ä\n".encode()),
        ('{"a":{"b":"ä"}}'.encode(), "ä".encode()),
        (b'{"a":{"b":1.50}}', b"1.50"),
        (b'{"a":{"b":true}}', b"true"),
        (b'{"a":{"b":{"c": 1}}}', b'{"c": 1}'),
        (b'{"a":{"b":""}}', b""),
        (b'{"a":{"b":null}}', None),
        (b'{"a":{"c":1}}', None),
        (b'{"a":[1]}', None),
        (b'{"a":null}', None),
        (b"[]", None),
        (b"7", None),
    ],
)
def test_a_key_is_the_text_of_its_field(line: bytes, key: bytes | None) -> None:
    """A string without its quotes, anything else as written; no field, no key."""
    assert _parse(line + b"\n", "json:a.b") == ([Record(line, key=key)], [])


def test_a_bad_line_is_refused_with_a_key_asked_for_too() -> None:
    """Looking for the key does not keep the rest of the line from being checked."""
    for line in (b'{"a":1,"b":tru}', b"[1", b'{"a":"\xff"}'):
        assert len(_parse(line + b"\n", "json:a")[1]) == 1


@pytest.mark.parametrize("text", ["", "json", "json:", "json:a..b", "json:.", "header:a", "a"])
def test_a_key_that_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(KeySpecError, match=r"expected json:<path>"):
        parse_key(text)


def test_a_field_is_found_as_written() -> None:
    field = JsonField("at")
    assert field.of(b'{"at":"now"}') == b'"now"'
    assert field.text_of(b'{"at":"now"}') == b"now"


@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"\xff", b'{"id":"\\n\xff"}', b'{"id":"\\ud800"}', b"[" * 100_000]
)
def test_a_field_is_not_found_where_it_cannot_be_read(value: bytes | None) -> None:
    """Records that others wrote are of any bytes."""
    assert JsonField("id").id_in(value) is None


@pytest.mark.promise("order-producer-sends-event")
def test_a_number_and_a_text_are_two_ids() -> None:
    written = [b"1", b'"1"', b'"\\u0031"', b"1.0", b"true", b'"true"', b'"\\"1"']
    found = [JsonField("id").id_in(b'{"id": %b}' % one) for one in written]
    assert found[1] == found[2]
    assert len({*found}) == len(written) - 1


def test_lines_of_text_are_events_as_they_are() -> None:
    """Any bytes but a blank line; what is too long is refused, as ever."""
    lines = b"plain words\r\n\n \n\xff{\n" + b"x" * 30 + b"\nlast\n"
    records, refusals = TextParser(20).parse(LineSplitter(20).feed(lines))
    assert [record.value for record in records] == [b"plain words", b"\xff{", b"last"]
    assert [(refusal.index, refusal.reason) for refusal in refusals] == [
        (4, "too long: 30 bytes, at most 20")
    ]


def test_headers_are_taken_out_of_the_event() -> None:
    """As text; a field that is not there, or null, gives none."""
    headers = [parse_header(text) for text in ("ce_id=json:id", "trace=json:meta.trace")]
    parser = EventParser(parse_key("json:k"), 100, headers)
    found = [
        parser.parse_value(value)
        for value in (b'{"k":1,"id":"\\u00e4","meta":{"trace":7}}', b'{"id":null}', b"3")
    ]
    assert [one if isinstance(one, str) else one.headers for one in found] == [
        (("ce_id", "ä".encode()), ("trace", b"7")),
        (),
        (),
    ]


@pytest.mark.parametrize("text", ["id", "=json:id", "id=", "id=header:x", "id=json:a..b"])
def test_a_header_from_nowhere_is_refused(text: str) -> None:
    with pytest.raises(KeySpecError, match=r"expected (NAME=)?json:<path>"):
        parse_header(text)


def test_the_header_of_our_own_ids_is_refused() -> None:
    """Two of that name would be one too many."""
    with pytest.raises(KeySpecError, match="holds the event id"):
        parse_header(f"{EVENT_ID_HEADER}=json:id")


@pytest.mark.promise("field-names-dots")
def test_a_key_or_header_that_no_event_has_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the fields that there are, as the setting takes them."""
    parser = EventParser(parse_key("json:host"), 1 << 10, [("id", parse_key("json:/trace.id"))])
    lines = b'{"host.name":"a","trace.id":1}\n' * 3
    parser.parse(LineSplitter(1 << 10).feed(lines))
    parser.parse_value(b'{"host.name":"a"}')
    (line,) = caplog.messages
    assert "none of 3 events has the field json:host, the key" in line
    assert "and they have the fields /host.name, /trace.id" in line


def test_a_key_that_some_events_have_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    parser = EventParser(parse_key("json:host"), 1 << 10)
    parser.parse(LineSplitter(1 << 10).feed(b'{}\n{"host":1}\n'))
    parser.parse_value(b"{}")
    assert caplog.messages == []


@pytest.mark.promise("in-hole-of-nulls")
@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("data", "lines", "hole_bytes", "places"),
    [
        (b"\0\0\0{}\n1\n", [b"{}", b"1"], 3, [3, 6]),
        (b"1\n\0\0{}\n", [b"1", b"{}"], 2, [0, 4]),
        (b"1\n" + b"\0" * 500 + b"2\n3\n", [b"1", b"2", b"3"], 500, [0, 502, 504]),
        (b"\0\n\0\0\r\n1\n", [b"", b"\r", b"1"], 3, [1, 4, 6]),
        (b"\0\0{}", [b"{}"], 2, [2]),
        (b"1\n\0\0\0", [b"1"], 3, [0]),
        (b"a\0\0b\0\n\0c\n", [b"a\0\0b\0", b"c"], 1, [0, 7]),
        (b"\0 \0\n", [b" \0"], 1, [1]),
    ],
)
def test_nulls_before_a_line_are_passed_over(
    data: bytes, chunk: int, lines: list[bytes], hole_bytes: int, places: list[int]
) -> None:
    """Also a hole larger than the longest line; those within a line stay, and places count all."""
    splitter = LineSplitter(10)
    batches = [splitter.feed(data[at : at + chunk]) for at in range(0, len(data), chunk)]
    batches.append(splitter.finish())
    assert [line for batch in batches for line in batch.lines] == lines
    assert sum(batch.hole_bytes for batch in batches) == hole_bytes
    found = [batch.offset_of(index) for batch in batches for index in range(len(batch.lines))]
    assert found == places
    assert splitter.offset == len(data)
    assert not any(batch.overlong for batch in batches)


def test_a_hole_takes_no_memory() -> None:
    splitter = LineSplitter(4)
    for _ in range(1_000):
        assert splitter.feed(b"\0" * 1_000).lines == []
    assert (splitter.pending_length, splitter.offset) == (1_000_000, 0)
    batch = splitter.feed(b"12\n")
    assert (batch.lines, batch.holes, batch.overlong) == ([b"12"], {0: 1_000_000}, {})


@pytest.mark.promise("in-hole-of-nulls")
@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_what_a_hole_cuts_in_two_is_kept(chunk: int) -> None:
    """It is no event. The hole does not use up what a dead letter can keep."""
    data = b'{"a":1\0\0' + b"\0" * 1_000 + b'{"b":2}\n'
    splitter = LineSplitter(20)
    batches = [splitter.feed(data[at : at + chunk]) for at in range(0, len(data), chunk)]
    (batch,) = [batch for batch in batches if batch.lines]
    assert batch.lines == [b'{"a":1\0{"b":2}']
    assert batch.overlong == {0: len(data) - 1}
    parsed = EventParser(None, 20).parse(batch)
    assert parsed[1][0].reason == f"too long: {len(data) - 1} bytes, at most 20"
    assert batch.end_offset == len(data)


def test_what_is_sent_has_no_holes() -> None:
    """NULs before a line of a request are the client's."""
    assert LineSplitter(10, holes=False).feed(b"\0{}\n").lines == [b"\0{}"]
