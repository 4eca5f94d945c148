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

import base64
import binascii
import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c
import msgspec
import numpy as np

from sequitur.consumer.subscription.acked_ranges import AckedRanges
from sequitur.consumer.subscription.cursor import (
    LARGEST_OFFSET,
    NO_REDELIVERIES,
    AckCounts,
    Cursor,
    CursorIdentity,
    Redeliveries,
    RedeliverySpan,
)
from sequitur.errors import (
    CursorChunksError,
    CursorDamagedError,
    CursorVersionError,
    ForeignCursorError,
)
from sequitur.kafka.partition import CURSOR_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer.subscription.acked_ranges import Offsets


CURSOR_VERSION: Final = 3
"""No release had 1 and 2. They are refused, and none is used again."""

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
        """How many numbers each column has, and how wide they are."""
        widths = (self.distance_width, self.length_width)
        of_spans = [(self.spans, width) for width in self.span_widths]
        return [*((self.ranges, width) for width in widths), *of_spans]


_NO_NUMBERS: Final = np.empty(0, dtype=np.int64)
_encode_meta: Final = msgspec.msgpack.Encoder().encode
_decode_meta: Final = msgspec.msgpack.Decoder(_Meta).decode


class StoredCursor(NamedTuple):
    """A cursor that was read, and what was stored with it."""

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
    """Return the unpacked body of bytes that are whole."""
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
    """Return how far each range begins behind the one before it, and how long it is."""
    before = np.concatenate([[begin], stops[:-1]])[: len(firsts)]
    return firsts - before, stops - firsts


def _edges(begin: int, distances: Offsets, lengths: Offsets, least: int) -> tuple[Offsets, Offsets]:
    """Read `_distances` of at least one back; a distance is `least` or more."""
    edges = np.empty(2 * len(distances), dtype=np.int64)
    edges[0::2], edges[1::2] = distances, lengths
    # The sum in floating point is rounded, and sees what is far too large; the sign sees the rest.
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


# Where a cursor is written: in a group's offset metadata, or in chunks that the metadata names.
#
# Kafka limits the metadata of a committed offset (`offset.metadata.max.bytes`, 4,096). A cursor
# that fits stands there whole. A larger one goes in chunks into a compacted topic, and the metadata
# is a pointer to them; nothing is cut. Pure: this module makes the pieces and reads them.
#
# The keys of one generation are not those of the next: a writer that dies between two chunks leaves
# those of the generation before alone. The one before that is written over.


METADATA_LIMIT: Final = 4096
"""What a broker takes as the metadata of an offset unless it is configured otherwise."""
CHUNK_BYTES: Final = 512 * 1024
"""Below what a topic takes as a record unless it is configured otherwise, 1 MiB."""

_VERSION: Final = 1
_TEXT: Final = re.compile(r"sequitur-cursor/([0-9]{1,9}) (whole|chunks) ([^\n]*)")
_POINTER: Final = re.compile(
    r"generation=([0-9]{1,20}) count=([0-9]{1,10}) length=([0-9]{1,20}) crc32c=([0-9a-f]{8})"
    r" check=([0-9a-f]{8})"
)
_CHUNK_MAGIC: Final = b"SQCK"
_CHUNK: Final = struct.Struct(">4sBQIII")
_CHUNK_HEADER: Final = _CHUNK.size + _CRC.size
_LARGEST_GENERATION: Final = (1 << 64) - 1


