"""The bytes of Kafka's record batch and record, version 2: what stands where.

The header of a batch, big-endian (https://kafka.apache.org/documentation/#recordbatch):

    0 base offset q   8 length i   12 leader epoch i   16 magic b   17 CRC32C I   21 attributes h
    23 last offset delta i   27 first timestamp q   35 max timestamp q   43 producer id q
    51 epoch h   53 base sequence i   57 count i   61 records; the CRC is of all from 21 on

A record (https://kafka.apache.org/documentation/#record), each number a zigzag varint:

    length   attributes 0   timestamp delta   offset delta   key length, key   value length, value
    number of headers, then of each: name length, name, value length, value

A null key or value has length -1 and no bytes. The offset delta counts from 0 in each batch, and
the timestamp delta from the batch's first timestamp.

Sequence numbers are on the circle from 0 to 2^31 - 1.

Spark's tasks lay out batches, too, and load no Kafka client for it. So LZ4 is laid out here, also
because aiokafka's has level 9: it takes ten times as long for a batch that is 2 % smaller, and
holds the interpreter's lock meanwhile. The other compressions are aiokafka's, loaded at first use.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import cramjam

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


HEADER_SIZE: Final = 61
"""The bytes of a batch's header."""
NOT_IN_LENGTH: Final = 12
"""A batch's length field counts the bytes behind the field."""
LENGTH_OFFSET: Final = 8
ATTRIBUTES_OFFSET: Final = 21
STAMP_OFFSET: Final = 43
COUNT_OFFSET: Final = 57

MAGIC: Final = 2
COMPRESSION_CODES: Final[dict[str, int]] = {
    "none": 0,
    "gzip": 1,
    "snappy": 2,
    "lz4": 3,
    "zstd": 4,
}
"""The values of the lowest three bits in a batch's attributes."""

LENGTH: Final = struct.Struct(">i")
ATTRIBUTES: Final = struct.Struct(">h")
COUNT: Final = struct.Struct(">i")
FRONT: Final = struct.Struct(">qi")
"""Base offset and length."""
MIDDLE: Final = struct.Struct(">hiqq")
"""Attributes, last offset delta, first and max timestamp."""
STAMP: Final = struct.Struct(">qhi")
"""Producer id, epoch and base sequence."""
BUILT_HEADER: Final = struct.Struct(">qi9xhiqq14xi")
"""The fields that a builder knows. Sealing adds leader epoch, magic, CRC and stamp."""
LEADER_AND_MAGIC: Final = struct.pack(">ib", -1, MAGIC)

RECORD_ATTRIBUTES: Final = b"\0"
NULL: Final = b"\x01"
"""The length -1."""
NO_HEADERS: Final = b"\0"
ONE_HEADER: Final = b"\x02"
RECORD_OVERHEAD: Final = 21
"""The bytes that a record may take beyond its key, value and headers."""

VARINT_BITS: Final = 7
CONTINUED: Final = 1 << VARINT_BITS
"""This bit of a varint's byte says that another byte follows."""


