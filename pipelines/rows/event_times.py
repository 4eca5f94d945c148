"""Event times of many records at once, read by Arrow where it can be sure of them.

- **In the value.** Most events are JSON objects whose event time is a whole number of 13 digits
  (2001 to 2286, in milliseconds), or of 10, 16 or 19 digits in other units. Passes over the bytes
  find it:

  1. A regular expression without a group finds the values that are one valid object with the field
     in its place. They have no escapes, no control characters, and no deeper nesting.
  2. In such a value the field's name stands in quotes only at the field. The very next byte has to
     be a colon.
  3. The digits after it are added up as columns.

- **In a header.** The last header of the name, if it is nothing but digits.
- **Kafka's own timestamp.** As it is.

The reference, `sequitur.consumer.reorder.event_time.read_event_time`, reads all other rows, one by
one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer.reorder import EventTimeSource, TimeUnit
from sequitur.consumer.reorder.event_time import read_event_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.reorder import EventTimeSpec

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]


_BLANK: Final = r"[ \t\r\n]*"
_STRING: Final = r'"[^"\\\x00-\x1f]*"'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?"
_SCALAR: Final = f"{_STRING}|{_NUMBER}|true|false|null"


def _several(one: str) -> str:
    """Match none or more, with commas between them."""
    return f"(?:{one}(?:,{_BLANK}{one})*)?"


def _member(value: str) -> str:
    return f"{_STRING}{_BLANK}:{_BLANK}(?:{value}){_BLANK}"


_PLAIN_OBJECT: Final = rf"^\{{{_BLANK}{_several(_member(_SCALAR))}\}}$"
"""For RE2, which reads a value once, whatever is in it."""
_SHALLOW: Final = (
    rf"{_SCALAR}|\{{{_BLANK}{_several(_member(_SCALAR))}\}}"
    rf"|\[{_BLANK}{_several(f'(?:{_SCALAR}){_BLANK}')}\]"
)
"""What may stand beside the field, and beside what it is in."""
_MOST_NAMES: Final = 4
"""Paths that are longer are left to the reference: the expression grows with each name."""
_DIGITS: Final = {TimeUnit.S: 10, TimeUnit.MS: 13, TimeUnit.US: 16, TimeUnit.NS: 19}
"""How long whole numbers of each unit are; with `auto` a number of one length has its unit."""
_MOST: Final = 2**63 - 1
_MOST_SECONDS: Final = _MOST // 1000
_ENDS: Final = np.isin(np.arange(256), list(b" \t\r\n,}"))
"""Which bytes may follow the number, by their code."""
_SPACE: Final = 0x20
_COLON: Final = ord(":")
_NOT_PLAIN: Final = re.compile(r'[,:"\\\x00-\x1f\ufffd]')
"""Names with these are left to the reference. Between the end of a string and the begin of the next
there is a comma or a colon, so no other name in quotes is found there. What JSON would have to
escape is in no plain object, and what bytes that are not UTF-8 are read as is in none, either.
"""


def read_many(spec: EventTimeSpec, rows: pa.Table) -> tuple[Longs, Bools]:
    """Return the event time of each row in epoch ms, and whether it was found here.

    What is found is what `read_event_time` gives; what is not, has to be asked
    there (`read_each`).
    """
    match spec.source:
        case EventTimeSource.JSON:
            return plain_json_times(spec, rows["value"].combine_chunks())
        case EventTimeSource.HEADER:
            return _of_headers(spec, rows["headers"].combine_chunks())
        case EventTimeSource.KAFKA_TIMESTAMP:
            numbers = rows["timestamp_ms"].to_numpy()
            most = _MOST_SECONDS if spec.format.unit is TimeUnit.S else _MOST
            if spec.format.unit is None or spec.format.unit is TimeUnit.AUTO:
                return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
            found: Bools = (numbers >= 0) & (numbers <= most)
            return _in_ms(np.where(found, numbers, 0), spec.format.unit), found


def read_each(
    spec: EventTimeSpec, rows: pa.Table, places: Longs
) -> tuple[Sequence[int | None], Sequence[str | None]]:
    """Return event times by the reference, and the reasons of rows without one."""
    some = rows.select(["value", "headers", "timestamp_ms"]).take(pa.array(places))
    found = [
        read_event_time(
            spec,
            value=value,
            headers=[(one["key"], one["value"]) for one in headers or ()],
            kafka_timestamp_ms=timestamp_ms,
        )
        for value, headers, timestamp_ms in zip(
            *(some[name].to_pylist() for name in some.column_names), strict=True
        )
    ]
    return [one.ms for one in found], [one.reason for one in found]


def plain_json_times(spec: EventTimeSpec, values: pa.BinaryArray) -> tuple[Longs, Bools]:
    """Return the event time in each JSON object in epoch ms, and whether it was found here."""
    count = len(values)
    times, found = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    left = np.arange(count)
    for pattern, name in _patterns(spec):
        if len(left):
            own = values if len(left) == count else values.take(pa.array(left))
            times[left], found[left] = _of_objects(spec, own, pattern, name)
            left = left[~found[left]]
    return times, found


def _patterns(spec: EventTimeSpec) -> list[tuple[str, str]]:
    """Return expressions for values that have the field, and its name in them.

    A plain object holds no other: the only field of it that a path of several names may be is the
    one whose name they are, joined by dots.
    """
    if not _digits(spec) or any(map(_NOT_PLAIN.search, spec.path)):
        return []
    found = []
    if len(spec.path) == 1 or not spec.is_pointer:
        found.append((_PLAIN_OBJECT, ".".join(spec.path)))
    if len(spec.path) <= _MOST_NAMES:
        found.append((_with_field(spec.path), spec.path[-1]))
    return found


def _of_objects(
    spec: EventTimeSpec, values: pa.BinaryArray, pattern: str, name: str
) -> tuple[Longs, Bools]:
    needle = f'"{name}"'.encode()
    count = len(values)
    place = pc.find_substring(values, needle).fill_null(-1).to_numpy()
    found: Bools = place >= 0
    matches = pc.match_substring_regex(values, pattern).fill_null(False)
    found &= matches.to_numpy(zero_copy_only=False)
    if pattern is not _PLAIN_OBJECT:
        # Another object may have the name, too. In a flat object the first place counts.
        found &= pc.count_substring(values, needle).fill_null(0).to_numpy() == 1
    times = np.zeros(count, np.int64)
    rows = np.flatnonzero(found)
    if not len(rows):
        return times, found
    _validity, offsets, data = values.buffers()
    begin = np.frombuffer(offsets, np.int32)[values.offset : values.offset + count]
    raw = np.frombuffer(data, np.uint8)
    first = begin[rows].astype(np.int64) + place[rows] + len(needle)
    named = raw[first] == _COLON
    first = np.minimum(first + 1, len(raw) - 1)
    first += raw[first] == _SPACE
    rows, first = rows[named], first[named]
    found[:] = False
    for unit, digits in _digits(spec).items():
        number, is_whole = _numbers(raw, first, digits)
        is_whole &= _ENDS[raw[np.minimum(first + digits, len(raw) - 1)]]
        own = rows[is_whole]
        times[own] = _in_ms(number[is_whole], unit)
        found[own] = True
    return times, found


def _with_field(path: Sequence[str]) -> str:
    value = "[1-9][0-9]*"
    beside = _member(_SHALLOW)
    for name in reversed(path):
        field = f'"{re.escape(name)}"{_BLANK}:{_BLANK}{value}{_BLANK}'
        value = rf"\{{{_BLANK}(?:{beside},{_BLANK})*{field}(?:,{_BLANK}{beside})*\}}"
    return f"^{value}$"


def _of_headers(spec: EventTimeSpec, lists: pa.ListArray) -> tuple[Longs, Bools]:
    times, found = np.zeros(len(lists), np.int64), np.zeros(len(lists), np.bool_)
    values = header_values(lists, spec.path[0], last=True)
    if values.null_count == len(values):
        return times, found
    lengths = pc.binary_length(values).fill_null(0).to_numpy()
    _validity, offsets, data = values.buffers()
    first = np.frombuffer(offsets, np.int32)[: len(values)].astype(np.int64)
    raw = np.frombuffer(data or b"", np.uint8)
    for unit, digits in _digits(spec).items():
        number, is_whole = _numbers(raw, first, digits)
        is_whole &= lengths == digits
        times[is_whole] = _in_ms(number[is_whole], unit)
        found |= is_whole
    return times, found


def header_values(lists: pa.ListArray, name: str, *, last: bool) -> pa.BinaryArray:
    """Return the value of each row's first or last header of a name; null without one."""
    each = lists.flatten()
    named = pc.equal(pc.struct_field(each, 0), name).fill_null(False)
    places = np.flatnonzero(named.to_numpy(zero_copy_only=False))[:: 1 if last else -1]
    wanted = np.full(len(lists), -1)
    # If a row has several places, the last one here is kept.
    wanted[pc.list_parent_indices(lists).to_numpy()[places]] = places
    return pc.struct_field(each, 1).take(pa.array(wanted, mask=wanted < 0))


