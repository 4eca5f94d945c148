"""Event times of many records at once, read out of plain JSON objects by Arrow.

Most events are flat JSON objects whose event time is a whole number of 13 digits (2001 to 2286, in
milliseconds), or of 10, 16 or 19 in other units. Three passes over the bytes find it: a regular
expression without a group says which values are one valid object without nesting, escapes or
control characters; in such a value the first place of the field's name in quotes is a string of its
own, and the field where a colon is the very next byte; and the digits behind it are added up as
columns. All other values are left to the reference, row by row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer import TimeUnit, read_event_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer import EventTimeSpec

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

_BLANK: Final = r"[ \t\r\n]*"
_STRING: Final = r'"[^"\\\x00-\x1f]*"'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?"
_MEMBER: Final = f"{_STRING}{_BLANK}:{_BLANK}(?:{_STRING}|{_NUMBER}|true|false|null){_BLANK}"
_PLAIN_OBJECT: Final = rf"^\{{{_BLANK}(?:{_MEMBER}(?:,{_BLANK}{_MEMBER})*)?\}}$"
"""For RE2, which reads a value once, whatever is in it."""

_DIGITS: Final = {TimeUnit.S: 10, TimeUnit.MS: 13, TimeUnit.US: 16, TimeUnit.NS: 19}
"""How long whole numbers of each unit are; with `auto` a number of one length has its unit."""
_MOST_BUT_ONE: Final = (2**63 - 1) // 10
_ENDS: Final = np.isin(np.arange(256), list(b" \t\r\n,}"))
"""Which bytes may follow the number, by their code."""
_SPACE: Final = 0x20
_COLON: Final = ord(":")
_NOT_PLAIN: Final = re.compile(r'[,:"\\\x00-\x1f\ufffd]')
"""Names with these are left to the reference. Between the end of a string and the begin of the next
there is a comma or a colon, so no other name in quotes is found there. What JSON would have to
escape is in no plain object, and what bytes that are not UTF-8 are read as is in none, either.
"""


class PlainJsonTimes:
    """Reads one field at the top of JSON objects.

    Args:
        spec: The field, and how the time is written there.
    """

    def __init__(self, spec: EventTimeSpec) -> None:
        (name,) = spec.path
        self._is_plain = _NOT_PLAIN.search(name) is None
        self._needle = f'"{name}"'.encode()
        unit = spec.format.unit
        self._digits = _DIGITS if unit is TimeUnit.AUTO else {}
        if unit in _DIGITS:
            self._digits = {unit: _DIGITS[unit]}

    def read(self, values: pa.BinaryArray) -> tuple[Longs, Bools]:
        """Return the event time of each value in epoch ms, and whether it was found here.

        What is found is what `sequitur.consumer.read_event_time` gives; what is not, has to be
        asked there.
        """
        count = len(values)
        times = np.zeros(count, np.int64)
        if not count or not self._is_plain or not self._digits:
            return times, np.zeros(count, np.bool_)
        plain = pc.match_substring_regex(values, _PLAIN_OBJECT).fill_null(False)
        place = pc.find_substring(values, self._needle).fill_null(-1)
        found = plain.to_numpy(zero_copy_only=False) & (place.to_numpy() >= 0)
        rows = np.flatnonzero(found)
        if not len(rows):
            return times, found
        _validity, offsets, data = values.buffers()
        begin = np.frombuffer(offsets, np.int32)[values.offset : values.offset + count]
        raw = np.frombuffer(data, np.uint8)
        first = begin[rows].astype(np.int64) + place.to_numpy()[rows] + len(self._needle)
        named = raw[first] == _COLON
        first = np.minimum(first + 1, len(raw) - 1)
        first += raw[first] == _SPACE
        rows, first = rows[named], first[named]
        found[:] = False
        for unit, digits in self._digits.items():
            number, is_whole = _numbers(raw, first, digits)
            own = rows[is_whole]
            times[own] = _in_ms(number[is_whole], unit)
            found[own] = True
        return times, found


def _numbers(raw: np.ndarray[Any, Any], first: Longs, digits: int) -> tuple[Longs, Bools]:
    """Whole numbers of so many digits that begin at some places of the bytes, where there are."""
    numbers, is_whole = np.zeros(len(first), np.int64), np.zeros(len(first), np.bool_)
    # A plain object ends behind its number, so only a shorter one can reach beyond all bytes.
    places = np.flatnonzero(first <= len(raw) - digits - 1)
    if not len(places):
        return numbers, is_whole
    seen = np.lib.stride_tricks.sliding_window_view(raw, digits + 1)[first[places]]
    each = seen[:, :-1] - np.uint8(ord("0"))
    whole = (each <= 9).all(axis=1) & _ENDS[seen[:, -1]]  # noqa: PLR2004 - a digit
    front = each[:, :-1] @ (10 ** np.arange(digits - 2, -1, -1, dtype=np.int64))
    whole &= front < _MOST_BUT_ONE  # the rest are more than 64 bits hold, or nearly
    # Without a leading zero: JSON has none, and the length would say another unit.
    whole &= each[:, 0] > 0
    numbers[places] = np.where(whole, front, 0) * 10 + np.where(whole, each[:, -1], 0)
    is_whole[places] = whole
    return numbers, is_whole


def _in_ms(numbers: Longs, unit: TimeUnit) -> Longs:
    """Epoch ms of whole numbers that are not negative."""
    if unit is TimeUnit.S:
        return numbers * 1000
    factor = {TimeUnit.MS: 1, TimeUnit.US: 1_000, TimeUnit.NS: 1_000_000}[unit]
    return numbers if factor == 1 else numbers // factor


def read_each(
    spec: EventTimeSpec, values: pa.BinaryArray, rows: Longs
) -> tuple[Sequence[int | None], Sequence[str | None]]:
    """Return the event times of some values by the reference, and the reasons of those without one.

    Args:
        spec: Where it stands, in the value.
        values: The values.
        rows: Which of them.
    """
    found = [
        read_event_time(spec, value=value) for value in values.take(pa.array(rows)).to_pylist()
    ]
    return [one.ms for one in found], [one.reason for one in found]
