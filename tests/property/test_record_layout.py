"""Records laid out a column at a time are those of the reference, byte for byte."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import _record_layout
from pipelines._record_batches import varint
from pipelines._record_layout import MOST_BATCH_ROWS, Headers, record_batches, varints
from tests.record_bytes import Header, record_bytes

Row = tuple[bytes | None, bytes | None, "list[Header] | None"]

# Sizes around where a length takes a second byte, and a third.
_DATA = st.none() | st.binary(max_size=70) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 9000])
_HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), _DATA), max_size=3)
_LISTS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _lists(rows: list[Row]) -> pa.ListArray:
    return pa.array(
        [h if h is None else [{"key": k, "value": v} for k, v in h] for _, _, h in rows], _LISTS
    )


def _batches(rows: list[Row], limit: int, chunk: int = 7) -> list[tuple[bytes, int]]:
    def chunked(column: int) -> pa.ChunkedArray:
        arrays = [
            pa.array([row[column] for row in some], pa.binary())
            for some in (rows[at : at + chunk] for at in range(0, len(rows), chunk))
        ]
        return pa.chunked_array(arrays, pa.binary())

    found = record_batches(chunked(0), chunked(1), Headers.of(_lists(rows)), limit)
    return [(bytes(records), count) for records, count in found]


def _expected(rows: list[Row]) -> bytes:
    return b"".join(record_bytes(n, key, value, h or ()) for n, (key, value, h) in enumerate(rows))


@settings(deadline=None)  # a loaded machine is no failure
@given(
    st.lists(st.tuples(_DATA, _DATA, _HEADERS), min_size=1, max_size=40),
    st.integers(1, 20_000),
    st.sampled_from([1, 5000, 4 << 20]),
)
def test_records_agree_with_the_reference(rows: list[Row], limit: int, piece: int) -> None:
    """Null, empty, short and long ones, with headers and without, wherever batches end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_record_layout, "_PIECE_BYTES", piece)
        batches = _batches(rows, limit)
    assert sum(count for _, count in batches) == len(rows)
    begin = 0
    for records, count in batches:
        assert records == _expected(rows[begin : begin + count])
        assert count == 1 or len(records) <= limit
        begin += count


def test_batches_are_as_large_as_they_may() -> None:
    """Not one batch more than the limit asks for, and no more rows than their numbers allow."""
    rows: list[Row] = [(b"k", b"v" * 75, None)] * 10_000
    counts = [count for _, count in _batches(rows, 64 << 10)]
    assert min(counts[:-1]) > (64 << 10) // 110
    assert [count for _, count in _batches([(None, b"", None)] * 10_000, 1 << 20)] == [
        MOST_BATCH_ROWS,
        10_000 - MOST_BATCH_ROWS,
    ]


def test_headers_can_be_added() -> None:
    """Behind a record's own; a record without a value gets no header of that name."""
    rows: list[Row] = [(b"k", b"v", [("a", b"1")]), (None, b"w", None), (b"", None, [])]
    added = [
        ("reason", pa.array(["late", None, "x"])),
        ("by-ms", pa.array([5, 7, None], pa.int64())),
    ]
    headers = Headers.of(_lists(rows)).and_(added)
    keys, values = (pa.chunked_array([pa.array([r[n] for r in rows], pa.binary())]) for n in (0, 1))
    ((records, count),) = record_batches(keys, values, headers, 1 << 20)
    expected: list[Row] = [
        (b"k", b"v", [("a", b"1"), ("reason", b"late"), ("by-ms", b"5")]),
        (None, b"w", [("by-ms", b"7")]),
        (b"", None, [("reason", b"x")]),
    ]
    assert (bytes(records), count) == (_expected(expected), 3)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_varints_agree_with_the_reference(numbers: list[int]) -> None:
    """Of any size."""
    found = varints(np.array(numbers, np.int64))
    assert found.to_pylist() == [varint(number) for number in numbers]
