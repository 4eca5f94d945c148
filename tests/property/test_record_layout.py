"""Records laid out a column at a time are those of the reference, byte for byte."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sequitur.kafka.record_batch import (
    NO_STAMP,
    Stamp,
    count_of,
    idempotent_batch,
    records_of,
)
from sequitur.kafka.varint_arrays import varints
from sequitur.pipelines.rows.record_layout import (
    MOST_BATCH_ROWS,
    PIECE_BYTES,
    Headers,
    record_batches,
)
from tests.support.record_bytes import Header, record_bytes, signed_varint

if TYPE_CHECKING:
    from sequitur.pipelines.rows.record_layout import KafkaBatch

Row = tuple[bytes | None, bytes | None, "list[Header] | None"]

# Sizes around where a length takes a second byte, and a third.
_DATA = st.none() | st.binary(max_size=70) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 9000])
_HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), _DATA), max_size=3)
_TIME = 1_700_000_000_000
# Near one another, as within a millisecond's rows, and as far apart as the floor is deep.
_TIMES = st.integers(_TIME, _TIME + 3) | st.integers(_TIME - 21_600_000, _TIME)
_LISTS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _lists(rows: list[Row]) -> pa.ListArray:
    return pa.array(
        [h if h is None else [{"key": k, "value": v} for k, v in h] for _, _, h in rows], _LISTS
    )


def _batches(
    rows: list[Row],
    limit: int,
    chunk: int = 7,
    times: list[int] | None = None,
    *,
    piece: int = PIECE_BYTES,
) -> list[KafkaBatch]:
    def chunked(column: int) -> pa.ChunkedArray:
        arrays = [
            pa.array([row[column] for row in some], pa.binary())
            for some in (rows[at : at + chunk] for at in range(0, len(rows), chunk))
        ]
        return pa.chunked_array(arrays, pa.binary())

    timestamps = np.array(times or [_TIME] * len(rows), np.int64)
    headers = Headers.of(_lists(rows))
    return list(
        record_batches(chunked(0), chunked(1), headers, timestamps, limit, piece_bytes=piece)
    )


def _expected(rows: list[Row], times: list[int] | None = None) -> bytes:
    times = times or [_TIME] * len(rows)
    return b"".join(
        record_bytes(n, key, value, h or (), delta_ms=time - times[0])
        for n, ((key, value, h), time) in enumerate(zip(rows, times, strict=True))
    )


@given(
    st.lists(st.tuples(st.tuples(_DATA, _DATA, _HEADERS), _TIMES), min_size=1, max_size=40),
    st.integers(1, 20_000),
    st.sampled_from([1, 5000, 4 << 20]),
)
def test_records_agree_with_the_reference(
    timed: list[tuple[Row, int]], limit: int, piece: int
) -> None:
    """Null, empty, short and long ones, with headers and without, wherever batches end."""
    rows, times = [row for row, _ in timed], [time for _, time in timed]
    batches = _batches(rows, limit, times=times, piece=piece)
    assert sum(batch.rows for batch in batches) == len(rows)
    begin = 0
    for records, count, base_ms, max_ms in batches:
        own = times[begin : begin + count]
        assert bytes(records) == _expected(rows[begin : begin + count], own)
        assert count == 1 or len(records) <= limit
        assert (base_ms, max_ms) == (own[0], max(own))
        begin += count


@given(
    st.lists(st.tuples(st.tuples(_DATA, _DATA, _HEADERS), _TIMES), min_size=2, max_size=200),
    st.data(),
)
def test_what_is_behind_some_records_is_as_if_laid_out_alone(
    timed: list[tuple[Row, int]], data: st.DataObject
) -> None:
    """An attempt goes on behind what another has sent: but for what its times are counted from."""
    rows, times = [row for row, _ in timed], [time for _, time in timed]
    (batch,) = _batches(rows, 1 << 30, times=times)
    there = data.draw(st.integers(1, len(rows) - 1))
    rest = batch.behind(there)
    expected = b"".join(
        record_bytes(n, key, value, h or (), delta_ms=time - times[0])
        for n, ((key, value, h), time) in enumerate(timed[there:])
    )
    assert bytes(rest.records) == expected
    assert rest[1:] == (len(rows) - there, times[0], max(times[there:]))


def test_readers_find_the_timestamps() -> None:
    """A batch's header says what its records count from, and the newest of them."""
    times = [_TIME + delta for delta in (0, 3, 70_000, -5, 21_600_000, -21_600_000)]
    (batch,) = _batches([(b"k", b"v", None)] * len(times), 1 << 20, times=times)
    raw = idempotent_batch(
        batch.records, batch.rows, base_ms=batch.base_ms, max_ms=batch.max_ms, stamp=NO_STAMP
    )
    assert [record.timestamp_ms for record in records_of(raw)] == times
    assert struct.unpack_from(">qq", raw, 27) == (_TIME, max(times))


def test_batches_are_as_large_as_they_may() -> None:
    """Not one batch more than the limit asks for, and no more rows than their numbers allow."""
    rows: list[Row] = [(b"k", b"v" * 75, None)] * 10_000
    counts = [batch.rows for batch in _batches(rows, 64 << 10)]
    assert min(counts[:-1]) > (64 << 10) // 110
    assert [batch.rows for batch in _batches([(None, b"", None)] * 10_000, 1 << 20)] == [
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
    (batch,) = record_batches(keys, values, headers, np.full(3, _TIME), 1 << 20)
    expected: list[Row] = [
        (b"k", b"v", [("a", b"1"), ("reason", b"late"), ("by-ms", b"5")]),
        (None, b"w", [("by-ms", b"7")]),
        (b"", None, [("reason", b"x")]),
    ]
    assert (bytes(batch.records), batch.rows) == (_expected(expected), 3)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 9_000)))
def test_varints_agree_with_the_reference(numbers: list[int]) -> None:
    found = varints(np.array(numbers, np.int64))
    assert found.to_pylist() == [signed_varint(number) for number in numbers]


def test_stamp_is_the_producers() -> None:
    """Producer id, epoch, sequence and count stand in the header, and no transaction."""
    stamp = Stamp(producer_id=7, epoch=3, base_sequence=11)
    (batch,) = _batches([(b"k", b"v", None)] * 9, 1 << 20)
    raw = idempotent_batch(
        batch.records, 9, base_ms=batch.base_ms, max_ms=batch.max_ms, stamp=stamp
    )
    assert (Stamp.of(raw), count_of(raw)) == (stamp, 9)
    assert not raw[22] & 0x10
