"""`send_many`: accept events some thousands at a time, and count them under one ticket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import BacklogQuotaError, SendManyError, WrongRecordError
from sequitur.producer._outcomes import NotPersisted
from sequitur.producer.batching.chunks import Chunks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sequitur.producer._core import Core
    from sequitur.producer._record import Record
    from sequitur.producer._record_maker import RecordMaker
    from sequitur.producer._ticket import Ticket
    from sequitur.producer.batching.route import Route

    Ready = Callable[[], Awaitable[Route | NotPersisted]]

_LOOP_EVERY: Final = 64
"""After so many events of an async iterable that never waits, other tasks get their turn."""


class ManySender:
    """Send the events of one call."""

    def __init__(
        self, core: Core, topic: str, ticket: Ticket, maker: RecordMaker, ready: Ready
    ) -> None:
        self._core = core
        self._topic = topic
        self._ticket = ticket
        self._maker = maker
        self._ready = ready

    async def send(self, events: Iterable[Any] | AsyncIterable[Any] | Any) -> None:
        """Accept all events."""
        self._ticket.open(asyncio.get_running_loop())
        try:
            if isinstance(events, AsyncIterable):
                await self._send_as_they_come(events)
            else:
                await self._send_chunks(events)
        except asyncio.CancelledError as error:
            # The ticket is in its cause, also behind the TimeoutError of a `wait_for`.
            error.__cause__ = SendManyError(self._ticket)
            raise
        except BacklogQuotaError as error:
            raise SendManyError(self._ticket) from error
        finally:
            self._ticket.close(self._core.keeper())

    async def _send_as_they_come(self, events: AsyncIterable[Any]) -> None:
        number = 0
        source = aiter(events)
        while True:
            try:
                record = self._maker.record_of(await anext(source))
            except StopAsyncIteration:
                return
            except Exception as error:
                raise SendManyError(self._ticket) from error
            await self._send_chunk([record])
            number += 1
            if number % _LOOP_EVERY == 0:
                await asyncio.sleep(0)

    async def _send_chunks(self, events: Iterable[Any] | Any) -> None:
        chunks = Chunks(events, None if self._maker.is_plain else self._maker.record_of)
        for chunk in chunks:
            try:
                await self._send_chunk(chunk)
            except WrongRecordError as error:
                await self._send_chunk(chunk[: error.index])
                raise SendManyError(self._ticket) from error
        if chunks.error is not None:
            raise SendManyError(self._ticket) from chunks.error

    async def _send_chunk(self, chunk: list[Record]) -> None:
        accumulator = self._core.accumulator
        is_alone = len(chunk) == 1
        left = chunk
        placed = self._maker.is_plain
        while left:
            route = await self._ready()
            if isinstance(route, NotPersisted):
                self._refuse(len(left), route)
                return
            if not placed:
                placed = True
                left = self._placed(left, route)
            # One by one to a barred topic, which has to leave room to others.
            room = left[:1] if self._topic in self._core.barred.reasons else left
            done = accumulator.add_many(route, room, self._ticket)
            left = left[done:]
            if not is_alone:
                await asyncio.sleep(0)  # let the sender send

    def _placed(self, records: list[Record], route: Route) -> list[Record]:
        try:
            return [self._maker.placed(each, self._topic, route.partitions) for each in records]
        except Exception as error:
            raise SendManyError(self._ticket) from error

    def _refuse(self, count: int, outcome: NotPersisted) -> None:
        ticket = self._ticket
        indices = list(range(ticket.accepted, ticket.accepted + count))
        ticket.accepted += count
        ticket.complete(indices, outcome)
        ticket.watch(count, outcome, self._topic, self._core.unheard)
