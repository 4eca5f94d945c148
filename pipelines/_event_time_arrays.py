"""Event times of many records at once, read out of plain JSON objects by Arrow.

Most events are flat JSON objects whose event time is a whole number of 13 digits (2001 to 2286, in
milliseconds). Three passes over the bytes find it: a regular expression without a group says which
values are one valid object without nesting, escapes or control characters; in such a value the
first place of the field's name in quotes is a string of its own, and the field where a colon is the
very next byte; and the digits behind it are added up as columns. All other values are left to the
reference, row by row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumer import read_event_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer import EventTimeSpec

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

_BLANK: Final = r"[ \t\r\n]*"
_STRING: Final = r'"[^"\\\x00-\x1f]*"'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?"
_MEMBER: Final = f"{_STRING}{_BLANK}:{_BLANK}(?:{_STRING}|{_NUMBER}|true|false|null){_BLANK}"
_PLAIN_OBJECT: Final = rf"^\{{{_BLANK}(?:{_MEMBER}(?:,{_BLANK}{_MEMBER})*)?\}}$"
"""For RE2, which reads a value once, whatever is in it."""

_DIGITS: Final = 13
_WEIGHTS: Final = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)
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
        name: The field.
    """

    def __init__(self, name: str) -> None:
        self._is_plain = _NOT_PLAIN.search(name) is None
        self._needle = f'"{name}"'.encode()

    def read(self, values: pa.BinaryArray) -> tuple[Longs, Bools]:
        """The event time of each value in epoch ms, and whether it was found here.

        What is found is what `consumer.read_event_time` gives; what is not, has to be asked there.
        """
        count = len(values)
        times = np.zeros(count, np.int64)
        if not count or not self._is_plain:
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
        # A plain object ends behind its number, so only a shorter one can reach beyond all bytes.
        named &= first <= len(raw) - _DIGITS - 1
        rows, first = rows[named], first[named]
        found[:] = False
        if not len(rows):
            return times, found
        digits = np.lib.stride_tricks.sliding_window_view(raw, _DIGITS + 1)[first]
        numbers = digits[:, :-1] - np.uint8(ord("0"))
        whole = (numbers <= 9).all(axis=1) & _ENDS[digits[:, -1]]  # noqa: PLR2004 - a digit
        times[rows] = np.where(whole, numbers @ _WEIGHTS, 0)
        found[rows] = whole
        return times, found


def read_each(
    spec: EventTimeSpec, values: pa.BinaryArray, rows: Longs
) -> tuple[Sequence[int | None], Sequence[str | None]]:
    """The event times of some values by the reference, and the reasons of those without one.

    Args:
        spec: Where it stands, in the value.
        values: The values.
        rows: Which of them.
    """
    found = [
        read_event_time(spec, value=value) for value in values.take(pa.array(rows)).to_pylist()
    ]
    return [one.ms for one in found], [one.reason for one in found]
