"""What a journal means: frames applied one after the other, without any I/O.

The same object serves the writer, which keeps it beside the files to know what each segment is
still needed for, and recovery, which builds it from the files. So what is recovered is what was
in memory, as far as it was synced.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from sequitur.kafka.identity import Identity
from sequitur.kafka.record_batch import Stamp
from sequitur.producer.journal.frames import (
    SEQUENCE_MODULUS,
    Acks,
    BatchFrame,
    Commit,
    Drop,
    Frame,
    Head,
    Number,
    Numbered,
    PartitionState,
    Renewal,
    SourcePosition,
    Waiting,
    WaitingKey,
    without_bytes,
)
from sequitur.producer.journal.live import Key, Live, LiveBatches, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sequitur.producer.journal.scan import TornTail

TopicPartition = tuple[str, int]
_FIRST_EVENT: Final = operator.attrgetter("first_event_sequence")


class JournalState:
    """The sum of all frames so far.

    The parts of a round that is not whole yet are `_parted`, and count as needed.
    """

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self.identity: Identity | None = None
        self.cluster_id = ""
        self.next_event_sequence = 0
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.positions: dict[str, bytes] = {}
        self.live = LiveBatches()
        self._parted: list[tuple[Frame, Place]] = []
        self._parted_bytes = 0

    @property
    def live_bytes(self) -> int:
        """How long the frames are that are still needed, those of unfinished rounds among them."""
        return self.live.total_bytes + self._parted_bytes

    @property
    def unacked_count(self) -> int:
        """Batches that have numbers, and no ack mark."""
        return len(self.live) - self.live.waiting_count

    @property
    def is_parted(self) -> bool:
        return bool(self._parted)

    def check(self, frames: Iterable[Frame]) -> None:
        """Refuse frames that `apply` could not take."""
        added: set[Key] = set()
        gone: set[Key] = set()
        for frame in frames:
            match frame:
                case Head():
                    raise ValueError("heads are written by the journal itself")
                case Acks():
                    gone.update(mark.key for mark in frame.marks)
                case BatchFrame():
                    self._check_new(frame.key, added, gone)
                case Waiting():
                    added.add(frame.key)
                case Numbered():
                    for number in frame.numbers:
                        self._check_number(number, added, gone)
                case Renewal():
                    for restamp in frame.restamps:
                        self._check_held(restamp.key, added, gone)

    def _is_redated(self, number: Number) -> bool:
        """Return whether it names a batch that has these numbers, and gets another timestamp."""
        live = self.live.find(number.key)
        if live is None:
            return False
        batch = live.batch
        same = (number.first_event_sequence, number.record_count)
        return same == (batch.first_event_sequence, batch.record_count)

    def _check_number(self, number: Number, added: set[Key], gone: set[Key]) -> None:
        if not self._is_redated(number):
            self._check_held(number.waiting_key, added, gone)
            self._check_whole(number, added)
            self._check_new(number.key, added, gone)
            gone.add(number.waiting_key)

    def _check_new(self, key: Key, added: set[Key], gone: set[Key]) -> None:
        if key in added or (key in self.live and key not in gone):
            raise ValueError(f"{key} is in the journal already")
        added.add(key)

    def _check_held(self, key: Key, added: set[Key], gone: set[Key]) -> None:
        if key not in added and (key not in self.live or key in gone):
            raise ValueError(f"{key} is not in the journal")

    def _check_whole(self, number: Number, added: set[Key]) -> None:
        """Check that all of a batch is numbered: its rest would be sent as another batch."""
        key = number.waiting_key
        if key in added:
            return
        live = self.live.find(key)
        assert live is not None  # `check` has looked
        count = live.batch.record_count
        if count != number.record_count:
            raise ValueError(
                f"{key} is in the journal with {count} records, not {number.record_count}"
            )

    def apply(self, frame: Frame, place: Place, *, part: bool = False) -> None:
        """Apply one frame; that of a part once its round is complete.

        Never refuse one: frames that name a batch may outlive it, when the batch was acked later
        and went with its segment.
        """
        if part:
            self._parted.append((without_bytes(frame), place))
            self._parted_bytes += place.length
        elif isinstance(frame, BatchFrame):
            self._apply_batch(frame, place)
        elif isinstance(frame, Waiting):
            self._apply_waiting(frame, place)
        else:
            self._apply_small(frame)

    def _apply_small(self, frame: Frame) -> None:
        """Apply a frame that need not be kept afterwards."""
        match frame:
            case Numbered():
                self._apply_numbers(frame.numbers)
            case Acks():
                self.live.forget_all(mark.key for mark in frame.marks)
            case Drop():
                self.live.forget_all(WaitingKey(*name) for name in frame.waiting)
            case Commit():
                self._apply_commit(frame)
            case SourcePosition():
                self.positions[frame.source] = frame.value
            case Renewal():
                self._apply_renewal(frame)
            case Head():
                self._apply_head(frame)

    def oldest_live_segment(self) -> int | None:
        """Return the oldest segment that holds something still needed."""
        segments = [place.segment for _, place in self._parted[:1]]
        if (oldest := self.live.oldest_segment()) is not None:
            segments.append(oldest)
        return min(segments, default=None)

    def head(self, previous_length: int) -> Head:
        return Head(
            producer=self.producer,
            previous_length=previous_length,
            identity=self.identity,
            next_event_sequence=self.next_event_sequence,
            partitions=tuple(self.partitions.values()),
            positions=tuple(SourcePosition(*item) for item in self.positions.items()),
            cluster_id=self.cluster_id,
        )

    def recovered(self, torn: TornTail | None, *, fresh: bool) -> Recovered:
        unacked: dict[TopicPartition, list[BatchFrame]] = {}
        waiting: dict[TopicPartition, list[Waiting]] = {}
        # Halves of a split batch are appended behind batches that come after them.
        for batch in sorted((live.batch for live in self.live), key=_FIRST_EVENT):
            partition = (batch.topic, batch.partition)
            if isinstance(batch, BatchFrame):
                unacked.setdefault(partition, []).append(batch)
            else:
                waiting.setdefault(partition, []).append(batch)
        return Recovered(
            identity=self.identity,
            unacked={partition: tuple(batches) for partition, batches in unacked.items()},
            waiting={partition: tuple(batches) for partition, batches in waiting.items()},
            next_event_sequence=self.next_event_sequence,
            partitions=dict(self.partitions),
            positions=dict(self.positions),
            torn=torn,
            fresh=fresh,
            cluster_id=self.cluster_id,
        )

    def _apply_head(self, head: Head) -> None:
        self.identity = head.identity
        self.cluster_id = head.cluster_id
        self.next_event_sequence = head.next_event_sequence
        self.partitions = {(state.topic, state.partition): state for state in head.partitions}
        self.positions = {position.source: position.value for position in head.positions}

    def _apply_batch(self, batch: BatchFrame, place: Place) -> None:
        self.live.forget(batch.key)
        self.live.forget(WaitingKey(batch.topic, batch.partition, batch.first_event_sequence))
        # The head of a segment has the newest positions; an old batch must not put them back.
        bare = msgspec.structs.replace(
            batch, topic=sys.intern(batch.topic), position=None, data=b""
        )
        self.live.hold(batch.key, Live(bare, (place,)))
        self._take_numbers(batch)
        self._seen(batch.last_event_sequence)
        if batch.position is not None:
            self.positions[batch.position.source] = batch.position.value

    def _apply_waiting(self, waiting: Waiting, place: Place) -> None:
        before = self.live.forget(waiting.key)
        places: tuple[Place, ...] = (place,)
        if waiting.piece and before is not None:
            places = (*before.places, place)
        self.live.hold(
            waiting.key,
            Live(
                msgspec.structs.replace(waiting, topic=sys.intern(waiting.topic), data=b""), places
            ),
        )
        self._seen(waiting.last_event_sequence)

    def _apply_numbers(self, numbers: Iterable[Number]) -> None:
        for number in numbers:
            self._apply_number(number)

    def _apply_number(self, number: Number) -> None:
        batch = BatchFrame(
            number.topic,
            number.partition,
            number.producer_id,
            number.epoch,
            number.base_sequence,
            number.record_count,
            number.first_event_sequence,
            number.last_event_sequence,
            None,
            number.timestamp_ms,
        )
        self._take_numbers(batch)
        name = number.key if self._is_redated(number) else number.waiting_key
        live = self.live.forget(name)
        if live is None:  # acked since, and gone with the segment it was in
            return
        if number.timestamp_ms == -1 and isinstance(live.batch, Waiting):
            batch = msgspec.structs.replace(batch, timestamp_ms=live.batch.last_ms)
        batch = msgspec.structs.replace(batch, dated=live.batch.dated)
        self.live.forget(batch.key)
        self.live.hold(batch.key, Live(batch, live.places))

    def _take_numbers(self, batch: BatchFrame) -> None:
        stamp = Stamp(batch.producer_id, batch.epoch, batch.base_sequence)
        partition = (batch.topic, batch.partition)
        self._advance(partition, stamp, batch.record_count, batch.last_event_sequence)

    def _advance(
        self, partition: TopicPartition, stamp: Stamp, record_count: int, through: int
    ) -> None:
        """Move the partition's numbering behind a batch, unless it is behind it already.

        Batches do not always come in order: a snapshot repeats old ones, and the halves of a split
        batch come behind the renumbered batches that follow them.
        """
        next_sequence = (stamp.base_sequence + record_count) % SEQUENCE_MODULUS
        identity = (stamp.producer_id, stamp.epoch)
        state = self.partitions.get(partition)
        if state is not None:
            through = max(through, state.through_event_sequence)
            if (state.producer_id, state.epoch) == identity:
                ahead = (next_sequence - state.next_sequence) % SEQUENCE_MODULUS
                if not 0 < ahead < SEQUENCE_MODULUS // 2:
                    next_sequence = state.next_sequence
            elif self.identity != Identity(*identity):
                return
        self.partitions[partition] = PartitionState(*partition, *identity, next_sequence, through)

    def _apply_renewal(self, renewal: Renewal) -> None:
        self.identity = renewal.identity
        self.cluster_id = renewal.cluster_id or self.cluster_id
        producer_id, epoch = renewal.identity.producer_id, renewal.identity.epoch
        for partition in renewal.begun:
            known = self.partitions.get(partition)
            through = -1 if known is None else known.through_event_sequence
            self.partitions[partition] = PartitionState(*partition, producer_id, epoch, 0, through)
        renamed: list[Live] = []
        for restamp in renewal.restamps:
            stamp = Stamp(producer_id, epoch, restamp.new_base_sequence)
            self._advance((restamp.topic, restamp.partition), stamp, restamp.record_count, -1)
            live = self.live.forget(restamp.key)
            if live is None:  # acked since, and gone with the segment it was in
                continue
            batch = msgspec.structs.replace(
                live.batch,
                producer_id=producer_id,
                epoch=epoch,
                base_sequence=restamp.new_base_sequence,
            )
            renamed.append(Live(batch, live.places))
        # All old names are gone before the first new one comes: they may be the same.
        for live in renamed:
            self.live.hold(live.batch.key, live)

    def _apply_commit(self, commit: Commit) -> None:
        parted, self._parted = self._parted, []
        for frame, place in parted:
            self._parted_bytes -= place.length
            if commit.whole:
                self.apply(frame, place)

    def _seen(self, event_sequence: int) -> None:
        self.next_event_sequence = max(self.next_event_sequence, event_sequence + 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Recovered:
    """What a journal held when it was opened. `Journal.read` gives the batches' bytes."""

    identity: Identity | None  # the newest producer id and epoch; None before the first one
    # per partition the batches to send again, oldest first, without their bytes
    unacked: Mapping[TopicPartition, tuple[BatchFrame, ...]]
    # per partition the batches that have no numbers yet, oldest first, without their bytes
    waiting: Mapping[TopicPartition, tuple[Waiting, ...]]
    next_event_sequence: int
    # where each partition's numbering ended. A later life does not go on from there, since a copy
    # of the journal would, too
    partitions: Mapping[TopicPartition, PartitionState]
    positions: Mapping[str, bytes]  # last position of each source
    torn: TornTail | None = None  # the unfinished round that was cut off, None when there was none
    fresh: bool = False  # there was no journal; it was created
    cluster_id: str = ""  # the cluster that the events are for, empty while it is not known

    def partition_count(self, topic: str) -> int | None:
        """Return how many partitions of a topic the journal knows; None if it knows none."""
        places = (*self.partitions, *self.waiting)
        known = [partition for name, partition in places if name == topic]
        return max(known) + 1 if known else None

    @property
    def known_topics(self) -> frozenset[str]:
        """The topics that it has had events of."""
        numbered = (place for place, s in self.partitions.items() if s.through_event_sequence >= 0)
        return frozenset(topic for topic, _ in (*numbered, *self.waiting))

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(topic for topic, _ in (*self.unacked, *self.waiting))

    @property
    def events(self) -> int:
        unacked = sum(b.record_count for batches in self.unacked.values() for b in batches)
        return unacked + sum(b.record_count for batches in self.waiting.values() for b in batches)


NOTHING_RECOVERED: Final = Recovered(None, {}, {}, 0, {}, {}, fresh=True)