def _digits(spec: EventTimeSpec) -> dict[TimeUnit, int]:
    """Return how many digits a whole number has if its unit is certain, by unit."""
    unit = spec.format.unit
    return {one: digits for one, digits in _DIGITS.items() if unit in {one, TimeUnit.AUTO}}


def _numbers(raw: np.ndarray[Any, Any], first: Longs, digits: int) -> tuple[Longs, Bools]:
    """Return whole numbers of so many digits at places of the bytes, and where there is one."""
    numbers, is_whole = np.zeros(len(first), np.int64), np.zeros(len(first), np.bool_)
    places = np.flatnonzero(first <= len(raw) - digits)
    if not len(places):
        return numbers, is_whole
    seen = np.lib.stride_tricks.sliding_window_view(raw, digits)[first[places]]
    each = seen - np.uint8(ord("0"))
    whole = (each <= 9).all(axis=1)  # noqa: PLR2004 - a digit
    front = each[:, :-1] @ (10 ** np.arange(digits - 2, -1, -1, dtype=np.int64))
    whole &= front < _MOST // 10  # larger numbers do not fit into 64 bits, or hardly
    # Without a leading zero: JSON has none, and it would change the unit by its length.
    whole &= each[:, 0] > 0
    numbers[places] = np.where(whole, front, 0) * 10 + np.where(whole, each[:, -1], 0)
    is_whole[places] = whole
    return numbers, is_whole


def _in_ms(numbers: Longs, unit: TimeUnit) -> Longs:
    """Return whole numbers as epoch ms; none is negative."""
    if unit is TimeUnit.S:
        return numbers * 1000
    factor = {TimeUnit.MS: 1, TimeUnit.US: 1_000, TimeUnit.NS: 1_000_000}[unit]
    return numbers if factor == 1 else numbers // factor
