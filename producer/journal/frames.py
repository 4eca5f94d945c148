"""The frames of a journal, and their bytes in a segment. No I/O.

A segment is a preamble and then frames, all integers big endian::

    preamble  magic "SQTRJRNL" | version u32 | segment number u64 | CRC32C u32
    frame     magic 4 | type u8 | flags u8 | meta length u32 | data length u32
              | offset u32 | synced u32 | CRC32C u32 | meta (MessagePack) | data

- A *round* is what one `append` writes: its last frame carries the flag ``LAST``. A round counts as
  a whole or not at all, so a source position in it is never ahead of the events it covers. The
  frames of a part of a longer round carry the flag ``PART``: see `Commit`.
- The CRC covers the segment's number, the frame's header, meta and data. A frame that merely *lies
  inside* an event's payload is no frame of this segment, by its number and by ``offset``, the
  frame's place in the segment. A frame that moved is seen to have moved.
- ``synced`` is how far the writer knew the segment to be on disk when it wrote the frame. It tells
  damage from a torn write: bytes below a later frame's ``synced`` were on disk once.

The first round of a segment starts with `Head`, which has what is still valid of older segments.
"""

import struct
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import google_crc32c
import msgspec

from sequitur.kafka.identity import Identity

SEQUENCE_MODULUS: Final = 2**31


class BatchKey(NamedTuple):
    """What names a batch to the broker."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    base_sequence: int


class SourcePosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a source of events was read.

    Attributes:
        source: Your name for the source.
        value: The position, in a form of your own.
    """

    source: str
    value: bytes


class PartitionState(msgspec.Struct, frozen=True, array_like=True):
    """Where one partition's numbering stands."""

    topic: str
    partition: int
    producer_id: int  # producer id of the partition's newest batch
    epoch: int  # epoch of the partition's newest batch
    next_sequence: int  # the sequence that follows the newest batch under that identity
    through_event_sequence: int  # every event of this partition up to here is, or was, in a batch


class Head(msgspec.Struct, frozen=True, array_like=True):
    """First frame of a segment: all that is still valid of older segments."""

    producer: str  # the durable name
    previous_length: int  # bytes of the segment before, 0 for the first one
    identity: Identity | None  # the current identity, None before the first one
    next_event_sequence: int
    partitions: tuple[PartitionState, ...]
    positions: tuple[SourcePosition, ...]  # last position of each source
    cluster_id: str = ""  # the cluster that the events are for, empty while it is not known


class BatchFrame(msgspec.Struct, frozen=True, array_like=True):
    """A record batch about to be sent, with its exact bytes.

    `position` covers all events accepted up to and including this round; `timestamp_ms` is the
    newest timestamp of its records, and `dated` says that the timestamps are their sender's.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    base_sequence: int
    record_count: int
    first_event_sequence: int
    last_event_sequence: int
    position: SourcePosition | None = None
    timestamp_ms: int = -1
    dated: bool = True
    data: bytes = b""

    @property
    def key(self) -> BatchKey:
        """What names the batch to the broker."""
        return BatchKey(
            self.topic, self.partition, self.producer_id, self.epoch, self.base_sequence
        )

    @property
    def next_sequence(self) -> int:
        """The sequence that follows this batch's last record."""
        return (self.base_sequence + self.record_count) % SEQUENCE_MODULUS


class Ack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a batch ended: persisted at an offset, or not (or possibly not), with the reason.

    `offset` is -1 where the broker gave none.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    base_sequence: int
    offset: int = -1
    reason: str | None = None

    @property
    def key(self) -> BatchKey:
        """What names the batch to the broker."""
        return BatchKey(
            self.topic, self.partition, self.producer_id, self.epoch, self.base_sequence
        )


class Acks(msgspec.Struct, frozen=True, array_like=True):
    """Batches that need no re-sending any more. Need not be synced: a lost mark re-sends."""

    marks: tuple[Ack, ...]


