"""A batch: events that go to one partition together."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sequitur.kafka.partition import KeyPartitioner, StickyPartitioner
from sequitur.kafka.record_batch import (
    NO_STAMP,
    Builder,
    Stamp,
    StoredRecord,
    count_of,
    halved,
    records_of,
    seal,
    stamped,
    times_of,
)
from sequitur.kafka.record_format import HEADER_SIZE
from sequitur.kafka.records import parse_event_id
from sequitur.producer._outcome import claim_of
from sequitur.producer.journal.frames import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.kafka.record_format import Compression
    from sequitur.producer._outcome import Claim


class InJournal(enum.Enum):
    """What the journal holds of a batch, or is about to: the next start would send it."""

    NOTHING = enum.auto()
    PIECES = enum.auto()
    """What was added before each round, while it grows."""
    WRITTEN = enum.auto()
    """All of it, without numbers, once a round is there: until then it gets none."""
    WAITING = enum.auto()
    """All of it, without numbers: it may get some."""
    NUMBERED = enum.auto()
    """All of it, under the numbers `journaled`."""


class InMemory(enum.Enum):
    """Where the records of a batch are."""

    BUILDER = enum.auto()
    """In `builder`: it is not encoded yet."""
    BYTES = enum.auto()
    """In `data`, under `stamp`."""
    AWAY = enum.auto()
    """Only in the journal."""
    READ_BACK = enum.auto()
    """In `data` again: `loaded` of its bytes count as read back."""


class Life(enum.Enum):
    """Whether a batch is to be sent, and whether its events have their outcomes."""

    ACTIVE = enum.auto()
    TOLD = enum.auto()
    """The events have their outcomes, but it may be in flight, and is still sent."""
    ENDED = enum.auto()
    """It is in the log, was given up or was halved; no event has its outcome yet."""
    OVER = enum.auto()
    """Both: the journal forgets it."""


class Dating(enum.Enum):
    """Who gave the records of a batch their timestamps, and whether a broker refuses them."""

    OURS = enum.auto()
    """The producer gives them. A new batch begins here, until its first record says otherwise."""
    SENDERS = enum.auto()
    """The senders gave them. They never change: a broker that refuses them refuses the events."""
    REFUSED = enum.auto()
    """The producer gave them, and a broker refuses them: the batch waits for the broker's time."""
    REDATED = enum.auto()
    """A broker refused them, and its time has replaced them. The batch is sent again."""
    REFUSED_AGAIN = enum.auto()
    """A broker refuses the new timestamps too: the batch waits for that broker's time."""


class DatingEvent(enum.Enum):
    """What can happen to the timestamps of a batch."""

    GIVEN = enum.auto()
    """The first record came with a timestamp of its sender."""
    REFUSED = enum.auto()
    """A broker refused them, or named a range that they are not in."""
    KEPT = enum.auto()
    """The broker's time could not be learned: the batch is sent as it is."""
    REPLACED = enum.auto()
    """The records got the broker's time."""
    HALVED = enum.auto()
    """A broker refused the batch as a whole: the next state is that of its halves."""


# The table has all that can happen. The producer never replaces a sender's timestamps. A batch that
# is `REFUSED` is not sent, so it cannot be halved. A batch that was `REDATED` once stays so if the
# next broker's time cannot be learned: it is halved when a broker refuses it for its timestamps.
_NEXT_DATING: Final[dict[tuple[Dating, DatingEvent], Dating]] = {
    (Dating.OURS, DatingEvent.GIVEN): Dating.SENDERS,
    (Dating.OURS, DatingEvent.REFUSED): Dating.REFUSED,
    (Dating.OURS, DatingEvent.HALVED): Dating.OURS,
    (Dating.SENDERS, DatingEvent.HALVED): Dating.SENDERS,
    (Dating.REFUSED, DatingEvent.REFUSED): Dating.REFUSED,
    (Dating.REFUSED, DatingEvent.KEPT): Dating.OURS,
    (Dating.REFUSED, DatingEvent.REPLACED): Dating.REDATED,
    (Dating.REDATED, DatingEvent.REFUSED): Dating.REFUSED_AGAIN,
    (Dating.REDATED, DatingEvent.HALVED): Dating.OURS,
    (Dating.REFUSED_AGAIN, DatingEvent.REFUSED): Dating.REFUSED_AGAIN,
    (Dating.REFUSED_AGAIN, DatingEvent.KEPT): Dating.REDATED,
    (Dating.REFUSED_AGAIN, DatingEvent.REPLACED): Dating.REDATED,
}
_MISDATED: Final = (Dating.REFUSED, Dating.REFUSED_AGAIN)


