"""Kafka's record batch and record, version 2: what stands where. The one place that says so.

The header of a batch, big-endian (https://kafka.apache.org/documentation/#recordbatch):

    0 base offset q   8 length i   12 leader epoch i   16 magic b   17 CRC32C I   21 attributes h
    23 last offset delta i   27 first timestamp q   35 max timestamp q   43 producer id q
    51 epoch h   53 base sequence i   57 count i   61 records; the CRC is of all from 21 on

A record (https://kafka.apache.org/documentation/#record), each number a zigzag varint:

    length   attributes 0   timestamp delta   offset delta   key length, key   value length, value
    number of headers, then of each: name length, name, value length, value

A null key or value has length -1 and no bytes. The offset delta counts from 0 in each batch, and
the timestamp delta from the batch's first timestamp.

No Kafka client is loaded for this: batches are laid out in Spark's tasks, too.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER_SIZE: Final = 61
"""Bytes of a batch's header."""
NOT_IN_LENGTH: Final = 12
"""The length of a batch counts from behind itself."""
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
"""In the lowest three bits of a batch's attributes."""

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
"""What a builder knows; leader epoch, magic, CRC and stamp come when it is sealed."""
LEADER_AND_MAGIC: Final = struct.pack(">ib", -1, MAGIC)

RECORD_ATTRIBUTES: Final = b"\0"
NULL: Final = b"\x01"
"""The length -1."""
NO_HEADERS: Final = b"\0"
ONE_HEADER: Final = b"\x02"
RECORD_OVERHEAD: Final = 21
"""Bytes a record may take beyond its key, value and headers."""

VARINT_BITS: Final = 7
CONTINUED: Final = 1 << VARINT_BITS
"""Of each byte of a varint, whether another one follows."""


def varint(number: int) -> bytes:
    """Return a zigzag varint of a number that is not negative."""
    zigzag = number << 1
    found = bytearray()
    while zigzag >= CONTINUED:
        found.append(zigzag & (CONTINUED - 1) | CONTINUED)
        zigzag >>= VARINT_BITS
    found.append(zigzag)
    return bytes(found)


def after_varint(record: memoryview, at: int) -> int:
    """Return where what follows a varint begins."""
    while record[at] & CONTINUED:
        at += 1
    return at + 1


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that a zigzag varint stands for, and where what follows begins."""
    zigzag = shift = 0
    while data[at] & CONTINUED:
        zigzag |= (data[at] & (CONTINUED - 1)) << shift
        shift += VARINT_BITS
        at += 1
    zigzag |= data[at] << shift
    return zigzag >> 1 ^ -(zigzag & 1), at + 1
