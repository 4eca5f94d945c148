"""Bytes of a cursor, without any I/O.

Integers of the header are big endian::

    header   magic "SQCR" | version u8 | length of the body u64 | length unpacked u64 | CRC32C u32
    body     zlib of: length of the meta u32 | meta (MessagePack) | distances | lengths
                      | distances, lengths and times of redeliveries

* The CRC covers all but itself; with the lengths, no cut and no changed byte goes unseen.
* ``distances`` say how far each acked range begins behind the one before it, ``lengths`` how long
  it is. Each column stands byte by byte: the lowest bytes of all its numbers, then the next ones.
  The upper bytes are nearly always zero, and zlib makes nothing of them.
* Meta names the cursor, so that it is not read as that of another partition. `generation` and
  `carried` are the caller's.
* Behind these stand the columns of `Redeliveries`: how far each span begins behind the one before
  it, how long it is, and how often its messages were delivered.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c
import msgspec
import numpy as np

from sequitur.consumer.subscription.acked_ranges import AckedRanges
from sequitur.consumer.subscription.cursor import LARGEST_OFFSET, AckCounts, Cursor, CursorIdentity
from sequitur.consumer.subscription.redeliveries import (
    NO_REDELIVERIES,
    Redeliveries,
    RedeliverySpan,
)
from sequitur.errors import (
    CursorDamagedError,
    CursorVersionError,
    ForeignCursorError,
)

if TYPE_CHECKING:
    from sequitur.consumer.subscription.acked_ranges import Offsets


CURSOR_VERSION: Final = 3
"""Versions 1 and 2 were in no release. They are refused and never used again."""
OTHER_VERSION: Final = (
    "run the version that has written it, or delete the subscription (--force) and create it again"
)
_MAGIC: Final = b"SQCR"
_HEADER: Final = struct.Struct(">4sBQQ")
_CRC: Final = struct.Struct(">I")
_META_LENGTH: Final = struct.Struct(">I")
_HEADER_LENGTH: Final = _HEADER.size + _CRC.size
# Level 9 saves 2 % of random holes, and takes six times as long.
_LEVEL: Final = 6
_WIDEST: Final = 8


class _Meta(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    subscription: str
    topic: str
    partition: int
    mark_delete: int
    read_position: int
    consumed: int
    absent: int
    repeated: int
    ranges: int
    distance_width: int
    length_width: int
    generation: int
    carried: bytes
    lost: int
    spans: int
    span_widths: tuple[int, int, int]

    @property
    def columns(self) -> list[tuple[int, int]]:
        """How many numbers each column has, and how many bytes wide they are."""
        widths = (self.distance_width, self.length_width)
        of_spans = [(self.spans, width) for width in self.span_widths]
        return [*((self.ranges, width) for width in widths), *of_spans]


_NO_NUMBERS: Final = np.empty(0, dtype=np.int64)
_encode_meta: Final = msgspec.msgpack.Encoder().encode
_decode_meta: Final = msgspec.msgpack.Decoder(_Meta).decode


class StoredCursor(NamedTuple):
    cursor: Cursor
    generation: int
    carried: bytes
    redeliveries: Redeliveries = NO_REDELIVERIES


def encode_cursor(
    cursor: Cursor,
    *,
    generation: int = 0,
    carried: bytes = b"",
    redeliveries: Redeliveries = NO_REDELIVERIES,
) -> bytes:
    """Return a cursor as bytes, all its ranges included.

    Args:
        cursor: What to write; it is not changed.
        generation: Number of this writing.
        carried: Bytes of the caller that belong to this state of the cursor.
        redeliveries: How often messages were delivered that are not acked.
    """
    spans = redeliveries.behind(cursor.committed_offset).spans
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    columns = [
        *_distances(cursor.committed_offset, *cursor.acked_arrays()),
        *_distances(cursor.committed_offset, table[:, 0], table[:, 1]),
        table[:, 2],
    ]
    distances, lengths, *of_spans = map(_width, columns)
    meta = _encode_meta(
        _Meta(
            cursor.identity.subscription,
            cursor.identity.topic,
            cursor.identity.partition,
            cursor.mark_delete,
            cursor.read_position,
            cursor.counts.consumed,
            cursor.counts.absent,
            cursor.counts.repeated,
            len(columns[0]),
            distances,
            lengths,
            generation,
            carried,
            cursor.counts.lost,
            len(spans),
            (of_spans[0], of_spans[1], of_spans[2]),
        )
    )
    unpacked = b"".join((_META_LENGTH.pack(len(meta)), meta, *map(_planes, columns)))
    body = zlib.compress(unpacked, _LEVEL)
    header = _HEADER.pack(_MAGIC, CURSOR_VERSION, len(body), len(unpacked))
    return b"".join((header, _CRC.pack(_checksum(header, body)), body))


def decode_cursor(data: bytes, identity: CursorIdentity) -> StoredCursor:
    """Read `encode_cursor` back.

    Args:
        data: What was written.
        identity: Whose cursor it must be.

    Raises:
        CursorDamagedError: The bytes were cut or changed, or are no cursor.
        CursorVersionError: They are of a format that this version does not know.
        ForeignCursorError: They are another cursor's.
    """
    meta, (distances, lengths, *of_spans) = _unpack(_checked_body(data, identity))
    found = f"{meta.subscription} on {meta.topic}-{meta.partition}"
    if (meta.subscription, meta.topic, meta.partition) != (
        identity.subscription,
        identity.topic,
        identity.partition,
    ):
        raise ForeignCursorError(f"this is the cursor of {found}, and not that of {identity}")
    counts = AckCounts(meta.consumed, meta.absent, meta.repeated, meta.lost)
    in_order = -1 <= meta.mark_delete < meta.read_position <= LARGEST_OFFSET
    if not in_order or min(meta.consumed, meta.absent, meta.repeated, meta.lost) < 0:
        raise CursorDamagedError(f"the positions and counts of {found} make no sense")
    cursor = Cursor.restore(
        identity,
        mark_delete=meta.mark_delete,
        read_position=meta.read_position,
        ranges=_ranges(meta, distances, lengths),
        counts=counts,
    )
    return StoredCursor(cursor, meta.generation, meta.carried, _redeliveries(meta, *of_spans))


def _checked_body(data: bytes, identity: CursorIdentity) -> bytes:
    """Return the unpacked body. Raise unless all bytes are as they were written."""
    if len(data) < _HEADER_LENGTH:
        raise CursorDamagedError(f"{len(data)} bytes are too few for a cursor")
    header, body = data[: _HEADER.size], data[_HEADER_LENGTH:]
    magic, version, length, unpacked_length = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise CursorDamagedError("the bytes do not begin as a cursor does")
    if len(body) != length:
        raise CursorDamagedError(f"a cursor of {length} bytes has {len(body)}")
    if data[_HEADER.size : _HEADER_LENGTH] != _CRC.pack(_checksum(header, body)):
        raise CursorDamagedError("the checksum of a cursor is wrong")
    if version != CURSOR_VERSION:
        raise CursorVersionError(
            f"{identity}: a cursor of format {version}, this version reads {CURSOR_VERSION}: "
            f"{OTHER_VERSION}"
        )
    stream = zlib.decompressobj()
    try:
        unpacked = stream.decompress(body, unpacked_length + 1)
    except zlib.error as error:
        raise CursorDamagedError("a cursor cannot be decompressed") from error
    if len(unpacked) != unpacked_length or not stream.eof or stream.unused_data:
        raise CursorDamagedError(f"a cursor does not unpack to {unpacked_length} bytes")
    return unpacked


def _unpack(unpacked: bytes) -> tuple[_Meta, list[Offsets]]:
    try:
        (length,) = _META_LENGTH.unpack_from(unpacked)
        planes = unpacked[_META_LENGTH.size + length :]
        meta = _decode_meta(unpacked[_META_LENGTH.size : _META_LENGTH.size + length])
    except (struct.error, msgspec.MsgspecError) as error:
        raise CursorDamagedError("the meta of a cursor cannot be read") from error
    of_columns = meta.columns
    if not all(1 <= width <= _WIDEST and numbers >= 0 for numbers, width in of_columns):
        raise CursorDamagedError("the columns of a cursor make no sense")
    if len(planes) != sum(numbers * width for numbers, width in of_columns):
        raise CursorDamagedError(f"a cursor has other than {meta.ranges} ranges")
    columns, at = [], 0
    for numbers, width in of_columns:
        columns.append(_from_planes(planes[at : at + numbers * width], width))
        at += numbers * width
    return meta, columns


def _ranges(meta: _Meta, distances: Offsets, lengths: Offsets) -> AckedRanges:
    if not meta.ranges:
        return AckedRanges()
    return AckedRanges.from_arrays(*_edges(meta.mark_delete + 1, distances, lengths, 1))


def _redeliveries(
    meta: _Meta, distances: Offsets, lengths: Offsets, times: Offsets
) -> Redeliveries:
    if not meta.spans:
        return NO_REDELIVERIES
    firsts, stops = _edges(meta.mark_delete + 1, distances, lengths, 0)
    if (times < 1).any():
        raise CursorDamagedError("the deliveries of a cursor make no sense")
    table = zip(firsts.tolist(), stops.tolist(), times.tolist(), strict=True)
    return Redeliveries(tuple(map(RedeliverySpan._make, table)))


def _distances(begin: int, firsts: Offsets, stops: Offsets) -> tuple[Offsets, Offsets]:
    """Return how far each range begins behind the one before it, and its length."""
    before = np.concatenate([[begin], stops[:-1]])[: len(firsts)]
    return firsts - before, stops - firsts


def _edges(begin: int, distances: Offsets, lengths: Offsets, least: int) -> tuple[Offsets, Offsets]:
    """Invert `_distances` for at least one range. A distance is at least `least`."""
    edges = np.empty(2 * len(distances), dtype=np.int64)
    edges[0::2], edges[1::2] = distances, lengths
    # Floating-point sums are rounded but show a far too large total; the sign shows the rest.
    reach = begin + float(edges.sum(dtype=np.float64))
    if (distances < least).any() or (lengths < 1).any() or reach > 1.5 * LARGEST_OFFSET:
        raise CursorDamagedError("the ranges of a cursor make no sense")
    np.cumsum(edges, out=edges)
    edges += begin
    if not 0 <= edges[-1] <= LARGEST_OFFSET:
        raise CursorDamagedError("the ranges of a cursor reach beyond the largest offset")
    return edges[0::2], edges[1::2]


def _width(values: Offsets) -> int:
    """Return how many bytes the largest value needs."""
    largest = int(values.max()) if len(values) else 0
    return max((largest.bit_length() + 7) // 8, 1)


def _planes(values: Offsets) -> bytes:
    table = values.astype("<i8").view(np.uint8).reshape(-1, _WIDEST)
    return table.T[: _width(values)].tobytes()


def _from_planes(planes: bytes, width: int) -> Offsets:
    if not planes:
        return _NO_NUMBERS
    table = np.zeros((len(planes) // width, _WIDEST), dtype=np.uint8)
    table[:, :width] = np.frombuffer(planes, dtype=np.uint8).reshape(width, -1).T
    return table.reshape(-1).view("<i8").astype(np.int64)


def _checksum(header: bytes, body: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(header), body))