@dataclass(slots=True, eq=False)
class Batch:
    """Events that go to one partition together."""

    topic: str
    partition: int
    accepted_at_s: float  # when the first of them was accepted, on the event loop's clock
    first_event: int
    last_event: int = 0  # no event of this partition with a number up to this is in a later batch
    count: int = 0  # how many they are; 0 while the batch is open
    size: int = 0  # the bytes of memory it takes; 0 while it is open
    claims: list[Claim] = field(default_factory=list)  # who gets their outcomes, in their order
    life: Life = Life.ACTIVE
    # whether its events have their outcomes, but are still sent, and nobody is to send them again
    left: bool = False
    in_memory: InMemory = InMemory.BUILDER
    builder: Builder | None = None
    data: bytes = b""
    stamp: Stamp = NO_STAMP  # the numbers in `data`
    loaded: int = 0
    in_journal: InJournal = InJournal.NOTHING
    journaled: Stamp | None = None
    pieced: int = 0  # bytes of its records that the journal holds, while it grows there
    dating: Dating = Dating.OURS
    # the newest timestamp of its records as they were accepted; -1 if not known
    accepted_ms: int = -1
    # the newest timestamp of its records once it has numbers, or once its bytes have left memory;
    # -1 keeps theirs
    last_ms: int = -1
    odd_answers: int = 0  # how many answers it got that may be its own fault

    def encode(self, compression: Compression, stamp: Stamp) -> bytes:
        """Return the batch's bytes under these numbers; nothing else of them ever changes."""
        if self.builder is not None:
            self.data = seal(self.builder, compression, stamp)
            self.builder = None
            self.in_memory = InMemory.BYTES
            self.accepted_ms = times_of(self.data)[1]
        elif self.stamp != stamp or self.last_ms not in {-1, times_of(self.data)[1]}:
            self.data = stamped(self.data, stamp, None if self.last_ms == -1 else self.last_ms)
        self.stamp = stamp
        return self.data

    def on_dating(self, event: DatingEvent) -> None:
        """Take note of what happened to its timestamps; a `KeyError` if that is impossible."""
        self.dating = _NEXT_DATING[self.dating, event]

    def redate(self, now_ms: int) -> None:
        """Have the newest of its records bear this time; the others keep their distance."""
        self.on_dating(DatingEvent.REPLACED)
        self.last_ms = now_ms

    @property
    def is_misdated(self) -> bool:
        """Whether a broker refuses its timestamps: it is not sent with them."""
        return self.dating in _MISDATED

    @property
    def newest_ms(self) -> int:
        """The newest timestamp of its records, once it is encoded: brokers go by it."""
        return times_of(self.data)[1] if self.last_ms == -1 else self.last_ms

    @property
    def shift_ms(self) -> int:
        """How much later its records are dated than when they were accepted."""
        return 0 if self.accepted_ms == -1 else self.newest_ms - self.accepted_ms

    @property
    def completed(self) -> bool:
        """Whether its events have their outcomes."""
        return self.life is Life.TOLD or self.life is Life.OVER

    def complete(self) -> None:
        """Take note that its events have their outcomes."""
        self.life = Life.OVER if self.ended else Life.TOLD

    @property
    def ended(self) -> bool:
        """Whether it is not sent any more, and the journal is to forget it."""
        return self.life is Life.ENDED or self.life is Life.OVER

    def end(self) -> None:
        """Send it no more."""
        self.life = Life.OVER if self.completed else Life.ENDED

    @property
    def is_kept(self) -> bool:
        """Whether the journal may have anything of it: the next start would send it."""
        return self.in_journal is not InJournal.NOTHING

    def write_numbers(self, stamp: Stamp) -> None:
        """Have the journal hold it under these numbers with the round that is written."""
        self.in_journal = InJournal.NUMBERED
        self.journaled = stamp

    def take_back(self, *, waiting: bool) -> None:
        """Undo what the journal had no space for: its numbers, or all but the pieces before."""
        self.journaled = None
        if waiting:
            self.in_journal = InJournal.WAITING
        else:
            self.in_journal = InJournal.PIECES if self.pieced else InJournal.NOTHING

    def waiting(self, compression: Compression) -> Waiting:
        """Return the batch's frame for the journal, without numbers."""
        data = self.encode(compression, NO_STAMP)
        return self._waiting(times_of(data), self.count, data, piece=False)

    def piece(self, count: int) -> Waiting:
        """Return the frame of what was added since the last piece, while the batch is open."""
        assert self.builder is not None
        plain = self.builder.build()
        data = bytes(memoryview(plain)[HEADER_SIZE + self.pieced :])
        self.pieced += len(data)
        return self._waiting(times_of(plain), count, data, piece=True)

    def _waiting(self, times: tuple[int, int], count: int, data: bytes, *, piece: bool) -> Waiting:
        return Waiting(
            self.topic,
            self.partition,
            self.first_event,
            self.last_event,
            count,
            *times,
            self.dating is Dating.SENDERS,
            piece,
            data,
        )

    def load(self, data: bytes) -> None:
        """Hold bytes again that were read back from the journal."""
        self.data = data
        self.stamp = Stamp.of(data)
        self.in_memory = InMemory.READ_BACK
        self.loaded = len(data)

    def unload(self) -> None:
        """Leave the bytes to the journal."""
        if self.data:
            self.last_ms = self.newest_ms
        self.data = b""
        self.in_memory = InMemory.AWAY

    def halves(self, compression: Compression) -> tuple[Batch, Batch]:
        """Return the batch as two, for a broker that refused it as too large."""
        parts = halved(self.data, compression)
        middle = count_of(parts[0])
        claims: tuple[list[Claim], list[Claim]] = ([], [])
        start = 0
        for claim in self.claims:
            place = min(max(middle - start, 0), len(claim.entries))
            start += len(claim.entries)
            first_part, second_part = claim.cut(place)
            if first_part.entries:
                claims[0].append(first_part)
            if second_part.entries:
                claims[1].append(second_part)
        middle_event = parse_event_id(_event_id(records_of(parts[1])[0])).sequence
        first, second = (
            Batch(
                topic=self.topic,
                partition=self.partition,
                accepted_at_s=self.accepted_at_s,
                first_event=first_event,
                count=count_of(data),
                size=self.size // 2,
                claims=side,
                life=Life.TOLD if self.completed else Life.ACTIVE,
                left=self.left,
                in_memory=InMemory.BYTES,
                data=data,
                dating=_NEXT_DATING[self.dating, DatingEvent.HALVED],
                accepted_ms=times_of(data)[1] - self.shift_ms,
            )
            for data, side, first_event in zip(
                parts,
                claims,
                (self.first_event, middle_event),
                strict=True,
            )
        )
        first.size = self.size - second.size
        first.last_event, second.last_event = second.first_event - 1, self.last_event
        return first, second


