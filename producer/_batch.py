"""Kafka's record batch, version 2: built without a sequence, stamped with one when it leaves.

A batch is built and compressed once. Producer id, epoch and base sequence are written into its
header only when it is about to be sent, so that renumbering it after a renewal of the identity
costs a checksum and not a new batch. aiokafka's builder (Cython) lays out the records; compression
is ours, since its LZ4 level is 9, which takes ten times as long for a batch 2 % smaller.

The header, big-endian (https://kafka.apache.org/documentation/#recordbatch):

    0 base offset q   8 length i   12 leader epoch i   16 magic b   17 CRC32C I   21 attributes h
    23 last offset delta i   27 first timestamp q   35 max timestamp q   43 producer id q
    51 epoch h   53 base sequence i   57 count i   61 records; the CRC is of all from 21 on
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import google_crc32c
from aiokafka import codec
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from producer._settings import Compression

Header: TypeAlias = tuple[str, bytes | None]

HEADER_SIZE: Final = 61
RECORD_OVERHEAD: Final = 21
"""Bytes a record may take beyond its key, value and headers."""

_MAGIC: Final = 2
_CRC_OFFSET: Final = 17
_ATTRIBUTES_OFFSET: Final = 21
_STAMP_OFFSET: Final = 43
_COUNT_OFFSET: Final = 57
_NO_PRODUCER: Final = -1
_FRONT: Final = struct.Struct(">qiibI")
_STAMP: Final = struct.Struct(">qhi")
_COMPRESSION_MASK: Final = 0x07
_CODES: Final[dict[str, int]] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_CODECS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda data: bytes(codec.gzip_encode(data, 6)),
    "snappy": lambda data: bytes(codec.snappy_encode(data)),
    "lz4": lambda data: bytes(codec.lz4_encode(data, 1)),
    "zstd": lambda data: bytes(codec.zstd_encode(data, 3)),
}


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

    def build(self) -> bytearray:
        """The batch, uncompressed."""

    def size(self) -> int:
        """Its bytes so far, with the header."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the broker tells repeats by."""

    producer_id: int
    epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True)
class Record:
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


def seal(builder: Builder, compression: Compression) -> bytes:
    """The batch's bytes, compressed if that makes it smaller, with no sequence yet."""
    plain = builder.build()
    if compression == "none":
        return bytes(plain)
    records = bytes(memoryview(plain)[HEADER_SIZE:])
    packed = _CODECS[compression](records)
    if len(packed) >= len(records):
        return bytes(plain)
    head = plain[:HEADER_SIZE]
    struct.pack_into(">i", head, 8, HEADER_SIZE - 12 + len(packed))
    struct.pack_into(">h", head, _ATTRIBUTES_OFFSET, _CODES[compression])
    return bytes(head) + packed


def stamped(batch: bytes, stamp: Stamp) -> bytes:
    """The batch under a producer id, epoch and base sequence, with its checksum."""
    body = b"".join(
        (
            batch[_ATTRIBUTES_OFFSET:_STAMP_OFFSET],
            _STAMP.pack(stamp.producer_id, stamp.epoch, stamp.base_sequence),
            batch[_COUNT_OFFSET:],
        )
    )
    checksum: int = google_crc32c.value(body)
    return batch[:_CRC_OFFSET] + checksum.to_bytes(4, "big") + body


def stamp_of(batch: bytes) -> Stamp:
    """The stamp that a batch carries."""
    return Stamp(*_STAMP.unpack_from(batch, _STAMP_OFFSET))


def count_of(batch: bytes) -> int:
    """How many records a batch holds."""
    (count,) = struct.unpack_from(">i", batch, _COUNT_OFFSET)
    return int(count)


def records_of(batch: bytes) -> list[Record]:
    """The records of a batch."""
    return [
        Record(
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


def _built(records: list[Record], compression: Compression) -> bytes:
    builder = new_builder(2**31 - 1)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    return seal(builder, compression)


def _bytes_or_none(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
