"""Kafka's record batch, version 2: built without a sequence, stamped with one when it gets it.

A batch is built and compressed once. Producer id, epoch and base sequence are in its header only,
so that renumbering it after a renewal of the identity costs a checksum and not a new batch.
aiokafka's builder (Cython) lays out the records. `seal` may run in any thread, and its slow parts
release the interpreter's lock.

The header, big-endian (https://kafka.apache.org/documentation/#recordbatch):

    0 base offset q   8 length i   12 leader epoch i   16 magic b   17 CRC32C I   21 attributes h
    23 last offset delta i   27 first timestamp q   35 max timestamp q   43 producer id q
    51 epoch h   53 base sequence i   57 count i   61 records; the CRC is of all from 21 on
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

import google_crc32c
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from sequitur.producer.kafka.compression import CODECS, HEADER_SIZE, lz4_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.producer._settings import Compression

Header: TypeAlias = tuple[str, bytes | None]
Buffer: TypeAlias = bytes | bytearray | memoryview

RECORD_OVERHEAD: Final = 21
"""Bytes a record may take beyond its key, value and headers."""

_MAGIC: Final = 2
_LENGTH_OFFSET: Final = 8
_ATTRIBUTES_OFFSET: Final = 21
_STAMP_OFFSET: Final = 43
_COUNT_OFFSET: Final = 57
_NO_PRODUCER: Final = -1
_LENGTH: Final = struct.Struct(">i")
_ATTRIBUTES: Final = struct.Struct(">h")
_FRONT: Final = struct.Struct(">qi")
_MIDDLE: Final = struct.Struct(">hiqq")
_TRANSACTIONAL: Final = 0x10
_LEADER_AND_MAGIC: Final = struct.pack(">ib", -1, _MAGIC)
_STAMP: Final = struct.Struct(">qhi")
_CODES: Final[dict[str, int]] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Builder(Protocol):
    """What we use of aiokafka's builder."""

    def append(
        self,
        offset: int,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> object | None:
        """Add a record; None when it does not fit. The first one always fits."""

    def build(self) -> bytes | bytearray:
        """The batch, uncompressed."""

    def size(self) -> int:
        """Its bytes so far, with the header."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the broker tells repeats by."""

    producer_id: int
    epoch: int
    base_sequence: int

    @classmethod
    def of(cls, batch: bytes) -> Self:
        """The stamp that a batch carries."""
        return cls(*_STAMP.unpack_from(batch, _STAMP_OFFSET))


NO_STAMP: Final = Stamp(_NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record read back from a batch."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def new_builder(batch_bytes: int) -> Builder:
    """An empty batch that takes records up to `batch_bytes`, uncompressed and with its header."""
    builder: Builder = DefaultRecordBatchBuilder(
        _MAGIC, 0, 0, _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, batch_bytes
    )
    return builder


def seal(builder: Builder, compression: Compression, stamp: Stamp = NO_STAMP) -> bytes:
    """The batch's bytes, compressed if that makes it smaller."""
    plain = builder.build()
    if compression == "none":
        return stamped(plain, stamp)
    records = memoryview(plain)[HEADER_SIZE:]
    packed = CODECS[compression](records)
    if len(packed) >= len(records):
        return stamped(plain, stamp)
    return _assembled(
        plain[:_LENGTH_OFFSET] + _LENGTH.pack(HEADER_SIZE - 12 + len(packed)),
        _ATTRIBUTES.pack(_CODES[compression]) + plain[_ATTRIBUTES_OFFSET + 2 : _STAMP_OFFSET],
        stamp,
        plain[_COUNT_OFFSET:HEADER_SIZE],
        packed,
    )


def stamped(batch: bytes | bytearray, stamp: Stamp, last_ms: int | None = None) -> bytes:
    """The batch under a producer id, epoch and base sequence, with its checksum.

    Args:
        batch: The batch.
        stamp: Its numbers.
        last_ms: The newest timestamp of its records from now on; the others keep their distance.
    """
    view = memoryview(batch)
    middle: Buffer = view[_ATTRIBUTES_OFFSET:_STAMP_OFFSET]
    if last_ms is not None:
        attributes, last_offset, first, last = _MIDDLE.unpack(middle)
        middle = _MIDDLE.pack(attributes, last_offset, first + last_ms - last, last_ms)
    return _assembled(
        view[: _LENGTH_OFFSET + 4],
        middle,
        stamp,
        view[_COUNT_OFFSET:HEADER_SIZE],
        bytes(view[HEADER_SIZE:]),
    )


def batch_of(records: bytes, count: int, *, first_ms: int, last_ms: int) -> bytes:
    """A batch without a stamp of records that are laid out already.

    Args:
        records: One behind the other, their offset deltas from 0.
        count: How many they are.
        first_ms: What their timestamp deltas are counted from.
        last_ms: The newest of their timestamps.
    """
    return _assembled(
        _FRONT.pack(0, HEADER_SIZE - 12 + len(records)),
        _MIDDLE.pack(0, count - 1, first_ms, last_ms),
        NO_STAMP,
        _LENGTH.pack(count),
        records,
    )


def times_of(batch: bytes | bytearray) -> tuple[int, int]:
    """What the timestamps of a batch's records are counted from, and the newest of them."""
    _attributes, _last_offset, first_ms, last_ms = _MIDDLE.unpack_from(batch, _ATTRIBUTES_OFFSET)
    return first_ms, last_ms


def _assembled(front: Buffer, middle: Buffer, stamp: Stamp, count: Buffer, records: bytes) -> bytes:
    head = b"".join(
        (middle, _STAMP.pack(stamp.producer_id, stamp.epoch, stamp.base_sequence), count)
    )
    checksum: int = google_crc32c.extend(google_crc32c.value(head), records)
    return b"".join((front, _LEADER_AND_MAGIC, checksum.to_bytes(4, "big"), head, records))


def transactional_batch(
    records: memoryview, count: int, *, base_ms: int, max_ms: int, stamp: Stamp
) -> bytes:
    """A batch of a transaction, LZ4 if that makes it smaller, of records that are laid out already.

    Args:
        records: One behind the other, their offset deltas from 0.
        count: How many they are.
        base_ms: What their timestamp deltas count from, epoch ms.
        max_ms: The newest of their timestamps: brokers find records of a time by it.
        stamp: The transaction's producer id and epoch, and the batch's sequence.
    """
    packed = lz4_frame(records)
    code = _CODES["lz4"]
    if len(packed) >= len(records):
        packed, code = bytes(records), 0
    return _assembled(
        _FRONT.pack(0, HEADER_SIZE - 12 + len(packed)),
        _MIDDLE.pack(code | _TRANSACTIONAL, count - 1, base_ms, max_ms),
        stamp,
        _LENGTH.pack(count),
        packed,
    )


def count_of(batch: bytes) -> int:
    """How many records a batch holds."""
    (count,) = struct.unpack_from(">i", batch, _COUNT_OFFSET)
    return int(count)


def records_of(batch: bytes) -> list[StoredRecord]:
    """The records of a batch."""
    return [
        StoredRecord(
            timestamp_ms=record.timestamp,
            key=_bytes_or_none(record.key),
            value=_bytes_or_none(record.value),
            headers=tuple((name, _bytes_or_none(value)) for name, value in record.headers),
        )
        for record in DefaultRecordBatch(batch)
    ]


def halved(batch: bytes, compression: Compression) -> tuple[bytes, bytes]:
    """The batch as two, for a broker that refused it as too large."""
    records = records_of(batch)
    assert len(records) > 1
    middle = len(records) // 2
    return _built(records[:middle], compression), _built(records[middle:], compression)


def _built(records: list[StoredRecord], compression: Compression) -> bytes:
    builder = new_builder(2**31 - 1)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    return seal(builder, compression)


def _bytes_or_none(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