class WaitingKey(NamedTuple):
    """What names a batch that has no number yet: its first event is in no other."""

    topic: str
    partition: int
    first_event_sequence: int


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """Accepted events that have no numbers yet, as a record batch without a stamp.

    A batch grows while it waits: each `piece` adds the records that came since the last, without
    the batch's header and not compressed. A frame that is no piece is the whole batch, and takes
    the place of the pieces before it.
    """

    topic: str
    partition: int
    first_event_sequence: int
    last_event_sequence: int  # no event of this partition up to this one is in a later batch
    record_count: int  # records so far, those of earlier pieces included
    first_ms: int  # timestamp of its first record, which those of the others are counted from
    last_ms: int  # the newest timestamp of its records so far
    dated: bool = False  # the records have timestamps of their sender's, which stay as they are
    piece: bool = False  # whether it adds to what is there
    data: bytes = b""  # the record batch, or the records that are added

    @property
    def key(self) -> WaitingKey:
        """What names the batch."""
        return WaitingKey(self.topic, self.partition, self.first_event_sequence)


class Number(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The numbers that a waiting batch goes out under, or another timestamp of one that has them.

    `timestamp_ms` is the newest timestamp of its records from now on; -1 leaves them as they are.
    The count and the last event are the batch's: the numbering must be known even when the batch
    has been acked and has gone with an older segment.
    """

    topic: str
    partition: int
    first_event_sequence: int
    last_event_sequence: int
    record_count: int
    producer_id: int
    epoch: int
    base_sequence: int
    timestamp_ms: int = -1

    @property
    def waiting_key(self) -> WaitingKey:
        """What named the batch so far."""
        return WaitingKey(self.topic, self.partition, self.first_event_sequence)

    @property
    def key(self) -> BatchKey:
        """What names the batch to the broker."""
        return BatchKey(
            self.topic, self.partition, self.producer_id, self.epoch, self.base_sequence
        )


class Numbered(msgspec.Struct, frozen=True, array_like=True):
    """Waiting batches that are about to be sent. Their bytes are not repeated.

    They follow from the waiting batch, its numbers and its timestamp, the same every time. A batch
    that has these numbers keeps them, and gets the timestamp: a broker has refused the one before.
    """

    numbers: tuple[Number, ...]


class Drop(msgspec.Struct, frozen=True, array_like=True):
    """Waiting batches given up before they had a number. Need not be synced."""

    waiting: tuple[tuple[str, int, int], ...]
    reason: str


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """The end of a long round: the parts before it count from here on, or never.

    A round that is too long for one append is written as parts, whose frames carry the flag
    ``PART``. They mean nothing until this frame.
    """

    whole: bool = True


class Restamp(msgspec.Struct, frozen=True, array_like=True):
    """One un-acked batch that goes on under the renewed identity.

    `record_count` is the batch's: the numbering must be known even when the batch has been acked
    and has gone with an older segment.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    base_sequence: int
    new_base_sequence: int
    record_count: int

    @property
    def key(self) -> BatchKey:
        """What named the batch to the broker so far."""
        return BatchKey(
            self.topic, self.partition, self.producer_id, self.epoch, self.base_sequence
        )


class Renewal(msgspec.Struct, frozen=True, array_like=True):
    """A new identity, the partitions that go on under it, and their renumbered batches.

    The batches' bytes are not repeated: stamping them again gives the same bytes every time.
    """

    identity: Identity
    restamps: tuple[Restamp, ...] = ()  # un-acked batches that get another number under it
    # topic and number of the partitions whose sequence starts at 0 under it; those of a topic that
    # is new to the journal, too, so that it is known how many there are
    begun: tuple[tuple[str, int], ...] = ()
    cluster_id: str = ""  # the cluster that gave it, empty while it is not known


Frame = Head | Renewal | BatchFrame | Acks | Waiting | Numbered | Drop | Commit | SourcePosition


def frame_name(kind: type) -> str:
    """Return what a kind of frame is called in reports."""
    return kind.__name__.removesuffix("Frame").removeprefix("Source")


def without_bytes(frame: Frame) -> Frame:
    """Return a frame without the bytes of its batch, which stay in the file."""
    if isinstance(frame, BatchFrame | Waiting):
        return msgspec.structs.replace(frame, topic=sys.intern(frame.topic), data=b"")
    return frame


FORMAT_VERSION: Final = 3
_SUFFIX: Final = ".journal"
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
    7: SourcePosition,
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
        return self.at + self.length


def segment_name(segment: int) -> str:
    return f"{segment:020d}{_SUFFIX}"


def segment_numbers(names: Sequence[str]) -> list[int]:
    """Return the segments among file names, oldest first."""
    stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def segment_seed(segment: int) -> int:
    """Return the checksum every frame of this segment starts from."""
    return int(google_crc32c.value(_SEGMENT.pack(segment)))


def encode_preamble(segment: int, version: int = FORMAT_VERSION) -> bytes:
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
