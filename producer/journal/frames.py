"""The frames of a journal; `journal.codec` has their bytes."""

import sys
from typing import Final, NamedTuple

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


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far a source was read; `value` is opaque to the journal."""

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
    positions: tuple[Position, ...]  # last position of each source
    cluster_id: str = ""  # the cluster that the events are for, empty while it is not known


class BatchFrame(msgspec.Struct, frozen=True, array_like=True):
    """A record batch about to be sent, with its exact bytes.

    `position` covers all events accepted up to and including this round; `timestamp_ms` is the
    newest timestamp of its records, and `dated` says that they are their sender's, or may be: a
    frame of format 2 does not tell.
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


Frame = Head | Renewal | BatchFrame | Acks | Waiting | Numbered | Drop | Commit | Position


def frame_name(kind: type) -> str:
    """Return what a kind of frame is called in reports."""
    return kind.__name__.removesuffix("Frame")


def without_bytes(frame: Frame) -> Frame:
    """Return a frame without the bytes of its batch, which stay in the file."""
    if isinstance(frame, BatchFrame | Waiting):
        return msgspec.structs.replace(frame, topic=sys.intern(frame.topic), data=b"")
    return frame
