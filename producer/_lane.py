"""Where events wait for one partition: batches, the lane that holds them, the route over lanes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from producer._batch import HEADER_SIZE, Builder, Stamp, count_of, halved, seal
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
        count: How many they are.
        size: The bytes they take, uncompressed.
        claims: Who wants to hear of them, in their order.
        builder: The batch while it is open.
        data: The batch once it is sealed, with no sequence.
        stamp: The stamp it was last sent under, if it was.
        told: Whether the outcomes were told, though the batch may still be on its way.
        odd_answers: How many answers it got that may be its own fault.
    """

    topic: str
    partition: int
    accepted_at_s: float
    first_event: int
    count: int = 0
    size: int = 0
    claims: list[Claim] = field(default_factory=list)
    builder: Builder | None = None
    data: bytes = b""
    stamp: Stamp | None = None
    told: bool = False
    odd_answers: int = 0

    def encode(self, compression: Compression) -> bytes:
        """The batch's bytes, which from now on are fixed."""
        if self.builder is not None:
            self.data = seal(self.builder, compression)
            self.builder = None
        return self.data

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
        first, second = (
            Batch(
                topic=self.topic,
                partition=self.partition,
                accepted_at_s=self.accepted_at_s,
                first_event=self.first_event,
                count=count_of(data),
                size=self.size // 2,
                claims=side,
                data=data,
                told=self.told,
            )
            for data, side in zip(parts, claims, strict=True)
        )
        first.size = self.size - second.size
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
        ripe: Whether the open batch has waited long enough.
        sealed: Full batches, oldest first.
        failures: Failed attempts since the last success.
        retry_at_s: Not to be sent before, on the event loop's clock.
        trouble: What went wrong last, for the reasons of outcomes.
        active_at_s: When the broker last answered for it.
        recovering: Whether its sequencer is being renewed.
    """

    topic: str
    partition: int
    sequencer: Sequencer[Batch]
    append: Callable[..., Any] = _nothing_open
    count: int = 0
    owner: Ticket | None = None
    entries: list[Any] | None = None
    open: Batch | None = None
    ripe: bool = False
    sealed: deque[Batch] = field(default_factory=deque)
    failures: int = 0
    retry_at_s: float = 0.0
    trouble: str = ""
    active_at_s: float = 0.0
    recovering: bool = False

    @property
    def has_batch(self) -> bool:
        """Whether a batch is full, or has waited long enough."""
        return bool(self.sealed) or (self.ripe and self.open is not None)

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
            self.ripe = False
            self.append = _nothing_open
            self.owner = self.entries = None

    def take(self) -> Batch:
        """The next batch to be sent."""
        assert self.has_batch
        if not self.sealed:
            self.seal()
        return self.sealed.popleft()


class Route:
    """A topic: its lanes, and how events are spread over them.

    Args:
        topic: Its name.
        lanes: One a partition, in order.
        max_batch_bytes: The largest batch that the topic takes.
        batch_bytes: How full a batch gets.
        random: Drawn from [0, 1).
    """

    __slots__ = ("batch_bytes", "keys", "lanes", "max_batch_bytes", "sticky", "topic")

    def __init__(
        self,
        topic: str,
        lanes: list[Lane],
        *,
        max_batch_bytes: int,
        batch_bytes: int,
        random: float,
    ) -> None:
        self.topic = topic
        self.lanes = lanes
        self.max_batch_bytes = max_batch_bytes
        self.batch_bytes = min(batch_bytes, max_batch_bytes)
        self.keys = KeyPartitioner(len(lanes))
        self.sticky = StickyPartitioner(len(lanes), random)