def varint(number: int) -> bytes:
    """Return the zigzag varint of a non-negative number."""
    zigzag = number << 1
    found = bytearray()
    while zigzag >= CONTINUED:
        found.append(zigzag & (CONTINUED - 1) | CONTINUED)
        zigzag >>= VARINT_BITS
    found.append(zigzag)
    return bytes(found)


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number in a zigzag varint, and the position behind it."""
    zigzag = shift = 0
    while data[at] & CONTINUED:
        zigzag |= (data[at] & (CONTINUED - 1)) << shift
        shift += VARINT_BITS
        at += 1
    zigzag |= data[at] << shift
    return zigzag >> 1 ^ -(zigzag & 1), at + 1


_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# Independent blocks (the broker reads no others), without checksums, and the size of a block at
# most: the smallest that holds the batch, since a reader allocates as much. Each with the checksum
# of the header itself (https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md).
_LZ4_DESCRIPTORS: Final = (
    (64 << 10, b"\x60\x40\x82"),
    (256 << 10, b"\x60\x50\xfb"),
    (1 << 20, b"\x60\x60\x51"),
    (4 << 20, b"\x60\x70\x73"),
)
_LZ4_END: Final = bytes(4)
_LZ4_UNCOMPRESSED: Final = 1 << 31
_LZ4_BLOCK: Final = struct.Struct("<I")


def lz4_frame(data: memoryview) -> bytes:
    """Return an LZ4 frame from blocks of `cramjam`, whose own frames would hold the GIL."""
    block_bytes, descriptor = next(
        (d for d in _LZ4_DESCRIPTORS if len(data) <= d[0]), _LZ4_DESCRIPTORS[-1]
    )
    parts: list[Any] = [_LZ4_MAGIC, descriptor]
    for start in range(0, len(data), block_bytes):
        block = data[start : start + block_bytes]
        packed = cramjam.lz4.compress_block(block, store_size=False)
        if len(packed) < len(block):
            parts += [_LZ4_BLOCK.pack(len(packed)), packed]
        else:
            parts += [_LZ4_BLOCK.pack(len(block) | _LZ4_UNCOMPRESSED), block]
    parts.append(_LZ4_END)
    return b"".join(parts)


def _gzip(data: memoryview) -> bytes:
    from aiokafka import codec  # noqa: PLC0415 - see above

    return bytes(codec.gzip_encode(data, 6))


def _snappy(data: memoryview) -> bytes:
    from aiokafka import codec  # noqa: PLC0415

    return bytes(codec.snappy_encode(data))


def _zstd(data: memoryview) -> bytes:
    from aiokafka import codec  # noqa: PLC0415

    return bytes(codec.zstd_encode(data, 3))


CODECS: Final[dict[str, Callable[[memoryview], bytes]]] = {
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": lz4_frame,
    "zstd": _zstd,
}


def packed_bytes(records: bytes) -> int:
    """Return the size of records in a batch of the reorder job, without the batch's header."""
    return min(len(records), len(lz4_frame(memoryview(records))))


Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


MAX_MESSAGE_BYTES: Final = "max.message.bytes"
COMPRESSION_TYPE: Final = "compression.type"
CLEANUP_POLICY: Final = "cleanup.policy"
_BROKERS_DEFAULT: Final = 1_048_588
_AS_IT_COMES: Final = frozenset({"producer", "lz4"})
_LENGTHS: Final = 112
"""Bytes of a record and its batch beside payload and batch header, at most, without headers of its
own: lengths, and the one that the reorder job may give it, with its event time."""
HEADER_LENGTHS: Final = 10
_SAFETY: Final = 256
"""One such part of the limit stays free, since lengths between the parts pack differently."""


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """What a topic takes of one record, checked before it is sent as its broker will check it.

    A broker compares a batch with the topic's `max.message.bytes` as the request has it, so
    compressed. If the topic has a compression of its own, the broker compresses the batch again and
    checks it once more. Then the record is checked as if it were not compressed at all, which is
    safe. A topic that is compacted takes no record without a key.
    """

    max_bytes: int = _BROKERS_DEFAULT
    is_packed: bool = True  # whether batches are checked with the compression that we send
    needs_key: bool = False

    @classmethod
    def of(cls, config: Mapping[str, str | None]) -> Self:
        return cls(
            int(config.get(MAX_MESSAGE_BYTES) or _BROKERS_DEFAULT),
            config.get(COMPRESSION_TYPE) in _AS_IT_COMES,
            "compact" in (config.get(CLEANUP_POLICY) or ""),
        )

    @property
    def surely_bytes(self) -> int:
        """A record without headers whose key and value have at most this many bytes always fits."""
        return self.max_bytes - HEADER_SIZE - _LENGTHS

    def takes(self, payload: Iterable[bytes | None], headers: int = 0) -> bool:
        """Return whether the topic takes a record of this size."""
        parts = [part for part in payload if part]
        room = self.surely_bytes - headers * HEADER_LENGTHS
        if sum(map(len, parts)) <= room:
            return True
        if not self.is_packed:
            return False
        return packed_bytes(b"".join(parts)) <= room - self.max_bytes // _SAFETY


MAX_SEQUENCE: Final = 2**31 - 1


def following(sequence: int, count: int) -> int:
    """Return the sequence `count` after `sequence`; 0 follows 2^31 - 1."""
    return (sequence + count) & MAX_SEQUENCE


def reaches(last: int, sequence: int) -> bool:
    """Return whether `sequence` is at or before `last`, by the shorter way round."""
    return (last - sequence) & MAX_SEQUENCE < MAX_SEQUENCE // 2
