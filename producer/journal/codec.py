"""Bytes of a journal segment, without any I/O.

A segment is a preamble and then frames, all integers big endian::

    preamble  magic "SQTRJRNL" | version u32 | segment number u64 | CRC32C u32
    frame     magic 4 | type u8 | flags u8 | meta length u32 | data length u32
              | offset u32 | synced u32 | CRC32C u32 | meta (MessagePack) | data

* A *round* is what one `append` writes: its last frame carries the flag ``LAST``. A round counts
  as a whole or not at all, so a source position in it is never ahead of the events it covers. The
  frames of a part of a longer round carry the flag ``PART``: see `Commit`.
* The CRC covers the segment's number, the frame's header, meta and data. The segment's number
  and ``offset`` (the frame's place in the segment) make a frame that merely *lies inside* an
  event's payload no frame of this segment, and a frame that moved is seen to have moved.
* ``synced`` is how far the writer knew the segment to be on disk when it wrote the frame. It
  tells damage from a torn write: bytes below a later frame's ``synced`` were on disk once.

The first round of a segment starts with `Head`, which has what is still valid of older segments.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import google_crc32c
import msgspec

from sequitur.producer.journal.frames import (
    Acks,
    BatchFrame,
    Commit,
    Drop,
    Frame,
    Head,
    Numbered,
    Position,
    Renewal,
    Waiting,
    frame_name,
)

FORMAT_VERSION: Final = 3
READ_VERSIONS: Final = frozenset({2, FORMAT_VERSION})
"""In format 2 no frame gives a batch that has numbers another timestamp."""

_PREAMBLE: Final = struct.Struct(">8sIQ")
_CRC: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">4sBBIIII")
_SEGMENT: Final = struct.Struct(">Q")
_PREAMBLE_MAGIC: Final = b"SQTRJRNL"
_MAGIC: Final = b"\xabSQF"
_LAST: Final = 1
_PART: Final = 2

PREAMBLE_LENGTH: Final = _PREAMBLE.size + _CRC.size
HEADER_LENGTH: Final = _HEADER.size + _CRC.size


FRAME_TYPES: Final[dict[int, type]] = {
    1: Head,
    2: Renewal,
    3: BatchFrame,
    4: Acks,
    5: Waiting,
    6: Drop,
    7: Position,
    8: Numbered,
    9: Commit,
}
_TYPE_NUMBERS: Final = {type_: number for number, type_ in FRAME_TYPES.items()}
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    number: msgspec.msgpack.Decoder(type_) for number, type_ in FRAME_TYPES.items()
}
_encode: Final = msgspec.msgpack.Encoder().encode


class PlacedFrame(NamedTuple):
    """A frame and where it lies.

    `at` is where its bytes are, `offset` where its writer put them: the same unless bytes before
    it went missing or came in between. `part` says that the frame counts from a `Commit` on.
    """

    at: int
    offset: int
    length: int
    last_in_round: bool
    synced: int
    frame: Frame
    part: bool = False

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.at + self.length


def segment_seed(segment: int) -> int:
    """Return the checksum every frame of this segment starts from."""
    return int(google_crc32c.value(_SEGMENT.pack(segment)))


def encode_preamble(segment: int, version: int = FORMAT_VERSION) -> bytes:
    """Return the first bytes of a segment."""
    head = _PREAMBLE.pack(_PREAMBLE_MAGIC, version, segment)
    return head + _CRC.pack(google_crc32c.value(head))


def decode_preamble(data: bytes) -> tuple[int, int] | None:
    """Format version and segment number, or None when the bytes are no valid preamble."""
    head = data[: _PREAMBLE.size]
    if data[_PREAMBLE.size : PREAMBLE_LENGTH] != _CRC.pack(google_crc32c.value(head)):
        return None
    magic, version, segment = _PREAMBLE.unpack(head)
    return (version, segment) if magic == _PREAMBLE_MAGIC else None


def encode_frame(
    frame: Frame, *, seed: int, offset: int, synced: int, last: bool, part: bool = False
) -> list[bytes]:
    """Buffers of one frame, to be written at `offset` one after the other.

    A batch's bytes are handed on, not copied: they are their own buffer.
    """
    data = b""
    if type(frame) is BatchFrame:
        data = frame.data
        # A tuple encodes like the array-like struct; the body stays out of the meta.
        meta = _encode(
            (
                frame.topic,
                frame.partition,
                frame.producer_id,
                frame.epoch,
                frame.base_sequence,
                frame.record_count,
                frame.first_event_sequence,
                frame.last_event_sequence,
                frame.position,
                frame.timestamp_ms,
                frame.dated,
            )
        )
    elif type(frame) is Waiting:
        data = frame.data
        meta = _encode(
            (
                frame.topic,
                frame.partition,
                frame.first_event_sequence,
                frame.last_event_sequence,
                frame.record_count,
                frame.first_ms,
                frame.last_ms,
                frame.dated,
                frame.piece,
            )
        )
    else:
        meta = _encode(frame)
    header = _HEADER.pack(
        _MAGIC,
        _TYPE_NUMBERS[type(frame)],
        last * _LAST | part * _PART,
        len(meta),
        len(data),
        offset,
        synced,
    )
    crc = google_crc32c.extend(google_crc32c.extend(seed, header + meta), data)
    buffers = [b"".join((header, _CRC.pack(crc), meta))]
    if data:
        buffers.append(data)
    return buffers


class EncodedRound(NamedTuple):
    """The bytes of a round, and the length of each of its frames."""

    buffers: list[bytes]
    lengths: list[int]


def encode_round(
    frames: Sequence[Frame], *, seed: int, offset: int, synced: int, part: bool = False
) -> EncodedRound:
    """Return one round, to be written at `offset`; arguments as of `encode_frame`."""
    encoded = EncodedRound([], [])
    final = len(frames) - 1
    for index, frame in enumerate(frames):
        buffers = encode_frame(
            frame, seed=seed, offset=offset, synced=synced, last=index == final, part=part
        )
        length = sum(map(len, buffers))
        encoded.buffers.extend(buffers)
        encoded.lengths.append(length)
        offset += length
    return encoded


def decode_frame(data: bytes, at: int, seed: int) -> PlacedFrame | None:
    """Return the frame at `at`, or None when there is no whole and sound one."""
    if at + HEADER_LENGTH > len(data):
        return None
    header = data[at : at + _HEADER.size]
    magic, type_, flags, meta_length, data_length, offset, synced = _HEADER.unpack(header)
    end = at + HEADER_LENGTH + meta_length + data_length
    if magic != _MAGIC or type_ not in _DECODERS or end > len(data):
        return None
    (crc,) = _CRC.unpack_from(data, at + _HEADER.size)
    meta = data[at + HEADER_LENGTH : end - data_length]
    body = data[end - data_length : end]
    if google_crc32c.extend(google_crc32c.extend(seed, header + meta), body) != crc:
        return None
    try:
        frame = _DECODERS[type_].decode(meta)
    except msgspec.DecodeError:  # a sound checksum, but not this format
        return None
    if isinstance(frame, BatchFrame | Waiting):
        frame = msgspec.structs.replace(frame, data=body)
    last, part = bool(flags & _LAST), bool(flags & _PART)
    return PlacedFrame(at, offset, end - at, last, synced, frame, part)


def stated_frame(data: bytes, at: int) -> str:
    """Return what a damaged frame's header says it was, as far as it is plausible."""
    if data[at : at + len(_MAGIC)] != _MAGIC or at + HEADER_LENGTH > len(data):
        return "no readable header"
    _, type_, _, meta_length, data_length, _, _ = _HEADER.unpack_from(data, at)
    name = frame_name(FRAME_TYPES[type_]) if type_ in FRAME_TYPES else f"unknown type {type_}"
    length = HEADER_LENGTH + meta_length + data_length
    return f"its header says {name}, {length} bytes"


def find_frame(data: bytes, at: int, seed: int, lowest_offset: int) -> PlacedFrame | None:
    """Return the first sound frame from `at` on that was written at `lowest_offset` or later.

    Older offsets are refused: they are copies inside a payload, not what was written next.
    """
    while (at := data.find(_MAGIC, at)) >= 0:
        if (placed := decode_frame(data, at, seed)) and placed.offset >= lowest_offset:
            return placed
        at += 1
    return None
