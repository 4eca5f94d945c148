"""How batches are compressed.

LZ4 is laid out here: aiokafka's has level 9, which takes ten times as long for a batch 2 % smaller,
and holds the interpreter's lock meanwhile. The others are aiokafka's, loaded when one is used: how
large records are once they are packed is also asked where there is no Kafka client.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Literal

import cramjam

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Return an LZ4 frame by blocks of `cramjam`, whose own frames hold the interpreter's lock."""
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
    """Return how large records are in a batch of the reorder job's, without the batch's header."""
    return min(len(records), len(lz4_frame(memoryview(records))))


Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
