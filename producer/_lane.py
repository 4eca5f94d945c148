"""Where events wait for one partition: batches, the lane that holds them, the route over lanes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from producer._batch import (
    HEADER_SIZE,
    NO_STAMP,
    Builder,
    Record,
    Stamp,
    count_of,
    halved,
    records_of,
    seal,
    stamped,
)
from producer._event_id import parse_event_id
from producer._partitioner import KeyPartitioner, StickyPartitioner
from producer._ticket import Claim, DeliveryClaim, Ticket, TicketClaim

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer._sequencer import Sequencer
    from producer._settings import Compression


@dataclass(slots=True, eq=False)
class Batch:
    """Events that go to one partition together.

    Attributes:
        topic: Their topic.
        partition: Their partition.
        accepted_at_s: When the first of them was accepted, on the event loop's clock.
        first_event: The event number of the first of them.
        last_event: No event of this partition that has a number up to this is in a later batch.
        count: How many they are.
        size: The bytes they take, uncompressed.
        claims: Who wants to hear of them, in their order.
        builder: The batch until it is encoded.
        data: The batch once it is encoded, under `stamp`.
        stamp: The numbers that `data` bears.
        journaled: The numbers under which the journal holds it, or is about to.
        told: Whether the outcomes were told, though the batch may still be on its way.
        given_up: Whether it was dropped: it will not be sent any more.
        odd_answers: How many answers it got that may be its own fault.
    """

    topic: str
    partition: int
    accepted_at_s: float
    first_event: int
    last_event: int = 0
    count: int = 0
    size: int = 0
    claims: list[Claim] = field(default_factory=list)
    builder: Builder | None = None
    data: bytes = b""
    stamp: Stamp = NO_STAMP
    journaled: Stamp | None = None
    told: bool = False
    given_up: bool = False
    odd_answers: int = 0

    def encode(self, compression: Compression, stamp: Stamp) -> bytes:
        """The batch's bytes under these numbers; but for the numbers they never change."""
        if self.builder is not None:
            self.data = seal(self.builder, compression, stamp)
            self.builder = None
        elif self.stamp != stamp:
            self.data = stamped(self.data, stamp)
        self.stamp = stamp
        return self.data

    def first_id(self) -> bytes:
        """The id of its first event. It is in the log as a whole or not at all."""
        return _event_id(records_of(self.data)[0])

    def oldest_timestamp_ms(self) -> int:
        """The oldest timestamp of its records."""
        return min(record.timestamp_ms for record in records_of(self.data))

    def halves(self, compression: Compression) -> tuple[Batch, Batch]:
        """The batch as two, for a broker that refused it as too large."""
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
                data=data,
                told=self.told,
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


def _nothing_open(*_args: object) -> None:
    """Takes the place of a builder's `append` while no batch is open."""


@dataclass(slots=True, eq=False)
class Lane:
    """What waits for one partition.

    Attributes:
        topic: Its topic.
        partition: Its number.
        sequencer: What is numbered, and not settled.
        append: Adds a record to the open batch; None when it does not fit, or none is open.
        count: Records in the open batch.
        owner: The ticket that the newest claim of the open batch belongs to; None for deliveries.
        entries: That claim's list of indices or deliveries, to add to; None before the first.
        open: The batch being filled, if any.
        sealed: Full batches that wait to be cut, oldest first.
        failures: Failed attempts since the last success.
        retry_at_s: Not to be sent before, on the event loop's clock.
        trouble: What went wrong last, for the reasons of outcomes.
        active_at_s: When the broker last answered for it.
        recovering: Whether its sequencer is being renewed.
        replaced: Batches that were halved, and that the journal still holds whole.
    """

    topic: str
    partition: int
    sequencer: Sequencer[Batch]
    append: Callable[..., Any] = _nothing_open
    count: int = 0
    owner: Ticket | None = None
    entries: list[Any] | None = None
    open: Batch | None = None
    sealed: deque[Batch] = field(default_factory=deque)
    failures: int = 0
    retry_at_s: float = 0.0
    trouble: str = ""
    active_at_s: float = 0.0
    recovering: bool = False
    replaced: list[Batch] = field(default_factory=list)

    @property
    def has_batch(self) -> bool:
        """Whether anything waits to be cut."""
        return bool(self.sealed) or self.open is not None

    def start(self, batch: Batch, builder: Builder) -> None:
        """Fill another batch from now on."""
        assert self.open is None
        batch.builder = builder
        self.open = batch
        self.append = builder.append
        self.count = 0
        self.owner = self.entries = None

    def claim(self, owner: Ticket | None) -> list[Any]:
        """The list to add indices of a ticket to, or deliveries of events sent one by one."""
        assert self.open is not None
        claim: Claim = DeliveryClaim() if owner is None else TicketClaim(owner)
        self.open.claims.append(claim)
        self.owner = owner
        self.entries = claim.entries
        return claim.entries

    def seal(self) -> None:
        """Take no more records into the open batch."""
        if self.open is not None:
            assert self.open.builder is not None
            self.open.count = self.count
            self.open.size = self.open.builder.size() - HEADER_SIZE
            self.sealed.append(self.open)
            self.open = None
            self.append = _nothing_open
            self.owner = self.entries = None

    def cut(self) -> list[Batch]:
        """All batches, the open one too; the next event opens another."""
        self.seal()
        batches = list(self.sealed)
        self.sealed.clear()
        return batches


def _event_id(record: Record) -> bytes:
    """The id that we gave a record: its last header."""
    _name, event_id = record.headers[-1]
    assert event_id is not None
    return event_id


class Route:
    """A topic: its lanes, and how events are spread over them.

    Args:
        topic: Its name.
        lanes: One a partition, in order. There may be more than the topic has partitions, for what
            a journal holds of partitions that are gone.
        partitions: How many partitions the topic has.
        max_batch_bytes: The largest batch that the topic takes.
        batch_bytes: How full a batch gets.
        random: Drawn from [0, 1).
    """

    __slots__ = (
        "batch_bytes",
        "keys",
        "lanes",
        "max_batch_bytes",
        "partitions",
        "sticky",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        lanes: list[Lane],
        *,
        partitions: int,
        max_batch_bytes: int,
        batch_bytes: int,
        random: float,
    ) -> None:
        self.topic = topic
        self.lanes = lanes
        self.partitions = partitions
        self.max_batch_bytes = max_batch_bytes
        self.batch_bytes = min(batch_bytes, max_batch_bytes)
        self.keys = KeyPartitioner(partitions)
        self.sticky = StickyPartitioner(partitions, random)