class Chunk(NamedTuple):
    """A record of the compacted topic."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Pointer:
    """What the metadata says of a cursor that is written in chunks.

    Attributes:
        generation: Number of the writing that the chunks belong to.
        count: How many chunks there are.
        length: How many bytes they have together.
        checksum: CRC32C of these bytes.
    """

    generation: int
    count: int
    length: int
    checksum: int

    def __str__(self) -> str:
        text = (
            f"{CURSOR_PREFIX}{_VERSION} chunks generation={self.generation} count={self.count}"
            f" length={self.length} crc32c={self.checksum:08x}"
        )
        return f"{text} check={_crc(text.encode()):08x}"

    def keys(self, identity: CursorIdentity) -> list[bytes]:
        """Return the keys under which the chunks are, in order."""
        return [chunk_key(identity, self.generation, index) for index in range(self.count)]


@dataclass(frozen=True, slots=True)
class StoredPieces:
    """A cursor as it is to be written: first the chunks, then the metadata.

    Attributes:
        offset: What the group commits.
        metadata: The text beside it, in ASCII.
        chunks: Records for the compacted topic; none if the text has the whole cursor.
    """

    offset: int
    metadata: str
    chunks: tuple[Chunk, ...]


def in_metadata(
    cursor: Cursor,
    *,
    generation: int,
    carried: bytes = b"",
    redeliveries: Redeliveries = NO_REDELIVERIES,
    limit: int = METADATA_LIMIT,
    chunk_bytes: int = CHUNK_BYTES,
) -> StoredPieces:
    """Return the pieces to write a cursor with.

    Args:
        cursor: What to write.
        generation: Number of this writing: one more than that of the last one that was finished.
        carried: Bytes of the caller that belong to this state of the cursor.
        redeliveries: How often messages were delivered that are not acked.
        limit: Characters that the metadata may have.
        chunk_bytes: Bytes of the cursor that a chunk may have.

    Raises:
        ValueError: `generation` is no number of 64 bits, `chunk_bytes` is not positive, or not even
            a pointer fits into `limit`.
    """
    if not 0 <= generation <= _LARGEST_GENERATION:
        raise ValueError(f"generation {generation} is no number of 64 bits")
    if chunk_bytes < 1:
        raise ValueError(f"chunks of {chunk_bytes} bytes hold nothing")
    data = encode_cursor(cursor, generation=generation, carried=carried, redeliveries=redeliveries)
    text = _whole_text(data)
    if len(text) <= limit:
        return StoredPieces(cursor.committed_offset, text, ())
    parts = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    pointer = Pointer(generation, len(parts), len(data), _crc(data))
    if len(str(pointer)) > limit:
        raise ValueError(f"a pointer has {len(str(pointer))} characters, and the limit is {limit}")
    chunks = tuple(
        Chunk(chunk_key(cursor.identity, generation, index), _chunk_value(pointer, index, part))
        for index, part in enumerate(parts)
    )
    return StoredPieces(cursor.committed_offset, str(pointer), chunks)


def read_pointer(metadata: str) -> Pointer | None:
    """Return where the chunks are, or None if the metadata has the whole cursor.

    Raises:
        CursorDamagedError: The text was cut or changed, or is another program's.
        CursorVersionError: It is of a format that this version does not know.
    """
    kind, rest = _split_text(metadata)
    if kind == "whole":
        return None
    found = _POINTER.fullmatch(rest)
    if not found:
        raise CursorDamagedError("the pointer to a cursor's chunks cannot be read")
    generation, count, length = (int(found[group]) for group in (1, 2, 3))
    pointer = Pointer(generation, count, length, int(found[4], 16))
    if str(pointer) != metadata:
        raise CursorDamagedError("the checksum of a pointer to a cursor's chunks is wrong")
    return pointer


def read_stored(
    metadata: str, chunks: Iterable[bytes], identity: CursorIdentity, *, offset: int
) -> StoredCursor:
    """Read `in_metadata` back.

    Args:
        metadata: The text beside the committed offset.
        chunks: The values under the keys that `read_pointer` names, in any order; a key without a
            value is left out.
        identity: Whose cursor it must be.
        offset: The committed offset.

    Raises:
        CursorDamagedError: Text or chunks were cut or changed, or the offset is not that of the
            cursor: somebody else has committed it.
        CursorVersionError: They are of a format that this version does not know.
        CursorChunksError: Chunks are missing, there twice, or of another generation.
        ForeignCursorError: They are another cursor's.
    """
    pointer = read_pointer(metadata)
    if pointer is None:
        if any(True for _ in chunks):
            raise CursorChunksError(f"{identity}: chunks are stored, but the cursor has none")
        data = _whole_data(metadata)
    else:
        data = _joined(pointer, chunks, identity)
    stored = decode_cursor(data, identity)
    if stored.cursor.committed_offset != offset:
        raise CursorDamagedError(
            f"{identity}: the offset {offset} is committed, the cursor beside it stands at "
            f"{stored.cursor.committed_offset}"
        )
    return stored


def chunk_key(identity: CursorIdentity, generation: int, index: int) -> bytes:
    """Return the key of a chunk. Every second generation has the same."""
    # A topic's name has no slash, so the subscription, which may, stands last.
    where = f"{identity.topic}/{identity.partition}/{generation % 2}/{index}"
    return f"{where}/{identity.subscription}".encode()


def is_chunk_of(key: bytes, subscription: str) -> bool:
    """Tell whether a key is that of a chunk of a subscription's cursors, of any generation."""
    parts = key.split(b"/", 4)
    return len(parts) == 5 and parts[4] == subscription.encode()  # noqa: PLR2004 - as `chunk_key` makes it