def first_id(data: bytes) -> bytes:
    """Return the id of a batch's first event. A batch is in the log as a whole or not at all."""
    return _event_id(records_of(data)[0])


def oldest_timestamp_ms(data: bytes) -> int:
    """Return the oldest timestamp of a batch's records."""
    return min(record.timestamp_ms for record in records_of(data))


def _event_id(record: StoredRecord) -> bytes:
    """Return the event id of a record: its last header."""
    _name, event_id = record.headers[-1]
    assert event_id is not None
    return event_id


# The memory that accepted events may take, the batches that take it, and who waits for either.


class BufferBudget:
    """Count the bytes of all events that are accepted and not settled, and hold senders back.

    While `used` is at the limit, senders queue and are admitted in the order they came. That also
    keeps the order of events that several tasks send.
    """

    __slots__ = ("_full_since_s", "_loop", "_waiting", "limit", "spared", "used")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.used = 0
        self.limit = limit
        self.spared = 0
        self._loop = loop
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._full_since_s: float | None = None

    @property
    def stuck_s(self) -> float:
        """Seconds since bytes were last given back, while the budget is used up; else 0."""
        since_s = self._full_since_s
        return 0.0 if since_s is None else self._loop.time() - since_s

    @property
    def left(self) -> int:
        """How many bytes are left; negative if there were too many for the limit."""
        return self.limit - self.used + self.spared

    @property
    def is_free(self) -> bool:
        """Whether an event may be accepted now: there are bytes left, and no sender waits."""
        return self.used < self.limit + self.spared and not self._waiting

    @property
    def is_short(self) -> bool:
        """Whether more than half of the bytes are taken."""
        return self.used * 2 > self.limit

    async def wait(self, deadline_s: float) -> bool:
        """Queue for bytes; return False if there were none before the deadline.

        An admitted caller takes its bytes in the same step of the event loop. If it takes none,
        since its event is invalid or it raised, the next sender is admitted after that step.
        """
        mine: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append(mine)
        timer = self._loop.call_at(deadline_s, _resolve, mine, False)
        self.admit_next()
        admitted = False
        try:
            admitted = await mine
        finally:
            timer.cancel()
            self._waiting.remove(mine)
            if admitted:
                self._loop.call_soon(self.admit_next)
            else:
                self.admit_next()
        return admitted

    def admit_next(self) -> None:
        """Admit the sender that waits longest, if bytes are left."""
        if self._waiting and self.left > 0:
            _resolve(self._waiting[0], True)

    def take(self, size: int) -> None:
        """Take bytes, whether or not so many are left, and admit the next sender if any are."""
        self.used += size
        if self.used >= self.limit + self.spared:
            if self._full_since_s is None:
                self._full_since_s = self._loop.time()
        elif self._waiting:
            self.admit_next()

    def give_back(self, size: int) -> None:
        """Give bytes back, and admit the next sender."""
        self.used -= size
        if self._full_since_s is not None:
            self._full_since_s = self._loop.time() if self.left <= 0 else None
        self.admit_next()

    def resize(self, limit: int) -> None:
        """Set another limit, and admit the next sender if it leaves bytes."""
        self.limit = limit
        self.admit_next()

    def spare(self, size: int) -> None:
        """Have so many of the used bytes keep nobody waiting, and admit the next sender."""
        self.spared = size
        if self.left > 0:
            self._full_since_s = None
        self.admit_next()

    def close(self) -> None:
        """Admit none of the senders that wait: the producer closes."""
        for future in self._waiting:
            _resolve(future, False)


