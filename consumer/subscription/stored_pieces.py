"""How a cursor is laid out: one text, or chunks that the text names.

The text is in the cursor's record. It is also the metadata beside the group's offset, where nothing
reads it. Kafka limits this metadata (`offset.metadata.max.bytes`, 4,096). A cursor that fits is in
the text whole. A larger one is in chunks in the compacted topic, and the text is a pointer to them;
nothing is cut. Pure: this module makes the pieces and reads them.

`CursorOwner` writes chunks, text and the end of older chunks in one transaction. The keys of one
generation differ from those of the next.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from sequitur.consumer.subscription.codec import (
    OTHER_VERSION,
    StoredCursor,
    decode_cursor,
    encode_cursor,
)
from sequitur.consumer.subscription.redeliveries import (
    NO_REDELIVERIES,
    Redeliveries,
)
from sequitur.errors import (
    CursorChunksError,
    CursorDamagedError,
    CursorVersionError,
)
from sequitur.kafka.partition import CURSOR_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity


METADATA_LIMIT: Final = 4096
"""The broker's default maximum for the metadata of an offset."""
CHUNK_BYTES: Final = 512 * 1024
"""Less than a topic's default maximum for a record, 1 MiB."""
_VERSION: Final = 1
_TEXT: Final = re.compile(r"sequitur-cursor/([0-9]{1,9}) (whole|chunks) ([^\n]*)")
_POINTER: Final = re.compile(
    r"generation=([0-9]{1,20}) count=([0-9]{1,10}) length=([0-9]{1,20}) crc32c=([0-9a-f]{8})"
    r" check=([0-9a-f]{8})"
)
_CHUNK_MAGIC: Final = b"SQCK"
_CHUNK: Final = struct.Struct(">4sBQIII")
_CRC: Final = struct.Struct(">I")
_CHUNK_HEADER: Final = _CHUNK.size + _CRC.size
_LARGEST_GENERATION: Final = (1 << 64) - 1


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
        """Return the keys of the chunks, in order."""
        return [chunk_key(identity, self.generation, index) for index in range(self.count)]


class Chunk(NamedTuple):
    key: bytes
    value: bytes


def pieces_of(
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
    """Read `pieces_of` back.

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
    """Return the key of a chunk. Every second generation has the same key."""
    # The subscription stands last because it may have a slash, and a topic's name has none.
    where = f"{identity.topic}/{identity.partition}/{generation % 2}/{index}"
    return f"{where}/{identity.subscription}".encode()


def is_chunk_of(key: bytes, subscription: str) -> bool:
    """Tell whether a key belongs to a chunk of a subscription's cursors, of any generation."""
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
    """Return a chunk's index and bytes. Raise unless the pointer names it."""
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
    # Base64 leaves some bits unused, so different texts decode alike: only one was written.
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
