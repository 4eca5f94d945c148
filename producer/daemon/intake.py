"""Where the daemon's source puts its events: into the producer, or into the dead-letter file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.errors import BacklogQuotaError, DeadLettersFullError, StoppingError
from sequitur.producer._outcome import PossiblyPersisted
from sequitur.producer.journal.frames import SourcePosition

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, TypeVar

    from sequitur.producer._client import IdempotentProducer
    from sequitur.producer._outcome import Delivery, GivenUp, Ticket
    from sequitur.producer._record import Record
    from sequitur.producer.sources._dead_letter import DeadLetterFile

    T = TypeVar("T")

_LOG_STALL_AFTER_S: Final = 10.0
_MARKED: Final = b"\n"
"""Stands before the mark of the dead-letter file; no source's position has one."""

_log = Logger(__name__)


def position_and_mark(journaled: bytes | None) -> tuple[bytes | None, str | None]:
    """Return a source's own position, and the mark of the dead-letter file if it has one."""
    if journaled is None or _MARKED not in journaled:
        return journaled, None
    position, _, mark = journaled.rpartition(_MARKED)
    return position, mark.decode()


class ProducerIntake:
    """Takes the events of one source. An `Intake`."""

    def __init__(
        self,
        producer: IdempotentProducer,
        topic: str,
        source: str,
        dead_letters: DeadLetterFile,
        stopping: asyncio.Event,
        *,
        journals: bool = True,
    ) -> None:
        self.stopping = stopping
        self.journals = journals
        self._producer = producer
        self._topic = topic
        self._source = source
        self._dead_letters = dead_letters

    async def open(self) -> None:
        """Wait until there is a topic to give events to, and room."""
        await self.accept(())

    async def accept(self, records: Sequence[Record], position: bytes | None = None) -> Ticket:
        """Take events, all or none, in this order; see `Intake.accept`."""
        read_to = None if position is None else await self._position(position)
        return await self._unless_stopping(
            self._once_taken(lambda: self._producer.accept(self._topic, records, read_to))
        )

    async def accept_each(self, records: Sequence[Record]) -> Sequence[Delivery]:
        """`accept` without a position, for callers that need the outcome of each event."""
        return await self._unless_stopping(
            self._once_taken(lambda: self._producer.accept_each(self._topic, records))
        )

    async def note_position(self, position: bytes) -> None:
        """Journal a position without events, behind all that was accepted."""
        await self._producer.note_position(await self._position(position))

    def refuse(self, raw: bytes, where: str, reason: str) -> None:
        """Put what cannot be sent into the dead-letter file."""
        self._dead_letters.write(self._source, where, reason, raw)

    def keep_copy(self, raw: bytes, where: str, reason: str) -> bool:
        """Put an event that its client knows of into the dead-letter file, if it has room."""
        if self._dead_letters.is_half_full:
            return False
        try:
            self._dead_letters.write(self._source, where, reason, raw)
        except DeadLettersFullError:
            return False
        return True

    async def _position(self, position: bytes) -> SourcePosition:
        """Return the position, once all events that were refused before it are on disk."""
        mark = self._dead_letters.mark
        if self._dead_letters.owes_sync:
            await asyncio.to_thread(self._dead_letters.sync)
        return SourcePosition(self._source, position + _MARKED + mark.encode())

    async def _once_taken(self, accept: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Accept, and wait for as long as the topic takes no batches, or is over its backlog quota.

        It waits even if the policy is to raise, and beyond `delivery_timeout`: the events of a
        source have nowhere else to go, and the daemon can only tell `/readyz`.
        """
        while True:
            await self._producer.wait_for_topic(self._topic)
            try:
                return await accept()
            except BacklogQuotaError:
                await self._producer.wait_for_quota(self._topic)

    async def _unless_stopping(self, accepting: Coroutine[Any, Any, T]) -> T:
        """Wait for room, but not once the daemon stops."""
        task = asyncio.ensure_future(accepting)
        stop = asyncio.ensure_future(self.stopping.wait())
        stall_log = asyncio.get_running_loop().call_later(_LOG_STALL_AFTER_S, self._log_stall)
        try:
            await asyncio.sleep(0)  # with room there is nothing to wait for, stopping or not
            if not task.done():
                await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not task.done():
                raise
            # They were accepted just when the caller timed out: it has to be told.
        finally:
            stall_log.cancel()
            stop.cancel()
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise StoppingError("the daemon stops, and there was no room before") from None

    def _log_stall(self) -> None:
        counts = self._producer.statistics()
        _log.warning(
            "the source is paused: no events are accepted",
            topic=self._topic,
            reason=self._producer.blocked_reason(),
            buffered_bytes=counts.buffered_bytes,
            batches_in_flight=counts.batches_in_flight,
        )


class GivenUpEvents:
    """Puts events that the producer gives up into the dead-letter file."""

    def __init__(self, dead_letters: DeadLetterFile, source: str) -> None:
        self.possibly_persisted = 0
        self._dead_letters = dead_letters
        self._source = source

    def keep(self, events: Sequence[GivenUp]) -> None:
        """Return once the events are on disk: only then may the journal forget them."""
        for event in events:
            reason = event.outcome.reason
            if isinstance(event.outcome, PossiblyPersisted):
                self.possibly_persisted += 1
                reason = f"possibly persisted: {reason}"
            self._dead_letters.write_whole(
                self._source,
                _place_of(event),
                reason,
                event.value,
                key=event.key,
                headers=event.headers,
                timestamp_ms=event.timestamp_ms,
            )
        self._dead_letters.sync()
        _log.warning(
            "events given up: they are in the dead-letter file",
            events=len(events),
            reason=events[0].outcome.reason,
        )


def _place_of(event: GivenUp) -> str:
    if event.event_id is None:
        return f"on the way to topic {event.topic}"
    return f"event {event.event_id} on the way to topic {event.topic} partition {event.partition}"
