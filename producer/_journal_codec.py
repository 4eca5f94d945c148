"""Bytes of a journal segment, without any I/O.

A segment is a preamble and then frames, all integers big endian::

    preamble  magic "SQTRJRNL" | version u32 | segment number u64 | CRC32C u32
    frame     magic 4 | type u8 | flags u8 | meta length u32 | data length u32
              | offset u32 | synced u32 | CRC32C u32 | meta (MessagePack) | data

* A *round* is what one `append` writes: its last frame carries the flag ``LAST``. A round counts
  as a whole or not at all, so a source position in it is never ahead of the events it covers.
* The CRC covers the segment's number, the frame's header, meta and data. The segment's number
  and ``offset`` (the frame's place in the segment) make a frame that merely *lies inside* an
  event's payload no frame of this segment, and a frame that moved is seen to have moved.
* ``synced`` is how far the writer knew the segment to be on disk when it wrote the frame. It
  tells damage from a torn write: bytes below a later frame's ``synced`` were on disk once.

The first round of a segment starts with `Head`, which repeats what older segments would tell.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import google_crc32c
import msgspec

FORMAT_VERSION: Final = 1
SEQUENCE_MODULUS: Final = 2**31

_PREAMBLE: Final = struct.Struct(">8sIQ")
_CRC: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">4sBBIIII")
_SEGMENT: Final = struct.Struct(">Q")
_PREAMBLE_MAGIC: Final = b"SQTRJRNL"
_MAGIC: Final = b"\xabSQF"
_LAST: Final = 1

PREAMBLE_LENGTH: Final = _PREAMBLE.size + _CRC.size
HEADER_LENGTH: Final = _HEADER.size + _CRC.size


class BatchKey(NamedTuple):
    """What names a batch to the broker."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    base_sequence: int


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """The producer id and epoch the broker gave."""

    producer_id: int
    epoch: int


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far a source was read; `value` is opaque to the journal."""

    source: str
    value: bytes


class PartitionState(msgspec.Struct, frozen=True, array_like=True):
    """Where one partition's numbering stands.

    Attributes:
        topic: the topic.
        partition: the partition.
        producer_id: producer id of the partition's newest batch.
        epoch: epoch of the partition's newest batch.
        next_sequence: the sequence that follows the newest batch under that identity.
        through_event_sequence: every event of this partition up to here is, or was, in a batch.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    next_sequence: int
    through_event_sequence: int


class Head(msgspec.Struct, frozen=True, array_like=True):
    """First frame of a segment: all that older segments tell and is still true.

    Attributes:
        producer: the durable name.
        previous_length: bytes of the segment before, 0 for the first one.
        complete: the un-acked batches and the spool follow in the same round, so that nothing
            of an older segment is needed.
        identity: the current identity, None before the first one.
        next_event_sequence: sequence of the next event to be accepted.
        partitions: numbering of each partition.
        positions: last position of each source.
    """

    producer: str
    previous_length: int
    complete: bool
    identity: Identity | None
    next_event_sequence: int
    partitions: tuple[PartitionState, ...]
    positions: tuple[Position, ...]


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A record batch about to be sent, with its exact bytes.

    `position` covers all events accepted up to and including this round.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    base_sequence: int
    record_count: int
    first_event_sequence: int
    last_event_sequence: int
    position: Position | None = None
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


class SpooledEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An accepted event that is in no batch yet; `payload` is opaque to the journal."""

    event_sequence: int
    topic: str
    partition: int
    payload: bytes


class Spool(msgspec.Struct, frozen=True, array_like=True):
    """Events accepted but not yet in a batch, in order of their sequences.

    An event leaves the spool with the first `Batch` of its partition whose
    `last_event_sequence` reaches it, or by `Drop`.
    """

    events: tuple[SpooledEvent, ...]
    position: Position | None = None


class Drop(msgspec.Struct, frozen=True, array_like=True):
    """Spooled events given up before they were in a batch."""

    event_sequences: tuple[int, ...]
    reason: str


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

    The batches' bytes are not repeated: stamping them anew gives the same bytes every time.

    Attributes:
        identity: the new identity.
        restamps: un-acked batches that get another number under it.
        begun: topic and number of the partitions whose sequence starts at 0 under it; those of a
            topic that is new to the journal, too, so that it is known how many there are.
    """

    identity: Identity
    restamps: tuple[Restamp, ...] = ()
    begun: tuple[tuple[str, int], ...] = ()


