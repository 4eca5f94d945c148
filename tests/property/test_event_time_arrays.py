"""Where Arrow finds an event time, the reference finds the same one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sequitur.base.json_field import FieldPath, parse_key
from sequitur.consumer.reorder import EventTimeSpec, TimeFormat, TimeUnit, parse_event_time_spec
from sequitur.consumer.reorder.event_time import read_event_time
from sequitur.consumer.reorder.reasons import MISSING
from sequitur.pipelines.rows.columns import READ_SCHEMA
from sequitur.pipelines.rows.event_times import plain_json_times, read_each, read_many
from tests.support.event_time_cases import JSON_CASES
from tests.support.json_documents import PLAIN, PLAIN_TEXT, damaged, documents
from tests.support.values import replace

_SPEC = parse_event_time_spec("json:at")
_NAMES = ("at", ":", ",", "", "a:t", "a")
_TIME = 1_700_000_000_000


def _found(values: list[bytes | None], spec: EventTimeSpec = _SPEC) -> list[int | None]:
    times, found = plain_json_times(spec, pa.array(values, pa.binary()))
    return [int(time) if one else None for time, one in zip(times, found, strict=True)]


def _rows(records: list[tuple[bytes | None, list[tuple[str, bytes | None]], int]]) -> pa.Table:
    columns = [
        {
            "value": value,
            "headers": [{"key": name, "value": data} for name, data in headers] or None,
            "timestamp_ms": timestamp_ms,
        }
        for value, headers, timestamp_ms in records
    ]
    schema = [READ_SCHEMA.field(name) for name in ("value", "headers", "timestamp_ms")]
    return pa.Table.from_pylist(columns, pa.schema(schema))


# Most numbers of the documents are short; these have the digits that are looked for.
_LONG = (
    st.integers(10**12, 10**13 - 1)
    | st.integers(10**9, 10**10 - 1)
    | st.integers(10**15, 10**16 - 1)
    | st.integers(10**18, 10**19 - 1)
    | st.just(2**63 - 1)
)
_TIMED = st.builds(
    lambda document, time: document.replace('"at":', f'"at":{time}').replace(" 5", f" {time}"),
    documents() | damaged(),
    _LONG,
)
_FIELD = st.builds(
    '"{}"{}{}'.format,
    st.sampled_from(_NAMES),
    st.sampled_from([":", " :", ": "]),
    _LONG | st.sampled_from(['"at"', '":"', '""', "1"]),
)
_SIMPLE = st.lists(_FIELD, min_size=1, max_size=4).map(lambda fields: f"{{{','.join(fields)}}}")


@pytest.mark.promise("order-event-times-seconds")
@given(
    st.lists(documents() | damaged() | _TIMED | _SIMPLE, max_size=8),
    st.sampled_from(_NAMES),
    st.sampled_from(TimeUnit),
)
@example(['{"at":1700000000000}'], "at", TimeUnit.MS)
@example(['{"a":1, "at": 1700000000000, "at": 1700000000001}'], "at", TimeUnit.MS)
@example(['{"at":null,"at":1700000000000}'], "at", TimeUnit.MS)
@example(['{"a":"at","at":1700000000000}'], "at", TimeUnit.MS)
@example(['{"a":"x"at":1700000000000}'], "at", TimeUnit.MS)
@example(
    ['{"at":17000000000001}', '{"at":170000000000}', '{"at":1700000000000.5}'], "at", TimeUnit.MS
)
@example(
    ['{"at":1700000000000e1}', '{"at":-1700000000000}', '{"at":"1700000000000"}'], "at", TimeUnit.MS
)
@example(
    ['{"at":1700000000000}x', '{"at": 1700000000000 }', '{"at":  1700000000000}'], "at", TimeUnit.MS
)
@example(
    ['{"xat":1700000000000}', '{"at":{"at":1700000000000}}', '{"b":{"at":1700000000000}}'],
    "at",
    TimeUnit.MS,
)
@example(['{"at":7}'], "at", TimeUnit.MS)
@example(['{"at" :1600000000000,"at":1700000000000}'], "at", TimeUnit.MS)
@example(['{"":":",":":1700000000000}'], ":", TimeUnit.MS)
def test_what_is_found_is_what_the_reference_finds(
    values: list[str], name: str, unit: TimeUnit
) -> None:
    """It is found, and then the answer is the same; or the value is left alone."""
    spec = EventTimeSpec(_SPEC.source, (name,), TimeFormat(unit))
    raw = [value.encode() for value in values]
    for value, time in zip(raw, _found(list(raw), spec), strict=True):
        if time is not None:
            assert read_event_time(spec, value=value).ms == time


_NESTED = st.recursive(
    _SIMPLE | _TIMED | st.sampled_from(["1", '"a"', "[]", '["at",{"at":1}]', "null"]),
    lambda inner: st.lists(st.tuples(st.sampled_from(["a", "at", "b"]), inner), max_size=3).map(
        lambda fields: "{" + ",".join(f'"{name}":{value}' for name, value in fields) + "}"
    ),
    max_leaves=6,
)


@given(
    st.lists(_NESTED, max_size=6),
    st.sampled_from([("a", "at"), ("a",), ("b", "a", "at"), ("at", "at"), ("a", "b", "a", "b")]),
)
@example(['{"a":{"at":1700000000000}}', '{"a":{"at":1700000000000},"a":{"at":1}}'], ("a", "at"))
@example(['{"a":{"b":{}},"a":{"at":1700000000000}}', '{"a":[{"at":1700000000000}]}'], ("a", "at"))
@example(['{"b":{"at":1700000000000},"a":{}}', '{"a":{"at":1700000000000}'], ("a", "at"))
@example(['{"b":{"a":1700000000001},"a":1700000000000}'], ("a",))
@example(['{"b":[1,"x"],"a":1700000000000}'], ("a",))
@example(['{"at":{"at":1700000000000}}'], ("at", "at"))
def test_what_is_found_deeper_is_what_the_reference_finds(
    values: list[str], path: tuple[str, ...]
) -> None:
    """Along a path of several names, and beside objects and arrays."""
    spec = replace(_SPEC, path=path)
    raw = [value.encode() for value in values]
    for value, time in zip(raw, _found(list(raw), spec), strict=True):
        if time is not None:
            assert read_event_time(spec, value=value).ms == time


def test_nested_times_are_found() -> None:
    """It is worth something: of usual events with an envelope none is left to the reference."""
    texts = [
        json.dumps({"id": 7, "meta": {"by": "x", "at": _TIME, "n": [1, "b"]}, "body": {"at2": 1}}),
        json.dumps({"meta": {"at": _TIME}}, indent=1),
    ]
    spec = replace(_SPEC, path=("meta", "at"))
    assert _found([text.encode() for text in texts], spec) == [_TIME, _TIME]
    beside = json.dumps({"body": {"x": {}, "y": 1}, "at": _TIME}).encode()
    shallow = json.dumps({"body": {"x": "z", "y": 1}, "tags": ["a", "b"], "at": _TIME}).encode()
    assert _found([beside, shallow]) == [None, _TIME]


_HEADER_VALUES = _LONG.map(lambda number: b"%d" % number) | st.sampled_from(
    [None, b"", b" 1700000000000", b"0700000000000", b"170000000000x", b"1700000000000.5"]
)


@given(
    st.lists(
        st.tuples(
            st.none(),
            st.lists(st.tuples(st.sampled_from(["at", "by", ""]), _HEADER_VALUES), max_size=4),
            st.integers(-2, 2**63 - 1),
        ),
        max_size=6,
    ),
    st.sampled_from(["header:at", "kafka-timestamp"]),
    st.sampled_from(TimeUnit),
)
def test_headers_and_timestamps_are_the_references(
    records: list[tuple[None, list[tuple[str, bytes | None]], int]], where: str, unit: TimeUnit
) -> None:
    spec = replace(parse_event_time_spec(where), format=TimeFormat(unit))
    times, found = read_many(spec, _rows(list(records)))
    for (_, headers, timestamp_ms), time, is_found in zip(records, times, found, strict=True):
        expected = read_event_time(spec, headers=headers, kafka_timestamp_ms=timestamp_ms)
        if is_found:
            assert int(time) == expected.ms
        elif unit is TimeUnit.MS and where == "kafka-timestamp":
            assert expected.ms is None


def test_last_header_is_found() -> None:
    """Of many rows with many headers, also at the end of the bytes."""
    spec = parse_event_time_spec("header:at")
    last: list[tuple[str, bytes | None]] = [("x", b"7"), ("at", b"1"), ("at", b"%d" % _TIME)]
    rows = _rows([(None, last, 0), (None, [], 0), (None, [("at", None)], 0), (None, last, 0)])
    times, found = read_many(spec, rows)
    assert found.tolist() == [True, False, False, True]
    assert times[found].tolist() == [_TIME, _TIME]
    assert not read_many(spec, rows.slice(1, 2))[1].any()


@given(
    st.lists(
        st.dictionaries(PLAIN_TEXT.filter(lambda name: name != "at"), PLAIN, max_size=5),
        min_size=1,
        max_size=5,
    ),
    st.integers(10**12, 10**13 - 1),
    st.sampled_from([(",", ":"), (", ", ": ")]),
)
def test_flat_objects_are_found(
    fields: list[dict[str, Any]], time_ms: int, separators: tuple[str, str]
) -> None:
    """It is worth something: plain objects are read, with and without blanks."""
    values: list[bytes | None] = [
        json.dumps({**some, "at": time_ms}, ensure_ascii=False, separators=separators).encode()
        for some in fields
    ]
    assert _found(values) == [time_ms] * len(fields)


@pytest.mark.parametrize("value", [value for value, _ in JSON_CASES])
def test_arrays_agree_with_the_table(value: bytes | None) -> None:
    """What the table says of each value, Arrow says too, or leaves it to the reference."""
    spec = parse_event_time_spec("json:occurred_at")
    expected = read_event_time(spec, value=value)
    (time,) = _found([value], spec)
    assert time in {None, expected.ms}
    rows = _rows([(value, [], -1)])
    times, reasons = read_each(spec, rows, np.array([0]))
    assert (times[0], reasons[0]) == (expected.ms, expected.reason)


@pytest.mark.parametrize(
    ("unit", "number"),
    [("s", 1_700_000_000), ("us", 1_700_000_000_123_999), ("ns", 1_700_000_000_123_999_999)],
)
def test_other_units_are_found(unit: str, number: int) -> None:
    """Under their name and by their size; at the end of the bytes, too."""
    expected = {"s": _TIME}.get(unit, _TIME + 123)
    value = b'{"at":%d}' % number
    for written in (unit, "auto"):
        spec = parse_event_time_spec(f"json:at as {written}")
        assert _found([value, b'{"at":5}'], spec) == [expected, None]
    assert _found([value, value]) == [None, None]


def test_bytes_that_are_not_utf8_are_no_hindrance() -> None:
    """They are replaced by the reference, and swallow no quote."""
    value = b'{"a":"\xe2\xff","at":1700000000000}'
    assert _found([value]) == [_TIME] == [read_event_time(_SPEC, value=value).ms]


def test_slice_of_an_array_is_read_as_it_is() -> None:
    """Arrow may hand out a part of an array, and values that are null."""
    values = pa.array([b"{}", None, b'{"at":1700000000000}', None], pa.binary()).slice(1, 2)
    times, found = plain_json_times(_SPEC, values)
    assert (times.tolist(), found.tolist()) == ([0, _TIME], [False, True])


@pytest.mark.parametrize("name", ["", "a.b+(c)", "\u00e9", "$"])
def test_names_are_taken_literally(name: str) -> None:
    """A name with characters that mean something elsewhere stands for itself."""
    values: list[bytes | None] = [
        json.dumps({"aXb+(c)": 1, name: _TIME}, ensure_ascii=False).encode()
    ]
    assert _found(values, replace(_SPEC, path=(name,))) == [_TIME]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", ":", "a,b", "\ufffd"])
def test_names_that_are_not_plain_are_left_to_the_reference(name: str) -> None:
    """JSON writes them in more than one way, or they may stand between two strings."""
    assert _found([json.dumps({name: _TIME}).encode()], replace(_SPEC, path=(name,))) == [None]


_DOTTED_NAMES = st.sampled_from(["a", "b", "a.b", "b.c", "c", "a.b.c", "", "/", "~", "é.b", "0"])
_WITH_DOTS = st.recursive(
    st.integers(10**12, 10**13 - 1) | st.sampled_from([None, 7, "x", "1700000000000", True]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_DOTTED_NAMES, inner, max_size=3),
    max_leaves=8,
)
_PATHS = st.sampled_from(
    ["a", "a.b", "b.c", "a.b.c", "é.b", "/a.b", "/a/b", "/a/b.c", "/a.b/c", "/", "/a/0", "/0/a.b"]
) | st.lists(_DOTTED_NAMES, min_size=1, max_size=3).map(
    lambda names: str(FieldPath(tuple(names), is_pointer=True))
)


@pytest.mark.promise("field-names-dots")
@given(st.lists(st.dictionaries(_DOTTED_NAMES, _WITH_DOTS, max_size=4), max_size=6), _PATHS)
@example([{"a.b": _TIME, "a": {"b": 1}}, {"a.b": _TIME}, {"a": {"b": _TIME}}], "a.b")
@example([{"a": {"b.c": _TIME}}, {"a.b": {"c": _TIME}}, {"a.b.c": _TIME, "a": 1}], "a.b.c")
@example([{"a": {"b": None}, "a.b": _TIME}, {"a.b": _TIME, "a": None}], "a.b")
@example([{"": _TIME, "a": ""}, {"a": "", "": _TIME}], "/")
def test_all_readers_agree_on_names_with_dots(documents: list[dict[str, Any]], path: str) -> None:
    """Columns, the reference row by row, and what takes keys, headers and ids out of values."""
    spec, field = parse_event_time_spec(f"json:{path}"), parse_key(f"json:{path}")
    raw: list[bytes | None] = [json.dumps(one).encode() for one in documents]
    for value, time in zip(raw, _found(raw, spec), strict=True):
        assert value is not None
        expected = read_event_time(spec, value=value)
        assert time in {None, expected.ms}
        text = field.text_of(value)
        assert (text is None) is (expected.reason == MISSING)
        if text is not None:
            assert spec.format.read(text.decode()) == expected.ms


@pytest.mark.promise("field-names-dots")
@pytest.mark.parametrize("path", ["event.created", "/event.created"])
def test_flat_objects_with_dots_are_found(path: str) -> None:
    """It is worth something: logs in ECS are read as columns, by either spelling."""
    value = json.dumps({"event.created": _TIME, "host.name": "web-1", "n": None}).encode()
    assert _found([value], parse_event_time_spec(f"json:{path}")) == [_TIME]