def _resolve(future: asyncio.Future[bool], admitted: bool) -> None:
    if not future.done():
        future.set_result(admitted)


class Outstanding:
    """Hold every batch from its first event until it is released.

    A batch is completed when its events have their outcomes, and released when it is needed no
    more. The two differ: after `delivery_timeout` a batch is completed while it is in flight.
    """

    def __init__(self, budget: BufferBudget) -> None:
        self.batches: dict[Batch, None] = {}
        self._budget = budget
        self._flushes: list[tuple[set[Batch], asyncio.Future[None]]] = []

    @property
    def is_flushing(self) -> bool:
        """Whether somebody waits for all events to have their outcomes."""
        return bool(self._flushes)

    def add(self, batch: Batch) -> None:
        """Hold a batch whose events take their bytes from the budget as they are accepted."""
        self.batches[batch] = None

    def take_over(self, batch: Batch) -> None:
        """Hold a batch that a former life accepted; it gets its bytes whatever is left of them."""
        self.batches[batch] = None
        self._budget.take(batch.size)

    def flushed(self) -> asyncio.Future[None]:
        """Return a future that is done when all events accepted until now have their outcomes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waited_for = {batch for batch in self.batches if not batch.completed}
        if waited_for:
            self._flushes.append((waited_for, future))
        else:
            future.set_result(None)
        return future

    def complete(self, batch: Batch) -> None:
        """Take note that the events of a batch have their outcomes."""
        batch.complete()
        for waited_for, future in self._flushes:
            waited_for.discard(batch)
            if not waited_for and not future.done():
                future.set_result(None)
        if self._flushes:
            self._flushes = [flush for flush in self._flushes if not flush[1].done()]

    def release(self, batch: Batch) -> None:
        """Hold a batch no more, and give its bytes back."""
        del self.batches[batch]
        self._budget.give_back(batch.size)

    def replace(self, batch: Batch, halves: tuple[Batch, Batch]) -> None:
        """Hold the halves of a batch in its place."""
        del self.batches[batch]
        for half in halves:
            self.batches[half] = None
        for waited_for, _ in self._flushes:
            if batch in waited_for:
                waited_for.discard(batch)
                waited_for.update(halves)


# A topic and its partitions: the batches of each that take events, or wait to be cut.


def _no_batch_takes(*_args: object) -> None:
    """Take the place of a builder's `append` while no batch takes records."""


