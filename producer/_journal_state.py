"""What a journal means: frames applied one after the other, without any I/O.

The same object serves the writer, which keeps it beside the files to know what each segment is
still needed for, and recovery, which builds it from the files. So what is recovered is what was
in memory, as far as it was synced.
"""

import dataclasses
import operator
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from producer._batch import Stamp, stamped
from producer._journal_codec import (
    SEQUENCE_MODULUS,
    Acks,
    Batch,
    BatchKey,
    Drop,
    Frame,
    Head,
    Identity,
    PartitionState,
    Position,
    Renewal,
    Spool,
    SpooledEvent,
)
from producer._journal_errors import JournalCorruptError, JournalNameError
from producer._journal_scan import TornTail, scan_segment, segment_name

TopicPartition = tuple[str, int]

# Bytes a frame or an event takes beside its topic's name and its data, at most.
_BATCH_OVERHEAD_BYTES: Final = 128
_EVENT_OVERHEAD_BYTES: Final = 32
_EVENT_SEQUENCE: Final = operator.attrgetter("event_sequence")


@dataclasses.dataclass(frozen=True, slots=True)
class Recovered:
    """What a journal held when it was opened.

    Attributes:
        identity: producer id and epoch to go on with; None before the first one.
        unacked: per partition the batches to send again, oldest first, with their exact bytes.
        spool: accepted events that are in no batch, in the order they were accepted.
        next_event_sequence: sequence of the next event to be accepted.
        partitions: where each partition's numbering stands. A partition whose state is under an
            older identity than `identity` starts at sequence 0.
        positions: last position of each source.
        torn: the unfinished round that was cut off, None when there was none.
        fresh: there was no journal; it was created.
    """

    identity: Identity | None
    unacked: Mapping[TopicPartition, tuple[Batch, ...]]
    spool: tuple[SpooledEvent, ...]
    next_event_sequence: int
    partitions: Mapping[TopicPartition, PartitionState]
    positions: Mapping[str, bytes]
    torn: TornTail | None = None
    fresh: bool = False

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, as far as the journal knows; None if it does not."""
        known = [partition for name, partition in self.partitions if name == topic]
        return max(known) + 1 if known else None

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have batches to be sent again."""
        return frozenset(topic for topic, _ in self.unacked)


NOTHING_RECOVERED: Final = Recovered(None, {}, (), 0, {}, {}, fresh=True)


@dataclasses.dataclass(slots=True)
class _LiveBatch:
    batch: Batch
    segment: int


