"""Where events wait for one partition: the lane that holds its batches."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequitur.producer._ticket import Claim, DeliveryClaim, Ticket, TicketClaim
from sequitur.producer.kafka.record_batch import NO_STAMP, Builder, Stamp
from sequitur.producer.kafka.record_format import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.sequencer import Sequencer


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
        waiting: Batches that were cut and have no numbers yet, oldest first.
        inherited: Those of them that a former life left, until it is known that they are not in the
            log; nothing gets numbers before.
        inherited_from: Where the numbering of the life that left them stood.
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
    waiting: deque[Batch] = field(default_factory=deque)
    inherited: list[Batch] = field(default_factory=list)
    inherited_from: Stamp = NO_STAMP
    failures: int = 0
    retry_at_s: float = 0.0
    trouble: str = ""
    active_at_s: float = 0.0
    recovering: bool = False
    replaced: list[Batch] = field(default_factory=list)

    @property
    def has_batch(self) -> bool:
        """Whether anything has no numbers."""
        return bool(self.sealed or self.waiting) or self.open is not None

    @property
    def is_paused(self) -> bool:
        """Whether the journal has all of the open batch, which grows with the next event."""
        return self.open is not None and self.append is _nothing_open

    def pause(self) -> None:
        """Let the next event come by way of `resume`."""
        self.append = _nothing_open

    def resume(self) -> None:
        """Add to the open batch again."""
        assert self.open is not None
        assert self.open.builder is not None
        self.append = self.open.builder.append

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
        entries: list[Any] = claim.entries  # type: ignore[assignment]  # until it is compacted
        self.entries = entries
        return entries

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