class PartitionQueue:
    """Collect the events of one partition in batches: one is open, those before it are sealed.

    Only its own methods write its fields. What the accumulator does for every event is one call of
    `append` and one addition to the list `entries`; everything else is rare.
    """

    __slots__ = (
        "append",
        "claimed",
        "entries",
        "is_dated",
        "open",
        "owner",
        "partition",
        "sealed",
        "topic",
    )

    # adds a record to the open batch. It returns None if the record does not fit, no batch is open,
    # or the open one is paused
    append: Callable[..., Any]
    # how many events the claims before it have; with the length of `entries`, the offset of the
    # next record
    claimed: int
    # lists the events of the open batch's newest claim: add what its owner knows the event by for
    # each record that `append` took
    entries: list[Any]
    is_dated: bool  # whether the open batch bears timestamps that its senders gave
    owner: object  # that of the newest claim; None before the first

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: Batch | None = None
        self.sealed: deque[Batch] = deque()
        self._close()

    @property
    def has_batch(self) -> bool:
        """Whether it holds any events."""
        return bool(self.sealed) or self.open is not None

    @property
    def count(self) -> int:
        """The number of records in the open batch."""
        return self.claimed + len(self.entries)

    @property
    def open_bytes(self) -> int:
        """The size of the open batch; 0 without one."""
        if self.open is None:
            return 0
        assert self.open.builder is not None
        return self.open.builder.size() - HEADER_SIZE

    @property
    def is_paused(self) -> bool:
        """Whether the journal has all of the open batch, which the next event resumes."""
        return self.open is not None and self.append is _no_batch_takes

    def pause(self) -> None:
        """Have the next event call `resume` first."""
        self.append = _no_batch_takes

    def resume(self) -> None:
        """Add to the open batch again."""
        assert self.open is not None
        assert self.open.builder is not None
        self.append = self.open.builder.append

    def start(self, batch: Batch, builder: Builder) -> None:
        """Open another batch."""
        assert self.open is None
        batch.builder = builder
        self.open = batch
        self.append = builder.append

    def claim(self, owner: object) -> list[Any]:
        """Begin a claim, and return `entries`."""
        assert self.open is not None
        claim = claim_of(owner)
        self.open.claims.append(claim)
        self.claimed += len(self.entries)
        self.owner = owner
        self.entries = claim.entries  # type: ignore[assignment]  # a list until it is compacted
        return self.entries

    def mark_dated(self) -> None:
        """Take note that the newest record bears a timestamp that its sender gave."""
        if not self.is_dated:  # else an earlier record has marked the batch
            assert self.open is not None
            self.open.on_dating(DatingEvent.GIVEN)
            self.is_dated = True

    def seal(self) -> None:
        """Take no more records into the open batch."""
        if self.open is not None:
            self.open.count = self.count
            self.open.size = self.open_bytes
            self.sealed.append(self.open)
            self.open = None
            self._close()

    def _close(self) -> None:
        self.append = _no_batch_takes
        self.owner = None
        self.entries = []
        self.claimed = 0
        self.is_dated = False

    def cut_sealed(self) -> list[Batch]:
        """Take out the sealed batches."""
        batches = list(self.sealed)
        self.sealed.clear()
        return batches

    def cut(self) -> list[Batch]:
        """Take out all batches, the open one too; the next event opens another."""
        self.seal()
        return self.cut_sealed()

    def pop(self, accepted_until_s: float) -> Batch | None:
        """Take out the oldest batch if it was accepted until then, be it sealed or open."""
        if not self.sealed and self.open is not None:
            if self.open.accepted_at_s > accepted_until_s:
                return None
            self.seal()
        if self.sealed and self.sealed[0].accepted_at_s <= accepted_until_s:
            return self.sealed.popleft()
        return None


