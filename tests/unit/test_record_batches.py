"""Records in Arrow's memory become batches that any reader takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines._record_batches import cut, numbered
from producer._batch import Stamp, count_of, records_of, stamp_of, transactional_batch
from tests.record_bytes import record_bytes, records

if TYPE_CHECKING:
    from producer._batch import Record

_STAMP = Stamp(producer_id=7, epoch=3, base_sequence=11)
_LIMIT = 1 << 20


def _batches(
    array: pa.BinaryArray, *, before: int = 0, batch_rows: int = 64, limit: int = _LIMIT
) -> list[list[Record]]:
    batches = [
        transactional_batch(data, count, timestamp_ms=5, stamp=_STAMP)
        for data, count in cut(array, before, batch_rows, limit)
    ]
    return [records_of(batch) for batch in batches]


def _values(count: int) -> list[bytes | None]:
    return [b"value %d" % number for number in range(count)]


# Sizes around where a length takes a second byte, and a third.
_DATA = st.none() | st.binary(max_size=70) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 9000])
_HEADERS = st.lists(st.tuples(st.text(max_size=5), _DATA), max_size=3)


@settings(deadline=None)  # a loaded machine is no failure
@given(
    rows=st.lists(
        st.tuples(_DATA, _DATA, _HEADERS),
        min_size=1,
        max_size=40,
    ),
    limit=st.integers(1, 20_000),
    before=st.sampled_from([0, 64, 5]),
)
def test_whatever_is_put_in_comes_out(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    limit: int,
    before: int,
) -> None:
    """Cut at any size, each record is there once, in order and byte for byte."""
    array = pa.array([record_bytes(n, *row) for n, row in enumerate(rows)], pa.binary())
    found = [record for batch in _batches(array, before=before, limit=limit) for record in batch]
    assert [(r.key, r.value, list(r.headers)) for r in found] == rows
    assert {record.timestamp_ms for record in found} == {5}


def test_batch_of_the_jvm_is_sent_as_it_stands() -> None:
    """What the JVM numbered as a batch is neither copied nor read."""
    array = records(_values(64))
    ((data, count),) = cut(array, 128, 64, _LIMIT)
    assert count == 64
    assert data.obj is not None
    assert bytes(data) == b"".join(value.as_py() for value in array)


def test_slice_of_an_array_is_its_own_batch() -> None:
    """Arrow may hand out a part of an array: what is around it is left out."""
    array = pa.concat_arrays([records(_values(3)), records(_values(5))]).slice(3, 5)
    ((batch),) = _batches(array)
    assert [record.value for record in batch] == _values(5)


@pytest.mark.parametrize(("before", "limit"), [(10, _LIMIT), (0, 100), (0, 1)])
def test_other_cuts_are_numbered_anew(before: int, limit: int) -> None:
    """Where Arrow's batches are not the JVM's, or too large, each batch counts from 0."""
    for data, count in cut(records(_values(20), first=before), before, 64, limit):
        assert count == 1 or len(data) <= limit + 2
        batch = transactional_batch(data, count, timestamp_ms=0, stamp=_STAMP)
        assert len(records_of(batch)) == count


def test_stamp_is_the_transactions() -> None:
    """Producer id, epoch, sequence and count stand in the header, and the transactional bit."""
    ((data, count),) = cut(records(_values(9)), 0, 64, _LIMIT)
    batch = transactional_batch(data, count, timestamp_ms=0, stamp=_STAMP)
    assert (stamp_of(batch), count_of(batch)) == (_STAMP, 9)
    assert batch[22] & 0x10


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_record_can_be_numbered_anew(number: int, other: int) -> None:
    """Only the number changes, and the length with it."""
    row = (b"key", b"value", [("a", b"1")])
    found = numbered(memoryview(record_bytes(number, *row)), other)
    assert found == record_bytes(other, *row)
