"""Where the daemon's source puts its events: into the producer, and what is none beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from producer.sources import StoppingError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Sequence
    from typing import Any, TypeVar

    from producer._client import IdempotentProducer
    from producer._outcomes import Delivery
    from producer._record import Record
    from producer._ticket import Ticket, TicketResult
    from producer.sources import DeadLetterFile

    T = TypeVar("T")


class ProducerIntake:
    """Takes the events of one source. An `Intake`.

    Args:
        producer: Sends them; started.
        topic: Where they go.
        source: The source's name: key of its position, and its name in the dead-letter file.
        dead_letters: Takes what cannot be sent.
        stopping: Set when the daemon stops.
    """

    def __init__(
        self,
        producer: IdempotentProducer,
        topic: str,
        source: str,
        dead_letters: DeadLetterFile,
        stopping: asyncio.Event,
    ) -> None:
        self.stopping = stopping
        self._producer = producer
        self._topic = topic
        self._source = source
        self._dead_letters = dead_letters

    async def accept(self, records: Sequence[Record], position: bytes | None = None) -> AckedTicket:
        """Take events, all or none, in this order; see `Intake.accept`."""
        await self._keep_refused(position)
        ticket = await self._unless_stopping(self._producer.send_many(self._topic, records))
        return AckedTicket(ticket)

    async def accept_each(self, records: Sequence[Record]) -> Sequence[Delivery]:
        """`accept` without a position, for callers that need the outcome of each event."""
        return [
            await self._producer.send(self._topic, record.value, record.key) for record in records
        ]

    async def note_position(self, position: bytes) -> None:
        """Keep a position without events, behind all that was accepted."""
        await self._keep_refused(position)
        await self._producer.flush()

    def refuse(self, raw: bytes, where: str, reason: str) -> None:
        """Put what cannot be sent into the dead-letter file."""
        self._dead_letters.write(self._source, where, reason, raw)

    async def _keep_refused(self, position: bytes | None) -> None:
        """What was refused is on disk before a position behind it is."""
        if position is not None and self._dead_letters.owes_sync:
            await asyncio.to_thread(self._dead_letters.sync)

    async def _unless_stopping(self, accepting: Coroutine[Any, Any, T]) -> T:
        """Wait for room, but not once the daemon stops."""
        task = asyncio.ensure_future(accepting)
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.sleep(0)  # with room there is nothing to wait for, stopping or not
            if not task.done():
                await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
        if task.done():
            return task.result()
        try:
            return await task
        except asyncio.CancelledError:
            raise StoppingError("the daemon stops") from None


class AckedTicket:
    """Without a journal events are safe once Kafka has them."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    @property
    def journaled(self) -> Coroutine[Any, Any, object]:
        """Done when each event has its outcome."""
        return self._acked()

    def __await__(self) -> Generator[object, None, TicketResult]:
        """Wait until each event has its outcome."""
        return self._ticket.__await__()

    async def _acked(self) -> TicketResult:
        return await self._ticket
