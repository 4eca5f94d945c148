"""A record batch is laid out as Kafka's format wants it, whatever stamp it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from sequitur.kafka.record_batch import (
    Stamp,
    StoredRecord,
    count_of,
    halved,
    new_builder,
    records_of,
    seal,
    stamped,
)
from sequitur.kafka.record_format import HEADER_SIZE, Compression

if TYPE_CHECKING:
    from sequitur.kafka.record_batch import Builder

_optional_bytes = st.none() | st.binary(max_size=40)
_records = st.lists(
    st.builds(
        StoredRecord,
        timestamp_ms=st.integers(0, 2**42),
        key=_optional_bytes,
        value=_optional_bytes,
        headers=st.lists(st.tuples(st.text(max_size=8), _optional_bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)
_stamps = st.builds(
    Stamp, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)
)
_compressions = st.sampled_from(get_args(Compression))


def _filled(records: list[StoredRecord]) -> Builder:
    builder = new_builder(1 << 20)
    for index, record in enumerate(records):
        headers = list(record.headers)
        added = builder.append(index, record.timestamp_ms, record.key, record.value, headers)
        assert added is not None
    return builder


@given(_records, _stamps, _compressions)
def test_a_stamped_batch_is_whole(
    records: list[StoredRecord], stamp: Stamp, compression: Compression
) -> None:
    """The reader of aiokafka finds checksum, stamp and every record as they went in."""
    batch = stamped(seal(_filled(records), compression), stamp)
    read = DefaultRecordBatch(batch)
    assert read.validate_crc()
    assert (read.producer_id, read.producer_epoch) == (stamp.producer_id, stamp.epoch)
    assert read.base_sequence == stamp.base_sequence
    assert Stamp.of(batch) == stamp
    assert count_of(batch) == len(records)
    assert records_of(batch) == records


@given(_records, _stamps, _stamps, _compressions)
def test_a_second_stamp_leaves_no_trace_of_the_first(
    records: list[StoredRecord], first: Stamp, second: Stamp, compression: Compression
) -> None:
    """Renumbering a batch gives the same bytes as numbering it so at once."""
    sealed = seal(_filled(records), compression)
    assert stamped(stamped(sealed, first), second) == stamped(sealed, second)


@given(_records.filter(lambda records: len(records) > 1), _compressions)
def test_the_halves_of_a_batch_are_the_batch(
    records: list[StoredRecord], compression: Compression
) -> None:
    """No record is lost, doubled or moved by the split."""
    first, second = halved(seal(_filled(records), compression), compression)
    assert records_of(first) + records_of(second) == records
    assert abs(count_of(first) - count_of(second)) <= 1


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compression_shrinks_what_repeats(compression: Compression) -> None:
    """Each codec is in use, and named in the batch's attributes."""
    records = [StoredRecord(0, b"key", b"value" * 20, ()) for _ in range(100)]
    plain = seal(_filled(records), "none")
    packed = seal(_filled(records), compression)
    assert len(packed) < len(plain) / 2
    assert packed[22] == {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[compression]


def test_what_compression_would_enlarge_stays_plain() -> None:
    """A batch is never larger for being compressed."""
    records = [StoredRecord(0, None, bytes(range(60)), ())]
    assert seal(_filled(records), "lz4") == seal(_filled(records), "none")


def test_a_full_batch_takes_no_more() -> None:
    """The first record always fits, another only up to the limit."""
    builder = new_builder(HEADER_SIZE + 100)
    assert builder.append(0, 0, None, b"x" * 500, []) is not None
    assert builder.append(1, 0, None, b"x", []) is None
    assert builder.size() > 500
