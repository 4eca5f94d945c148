"""A batch: events that go to one partition together."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

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
from sequitur.producer.journal.frames import Waiting

if TYPE_CHECKING:
    from sequitur.kafka.record_format import Compression
    from sequitur.producer._claims import Claim


class InJournal(enum.Enum):
    """What the journal holds of a batch, or is about to hold: the next start would send it."""

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
    last_event: int = 0  # no later batch of this partition has an event with a number up to this
    count: int = 0  # how many events it has; 0 while it is open
    size: int = 0  # the bytes of memory it takes; 0 while it is open
    claims: list[Claim] = field(default_factory=list)  # they set the outcomes, in the events' order
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
    # what it is a half of, as long as the journal holds that one whole
    whole: Batch | None = None
    pieced: int = 0  # bytes of its records that the journal holds, while it grows there
    dating: Dating = Dating.OURS
    # the newest timestamp of its records as they were accepted; -1 if not known
    accepted_ms: int = -1
    # the newest timestamp of its records once it has numbers, or once its bytes have left memory;
    # -1 keeps those of its records
    last_ms: int = -1
    odd_answers: int = 0  # how many answers it got that may be its own fault

    def encode(self, compression: Compression, stamp: Stamp) -> bytes:
        """Return the batch's bytes under these numbers. Only the newest timestamp changes, too."""
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
        """Give its newest record this time; the other records keep their distance to it."""
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
        return self.life is Life.TOLD or self.life is Life.OVER

    def complete(self) -> None:
        self.life = Life.OVER if self.ended else Life.TOLD

    @property
    def ended(self) -> bool:
        """Whether it is not sent any more, and the journal is to forget it."""
        return self.life is Life.ENDED or self.life is Life.OVER

    def end(self) -> None:
        self.life = Life.OVER if self.completed else Life.ENDED

    @property
    def is_kept(self) -> bool:
        """Whether the journal may have anything of it: the next start would send it."""
        return self.in_journal is not InJournal.NOTHING

    @property
    def may_return(self) -> bool:
        """Whether the next start may send its events: the journal may have them."""
        return self.is_kept or self.whole is not None

    def write_numbers(self, stamp: Stamp) -> None:
        """Note that the round that is written gives the journal the batch under these numbers."""
        self.in_journal = InJournal.NUMBERED
        self.journaled = stamp

    def take_back(self, *, waiting: bool) -> None:
        """Undo what the journal had no space for.

        Args:
            waiting: Whether it is only the numbers. Else it is all but the pieces before.
        """
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
            first_part, second_part = claim.split(place)
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
    """Return the id of the first event of an encoded batch; a log has all of a batch or nothing."""
    return _event_id(records_of(data)[0])


def oldest_timestamp_ms(data: bytes) -> int:
    return min(record.timestamp_ms for record in records_of(data))


def _event_id(record: StoredRecord) -> bytes:
    """Return the event id of a record: its last header."""
    _name, event_id = record.headers[-1]
    assert event_id is not None
    return event_id
