"""Records in Arrow's memory become batches that any reader takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.pipelines.rows.record_batches import cut, numbered
from sequitur.producer.kafka.record_batch import (
    Stamp,
    count_of,
    records_of,
    transactional_batch,
)
from tests.support.record_bytes import record_bytes, records

if TYPE_CHECKING:
    from sequitur.pipelines.rows.record_batches import KafkaBatch
    from sequitur.producer.kafka.record_batch import StoredRecord

_STAMP = Stamp(producer_id=7, epoch=3, base_sequence=11)
_LIMIT = 1 << 20
_BASE_MS = 1_700_000_000_000


def _batches(
    array: pa.BinaryArray,
    *,
    timestamps: list[int] | None = None,
    before: int = 0,
    batch_rows: int = 64,
    limit: int = _LIMIT,
) -> list[list[StoredRecord]]:
    found = []
    for batch in _cut(array, before, limit, batch_rows, timestamps):
        records = records_of(_sent(batch))
        assert batch.max_ms == max(record.timestamp_ms for record in records)
        found.append(records)
    return found


def _cut(
    array: pa.BinaryArray,
    before: int,
    limit: int = _LIMIT,
    batch_rows: int = 64,
    timestamps: list[int] | None = None,
) -> list[KafkaBatch]:
    times = np.array(timestamps or [_BASE_MS] * len(array), np.int64)
    return list(cut(array, times, before, base_ms=_BASE_MS, batch_rows=batch_rows, limit=limit))


def _sent(batch: KafkaBatch) -> bytes:
    return transactional_batch(
        batch.records, batch.rows, base_ms=batch.base_ms, max_ms=batch.max_ms, stamp=_STAMP
    )


def _values(count: int) -> list[bytes | None]:
    return [b"value %d" % number for number in range(count)]


# Sizes around where a length takes a second byte, and a third.
_DATA = st.none() | st.binary(max_size=70) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 9000])
_HEADERS = st.lists(st.tuples(st.text(max_size=5), _DATA), max_size=3)


@given(
    rows=st.lists(
        st.tuples(st.tuples(_DATA, _DATA, _HEADERS), st.integers(0, 21_600_000)),
        min_size=1,
        max_size=40,
    ),
    limit=st.integers(1, 20_000),
    before=st.sampled_from([0, 64, 5]),
)
def test_whatever_is_put_in_comes_out(
    rows: list[tuple[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]], int]],
    limit: int,
    before: int,
) -> None:
    """Cut at any size, each record is there once, in order and byte for byte."""
    array = pa.array(
        [record_bytes(n, *row, delta_ms=delta) for n, (row, delta) in enumerate(rows)], pa.binary()
    )
    times = [_BASE_MS + delta for _, delta in rows]
    batches = _batches(array, timestamps=times, before=before, limit=limit)
    found = [record for batch in batches for record in batch]
    assert [(r.key, r.value, list(r.headers)) for r in found] == [row for row, _ in rows]
    assert [record.timestamp_ms for record in found] == times


def test_batch_of_the_jvm_is_sent_as_it_stands() -> None:
    """What the JVM numbered as a batch is neither copied nor read."""
    array = records(_values(64))
    (batch,) = _cut(array, 128)
    assert batch.rows == 64
    assert batch.records.obj is not None
    assert bytes(batch.records) == b"".join(value.as_py() for value in array)


def test_slice_of_an_array_is_its_own_batch() -> None:
    """Arrow may hand out a part of an array: what is around it is left out."""
    array = pa.concat_arrays([records(_values(3)), records(_values(5))]).slice(3, 5)
    ((batch),) = _batches(array)
    assert [record.value for record in batch] == _values(5)


@pytest.mark.parametrize(("before", "limit"), [(10, _LIMIT), (0, 100), (0, 1)])
def test_other_cuts_are_numbered_anew(before: int, limit: int) -> None:
    """Where Arrow's batches are not the JVM's, or too large, each batch counts from 0."""
    for batch in _cut(records(_values(20), first=before), before, limit):
        assert batch.rows == 1 or len(batch.records) <= limit + 2
        assert len(records_of(_sent(batch))) == batch.rows


def test_stamp_is_the_transactions() -> None:
    """Producer id, epoch, sequence and count stand in the header, and the transactional bit."""
    raw = _sent(*_cut(records(_values(9)), 0))
    assert (Stamp.of(raw), count_of(raw)) == (_STAMP, 9)
    assert raw[22] & 0x10


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_record_can_be_numbered_anew(number: int, other: int) -> None:
    """Only the number changes, and the length with it."""
    row = (b"key", b"value", [("a", b"1")])
    found = numbered(memoryview(record_bytes(number, *row, delta_ms=number)), other)
    assert found == record_bytes(other, *row, delta_ms=number)