class JournalState:
    """The sum of all frames so far.

    `live_bytes` is what the un-acked batches and the spool take in a segment, or a little more.
    `_live` counts, per segment, the items whose newest copy is in it: a segment may go once it
    and all before it count none.
    """

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self.identity: Identity | None = None
        self.next_event_sequence = 0
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.positions: dict[str, bytes] = {}
        self.live_bytes = 0
        self._batches: dict[BatchKey, _LiveBatch] = {}
        # Per partition in the order of acceptance: each event and the segment it is in.
        self._spool: dict[TopicPartition, deque[tuple[SpooledEvent, int]]] = {}
        self._live: defaultdict[int, int] = defaultdict(int)

    @property
    def unacked_count(self) -> int:
        """Batches without an ack mark."""
        return len(self._batches)

    @property
    def spooled_count(self) -> int:
        """Accepted events in no batch."""
        return sum(map(len, self._spool.values()))

    def check(self, frames: Iterable[Frame]) -> None:
        """Refuses frames that `apply` could not take.

        Raises:
            ValueError: a frame names a batch the journal does not hold, repeats one it holds,
                or is a `Head`, which only the journal itself writes.
        """
        added: set[BatchKey] = set()
        gone: set[BatchKey] = set()
        for frame in frames:
            if type(frame) is Head:
                raise ValueError("heads are written by the journal itself")
            if type(frame) is Acks:
                gone.update(mark.key for mark in frame.marks)
            elif type(frame) is Batch:
                if frame.key in added or (frame.key in self._batches and frame.key not in gone):
                    raise ValueError(f"{frame.key} is in the journal already")
                added.add(frame.key)
            elif type(frame) is Renewal:
                self._check_renewal(frame, added, gone)

    def apply(self, frame: Frame, segment: int) -> None:
        """Takes in one frame of `segment`.

        Never refuses one: frames that name a batch may outlive it, when the batch was acked later
        and went with its segment.
        """
        match frame:
            case Batch():
                self._apply_batch(frame, segment)
            case Acks():
                for mark in frame.marks:
                    self._forget(mark.key)
            case Spool():
                self._apply_spool(frame, segment)
            case Position():
                self.positions[frame.source] = frame.value
            case Renewal():
                self._apply_renewal(frame)
            case Drop():
                self._drop(frozenset(frame.event_sequences))
            case Head():
                self._apply_head(frame)

    def oldest_live_segment(self) -> int | None:
        """The oldest segment that holds something still needed."""
        return min((segment for segment, count in self._live.items() if count), default=None)

    def snapshot(self, previous_length: int, *, complete: bool) -> list[Frame]:
        """The first round of a new segment; with everything that is live if `complete`."""
        frames: list[Frame] = [
            Head(
                producer=self.producer,
                previous_length=previous_length,
                complete=complete,
                identity=self.identity,
                next_event_sequence=self.next_event_sequence,
                partitions=tuple(self.partitions.values()),
                positions=tuple(Position(*item) for item in self.positions.items()),
            )
        ]
        if complete:
            # The head has the newest positions; an old batch must not put them back.
            frames.extend(
                msgspec.structs.replace(live.batch, position=None)
                for live in self._batches.values()
            )
            if events := self._spooled_events():
                frames.append(Spool(events))
        return frames

    def moved(self, segment: int) -> None:
        """A complete snapshot was written to `segment`: nothing else is needed any more."""
        self._live.clear()
        for live in self._batches.values():
            live.segment = segment
        for partition, queue in self._spool.items():
            self._spool[partition] = deque((event, segment) for event, _ in queue)
        self._live[segment] = self.unacked_count + self.spooled_count

    def recovered(self, torn: TornTail | None, *, fresh: bool) -> Recovered:
        """The state as a value."""
        unacked: dict[TopicPartition, list[Batch]] = {}
        # Halves of a split batch are appended behind batches that come after them.
        for batch in sorted(
            (live.batch for live in self._batches.values()),
            key=lambda batch: batch.first_event_sequence,
        ):
            unacked.setdefault((batch.topic, batch.partition), []).append(batch)
        return Recovered(
            identity=self.identity,
            unacked={partition: tuple(batches) for partition, batches in unacked.items()},
            spool=self._spooled_events(),
            next_event_sequence=self.next_event_sequence,
            partitions=dict(self.partitions),
            positions=dict(self.positions),
            torn=torn,
            fresh=fresh,
        )

    def _spooled_events(self) -> tuple[SpooledEvent, ...]:
        events = [event for queue in self._spool.values() for event, _ in queue]
        return tuple(sorted(events, key=_EVENT_SEQUENCE))

    def _apply_head(self, head: Head) -> None:
        if head.complete:
            self._batches.clear()
            self._spool.clear()
            self._live.clear()
            self.live_bytes = 0
        self.identity = head.identity
        self.next_event_sequence = head.next_event_sequence
        self.partitions = {(state.topic, state.partition): state for state in head.partitions}
        self.positions = {position.source: position.value for position in head.positions}

    def _apply_batch(self, batch: Batch, segment: int) -> None:
        self._forget(batch.key)
        self._batches[batch.key] = _LiveBatch(batch, segment)
        self._live[segment] += 1
        self.live_bytes += _batch_bytes(batch)
        stamp = Stamp(batch.producer_id, batch.epoch, batch.base_sequence)
        partition = (batch.topic, batch.partition)
        self._advance(partition, stamp, batch.record_count, batch.last_event_sequence)
        self.next_event_sequence = max(self.next_event_sequence, batch.last_event_sequence + 1)
        self._take_position(batch.position)
        queue = self._spool.get(partition)
        while queue and queue[0][0].event_sequence <= batch.last_event_sequence:
            self._release(*queue.popleft())

    def _advance(
        self, partition: TopicPartition, stamp: Stamp, record_count: int, through: int
    ) -> None:
        """Moves the partition's numbering behind a batch, unless it is behind it already.

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

    def _apply_spool(self, spool: Spool, segment: int) -> None:
        # Hundreds of thousands of events may wait while Kafka is away: as little as can be each.
        get = self._spool.get
        length = 0
        for event in spool.events:
            queue = get((event.topic, event.partition))
            if queue is None:
                queue = self._spool[event.topic, event.partition] = deque()
            queue.append((event, segment))
            length += len(event.payload) + len(event.topic)
        if spool.events:
            count, last = len(spool.events), spool.events[-1].event_sequence
            self._live[segment] += count
            self.live_bytes += length + count * _EVENT_OVERHEAD_BYTES
            self.next_event_sequence = max(self.next_event_sequence, last + 1)
        self._take_position(spool.position)

    def _apply_renewal(self, renewal: Renewal) -> None:
        self.identity = renewal.identity
        producer_id, epoch = renewal.identity.producer_id, renewal.identity.epoch
        for partition in renewal.begun:
            known = self.partitions.get(partition)
            through = -1 if known is None else known.through_event_sequence
            self.partitions[partition] = PartitionState(*partition, producer_id, epoch, 0, through)
        renamed: dict[BatchKey, BatchKey] = {}
        for restamp in renewal.restamps:
            stamp = Stamp(producer_id, epoch, restamp.new_base_sequence)
            self._advance((restamp.topic, restamp.partition), stamp, restamp.record_count, -1)
            live = self._batches.get(restamp.key)
            if live is None:  # acked since, and gone with the segment it was in
                continue
            live.batch = msgspec.structs.replace(
                live.batch,
                producer_id=producer_id,
                epoch=epoch,
                base_sequence=restamp.new_base_sequence,
                data=stamped(live.batch.data, stamp),
            )
            renamed[restamp.key] = live.batch.key
        self._batches = {renamed.get(key, key): live for key, live in self._batches.items()}

    def _check_renewal(self, renewal: Renewal, added: set[BatchKey], gone: set[BatchKey]) -> None:
        for restamp in renewal.restamps:
            key = restamp.key
            if key not in added and (key not in self._batches or key in gone):
                raise ValueError(f"{key} is not in the journal: cannot restamp it")

    def _take_position(self, position: Position | None) -> None:
        if position is not None:
            self.positions[position.source] = position.value

    def _forget(self, key: BatchKey) -> None:
        live = self._batches.pop(key, None)
        if live is not None:  # a mark may come twice: the broker may answer twice
            self._live[live.segment] -= 1
            self.live_bytes -= _batch_bytes(live.batch)

    def _drop(self, event_sequences: frozenset[int]) -> None:
        for partition, queue in self._spool.items():
            kept: deque[tuple[SpooledEvent, int]] = deque()
            for event, segment in queue:
                if event.event_sequence in event_sequences:
                    self._release(event, segment)
                else:
                    kept.append((event, segment))
            self._spool[partition] = kept

    def _release(self, event: SpooledEvent, segment: int) -> None:
        self._live[segment] -= 1
        self.live_bytes -= len(event.payload) + len(event.topic) + _EVENT_OVERHEAD_BYTES


def _batch_bytes(batch: Batch) -> int:
    return len(batch.data) + len(batch.topic) + _BATCH_OVERHEAD_BYTES


def replay(
    segments: Iterable[tuple[int, bytes]], *, newest: int, producer: str
) -> tuple[JournalState, TornTail | None, Sequence[int]]:
    """The state that segments hold, oldest first.

    Returns:
        The state, the torn tail of the newest segment, and the length of each segment's sound part.

    Raises:
        JournalCorruptError: good frames would be lost by reading on.
        JournalNameError: the journal belongs to another producer.
        JournalVersionError: a segment is of a newer format.
    """
    state = JournalState(producer)
    torn: TornTail | None = None
    lengths: list[int] = []
    expected: int | None = None
    for number, data in segments:
        name = segment_name(number)
        if expected is not None and number != expected:
            raise JournalCorruptError(
                segment_name(expected), 0, "the whole file is missing", f"{name} follows"
            )
        scan = scan_segment(data, number, newest=number == newest)
        if scan.damages:
            raise scan.damages[0].error(name)
        torn = scan.torn
        head = scan.frames[0].frame
        if not isinstance(head, Head):
            raise JournalCorruptError(name, 0, "the head frame is missing", "other frames follow")
        if head.producer != producer:
            raise JournalNameError(head.producer, producer)
        if lengths and head.previous_length != lengths[-1]:
            raise JournalCorruptError(
                segment_name(number - 1),
                lengths[-1],
                f"the file had {head.previous_length} bytes when {name} was begun",
                f"{name} follows",
            )
        for placed in scan.frames:
            state.apply(placed.frame, number)
        lengths.append(scan.length if torn is None else torn.offset)
        expected = number + 1
    return state, torn, lengths