class OutdatedError(Exception):
    """An event would be refused by a limit or a partition count that brokers gave a while ago."""


class Known(enum.Enum):
    """How sure a topic's limit and partition count are."""

    NOW = enum.auto()
    """Brokers gave them a moment ago."""
    BEFORE = enum.auto()
    """They gave them a while ago, and may give others when they are asked."""
    UNANSWERED = enum.auto()
    """They were asked again, and did not answer."""


class Route:
    """A topic: its queues, and how events are spread over them."""

    __slots__ = (
        "_most_batch_bytes",
        "batch_bytes",
        "keys",
        "known",
        "max_batch_bytes",
        "partitions",
        "queues",
        "sticky",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        queues: list[PartitionQueue],
        *,
        partitions: int,
        max_batch_bytes: int,
        batch_bytes: int,
        random: float,
        topic_id: bytes | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.queues = queues
        self.partitions = partitions
        self.known = Known.BEFORE
        self._most_batch_bytes = batch_bytes
        self.limit(max_batch_bytes)
        self.keys = KeyPartitioner(partitions)
        self.sticky = StickyPartitioner(partitions, random)

    def limit(self, max_batch_bytes: int) -> None:
        """Let no batch be larger than the topic takes."""
        self.max_batch_bytes = max_batch_bytes
        self.batch_bytes = min(self._most_batch_bytes, max_batch_bytes)

    def refuse(self, why: str) -> NoReturn:
        """Refuse an event by the topic's limit or partition count.

        Raises:
            OutdatedError: Brokers have to be asked for these again before the event is refused.
            ValueError: It is refused.
        """
        match self.known:
            case Known.BEFORE:
                raise OutdatedError(why)
            case Known.UNANSWERED:
                raise ValueError(
                    f"{why}, as brokers said when they last answered. They do not answer now: "
                    "send it again later"
                )
            case Known.NOW:
                raise ValueError(why)

    def refuse_partition(self, partition: object, chosen_by: str = "") -> NoReturn:
        """Refuse an event for a partition that is not known; raises as `refuse` does.

        Partitions are only added, so others than numbers above the last never come to be.
        """
        why = (
            f"{chosen_by or 'partition'} {partition}: "
            f"topic {self.topic} has 0 to {self.partitions - 1}"
        )
        if isinstance(partition, int) and partition >= self.partitions:
            self.refuse(why)
        raise ValueError(why)

    def resize(self, partitions: int, random: float) -> None:
        """Spread events over so many partitions from now on; their queues must exist."""
        self.partitions = partitions
        self.keys = KeyPartitioner(partitions)
        self.sticky = StickyPartitioner(partitions, random)
