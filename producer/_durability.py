"""What must be on disk before a batch leaves: the seam between the sender and the journal.

The sender hands each round over before it writes it to the brokers, and the settlement says what
need not be kept any longer. `NoJournal` is the durability `none`: nothing survives a crash, so what
was on its way then is lost, and the producer's name is another one each time it starts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from producer._lane import Batch
    from producer._outcomes import NotPersisted, PossiblyPersisted


class Journal(Protocol):
    """Keeps what was sent until its fate is known."""

    async def write(self, batches: list[tuple[Batch, bytes]]) -> None:
        """Return once the batches, with the bytes and stamps they leave with, survive a crash."""

    def persisted(self, batch: Batch, base_offset: int | None) -> None:
        """The batch is in the log; it need not be sent again."""

    def failed(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        """The batch was given up; it must not be sent again."""


class NoJournal:
    """Nothing survives a crash."""

    async def write(self, batches: list[tuple[Batch, bytes]]) -> None:
        """Let the event loop do something else between two rounds."""
        del batches
        await asyncio.sleep(0)

    def persisted(self, batch: Batch, base_offset: int | None) -> None:
        """Keep no account."""

    def failed(self, batch: Batch, outcome: NotPersisted | PossiblyPersisted) -> None:
        """Keep no account."""