Frame = Head | Renewal | Batch | Acks | Spool | Drop | Position

FRAME_TYPES: Final[dict[int, type]] = {
    1: Head,
    2: Renewal,
    3: Batch,
    4: Acks,
    5: Spool,
    6: Drop,
    7: Position,
}
_TYPE_NUMBERS: Final = {type_: number for number, type_ in FRAME_TYPES.items()}
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    number: msgspec.msgpack.Decoder(type_) for number, type_ in FRAME_TYPES.items()
}
_encode: Final = msgspec.msgpack.Encoder().encode


class PlacedFrame(NamedTuple):
    """A frame and where it lies.

    `at` is where its bytes are, `offset` where its writer put them: the same unless bytes before
    it went missing or came in between.
    """

    at: int
    offset: int
    length: int
    last_in_round: bool
    synced: int
    frame: Frame

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.at + self.length


def segment_seed(segment: int) -> int:
    """The checksum every frame of this segment starts from."""
    return int(google_crc32c.value(_SEGMENT.pack(segment)))


def encode_preamble(segment: int, version: int = FORMAT_VERSION) -> bytes:
    """The first bytes of a segment."""
    head = _PREAMBLE.pack(_PREAMBLE_MAGIC, version, segment)
    return head + _CRC.pack(google_crc32c.value(head))


def decode_preamble(data: bytes) -> tuple[int, int] | None:
    """Format version and segment number, or None when these are no good preamble's bytes."""
    head = data[: _PREAMBLE.size]
    if data[_PREAMBLE.size : PREAMBLE_LENGTH] != _CRC.pack(google_crc32c.value(head)):
        return None
    magic, version, segment = _PREAMBLE.unpack(head)
    return (version, segment) if magic == _PREAMBLE_MAGIC else None


def encode_round(frames: Sequence[Frame], *, seed: int, offset: int, synced: int) -> list[bytes]:
    """Buffers of one round, to be written at `offset` one after the other.

    A batch's bytes are handed on, not copied: they are their own buffer.

    Args:
        frames: at least one.
        seed: `segment_seed` of the segment.
        offset: where the round begins in the segment, bytes.
        synced: how far the segment is known to be on disk, bytes.
    """
    buffers: list[bytes] = []
    final = len(frames) - 1
    for index, frame in enumerate(frames):
        data = b""
        if type(frame) is Batch:
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
                )
            )
        else:
            meta = _encode(frame)
        header = _HEADER.pack(
            _MAGIC,
            _TYPE_NUMBERS[type(frame)],
            _LAST if index == final else 0,
            len(meta),
            len(data),
            offset,
            synced,
        )
        crc = google_crc32c.extend(google_crc32c.extend(seed, header + meta), data)
        buffers.append(b"".join((header, _CRC.pack(crc), meta)))
        if data:
            buffers.append(data)
        offset += HEADER_LENGTH + len(meta) + len(data)
    return buffers


def decode_frame(data: bytes, at: int, seed: int) -> PlacedFrame | None:
    """The frame at `at`, or None when there is no whole and sound one."""
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
    except msgspec.DecodeError:  # sound bytes of a writer that broke the format
        return None
    if type(frame) is Batch:
        frame = msgspec.structs.replace(frame, data=body)
    return PlacedFrame(at, offset, end - at, bool(flags & _LAST), synced, frame)


def stated_frame(data: bytes, at: int) -> str:
    """What a damaged frame's header says it was, as far as it can be believed."""
    if data[at : at + len(_MAGIC)] != _MAGIC or at + HEADER_LENGTH > len(data):
        return "no readable header"
    _, type_, _, meta_length, data_length, _, _ = _HEADER.unpack_from(data, at)
    name = FRAME_TYPES[type_].__name__ if type_ in FRAME_TYPES else f"unknown type {type_}"
    length = HEADER_LENGTH + meta_length + data_length
    return f"its header says {name}, {length} bytes"


def find_frame(data: bytes, at: int, seed: int, lowest_offset: int) -> PlacedFrame | None:
    """The first sound frame at or behind `at` whose writer put it at `lowest_offset` or later.

    Older offsets are refused: they are copies inside a payload, not what was written next.
    """
    while (at := data.find(_MAGIC, at)) >= 0:
        if (placed := decode_frame(data, at, seed)) and placed.offset >= lowest_offset:
            return placed
        at += 1
    return None


def round_length(buffers: Iterable[bytes]) -> int:
    """Bytes of an encoded round."""
    return sum(map(len, buffers))