def _joined(pointer: Pointer, chunks: Iterable[bytes], identity: CursorIdentity) -> bytes:
    parts: dict[int, bytes] = {}
    for value in chunks:
        index, part = _read_chunk(value, pointer, identity)
        if index in parts:
            raise CursorChunksError(f"{identity}: the stored cursor has chunk {index} twice")
        parts[index] = part
    missing = pointer.count - len(parts)
    if missing:
        raise CursorChunksError(
            f"{identity}: {missing} of {pointer.count} chunks of generation {pointer.generation}"
            " are missing"
        )
    data = b"".join(parts[index] for index in range(pointer.count))
    if len(data) != pointer.length or _crc(data) != pointer.checksum:
        raise CursorChunksError(
            f"{identity}: the chunks of generation {pointer.generation} do not make up the cursor"
            " that the pointer names"
        )
    return data


def _chunk_value(pointer: Pointer, index: int, part: bytes) -> bytes:
    header = _CHUNK.pack(
        _CHUNK_MAGIC, _VERSION, pointer.generation, pointer.count, index, len(part)
    )
    return b"".join((header, _CRC.pack(_crc(header + part)), part))


def _read_chunk(value: bytes, pointer: Pointer, identity: CursorIdentity) -> tuple[int, bytes]:
    """Return a chunk's index and bytes, if it is one of those that the pointer names."""
    if len(value) < _CHUNK_HEADER:
        raise CursorDamagedError(f"{identity}: {len(value)} bytes are too few for a chunk")
    header, part = value[: _CHUNK.size], value[_CHUNK_HEADER:]
    magic, version, generation, count, index, length = _CHUNK.unpack(header)
    if magic != _CHUNK_MAGIC or len(part) != length:
        raise CursorDamagedError(f"{identity}: a stored chunk was cut, or is something else")
    if value[_CHUNK.size : _CHUNK_HEADER] != _CRC.pack(_crc(header + part)):
        raise CursorDamagedError(f"{identity}: the checksum of a chunk is wrong")
    if version != _VERSION:
        raise CursorVersionError(
            f"{identity}: a chunk of format {version}, this version reads {_VERSION}: "
            f"{OTHER_VERSION}"
        )
    if (generation, count) != (pointer.generation, pointer.count) or index >= count:
        raise CursorChunksError(
            f"{identity}: chunk {index} of {count} of generation {generation} among those of "
            f"generation {pointer.generation}"
        )
    return index, part


def _whole_text(data: bytes) -> str:
    return f"{CURSOR_PREFIX}{_VERSION} whole {base64.b64encode(data).decode()}"


def _whole_data(metadata: str) -> bytes:
    _, rest = _split_text(metadata)
    try:
        data = base64.b64decode(rest, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CursorDamagedError("the metadata of a cursor is not in base64") from error
    # Texts that differ in bits which base64 leaves unused are read alike: only one was written.
    if _whole_text(data) != metadata:
        raise CursorDamagedError("the metadata of a cursor was changed")
    return data


def _split_text(metadata: str) -> tuple[str, str]:
    found = _TEXT.fullmatch(metadata)
    if not found:
        raise CursorDamagedError("the metadata of the offset is not that of a cursor")
    version, kind, rest = found.groups()
    if int(version) != _VERSION:
        raise CursorVersionError(
            f"metadata of format {version}, this version reads {_VERSION}: {OTHER_VERSION}"
        )
    return kind, rest


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))
