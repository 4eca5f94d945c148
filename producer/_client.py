"""The producer as its users see it.

    async with IdempotentProducer("127.0.0.1:9092") as producer:
        delivery = await producer.send("events", b"value", key=b"key")
        match await delivery:
            case Persisted(partition, offset): ...
            case NotPersisted(reason) | PossiblyPersisted(reason): ...

`send` is awaited twice, and the two waits are different things: the first for room in the buffer,
so that a fast source is held back; the second for the outcome. Between them more can be sent.

How the parts work together: `_accumulator` takes events into batches, `_sender` sends them in
rounds, `_sequencer` numbers them, `_settlement` tells what became of them, `_wire` speaks Kafka's
protocol, `_durability` is the seam for what has to be on disk first.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from producer._accumulator import Accumulator
from producer._durability import NoJournal
from producer._errors import (
    BrokerError,
    ProducerClosedError,
    SendManyError,
)
from producer._outcomes import NotPersisted
from producer._record import Record, records_of_arrow
from producer._routes import Routes, until_answered
from producer._sender import Sender
from producer._settings import ProducerSettings
from producer._settlement import Settlement
from producer._statistics import Counters, ProducerStatistics
from producer._ticket import Ticket
from producer._wire import Wire, close_within
from producer.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import timedelta
    from types import TracebackType

    from producer._batch import Header
    from producer._journal_codec import Position
    from producer._lane import Lane, Route
    from producer._outcomes import Delivery, Outcome
    from producer._sequencer import Identity

_CHUNK_RECORDS: Final = 1_000
_WIRE_CLOSE_S: Final = 1.0

_log = structlog.get_logger(__name__)


class IdempotentProducer:
    """Sends events to Kafka once and in order, per partition.

    Args:
        kafka: How to reach the cluster; a string is `bootstrap_servers`.
        settings: How events are sent.

    Not safe for several threads; any number of tasks of one event loop may send.
    """

    def __init__(
        self, kafka: KafkaSettings | str, settings: ProducerSettings | None = None
    ) -> None:
        self._kafka = KafkaSettings(bootstrap_servers=kafka) if isinstance(kafka, str) else kafka
        self._settings = settings or ProducerSettings()
        # Nothing keeps the count of events over a restart, so neither may the name be kept.
        self._name = f"{self._settings.name}~{secrets.token_hex(4)}"
        self._random = Random()
        self._counters = Counters()
        self._wire: Wire | None = None
        self._accumulator: Accumulator | None = None
        self._settlement: Settlement | None = None
        self._sender: Sender | None = None
        self._running: asyncio.Task[None] | None = None
        self._routes: Routes | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    @property
    def name(self) -> str:
        """The name in the ids of this producer's events."""
        return self._name

    async def start(self) -> None:
        """Reach the cluster and become somebody there.

        Tries for as long as `delivery_timeout`.

        Raises:
            RetriableError: No broker answered.
            FatalError: We may not write to this cluster.
        """
        if self._closed or self._running is not None:
            raise ProducerClosedError("a producer is started once")
        loop = asyncio.get_running_loop()
        settings = self._settings
        self._wire = Wire(
            self._kafka, client_id=self._name, request_timeout=settings.request_timeout
        )
        try:
            identity = await until_answered(self._become_somebody, settings, self._random)
        except BaseException:
            await close_within(self._wire, _WIRE_CLOSE_S)
            raise
        self._accumulator = Accumulator(
            settings,
            producer_name=self._name,
            next_event=0,
            loop=loop,
            random=self._random,
            on_batch=self._poke,
        )
        journal = NoJournal()
        self._settlement = Settlement(self._accumulator, self._counters, journal)
        self._sender = Sender(
            wire=self._wire,
            accumulator=self._accumulator,
            settlement=self._settlement,
            settings=settings,
            identity=identity,
            counters=self._counters,
            random=self._random,
            journal=journal,
        )
        self._routes = Routes(self._wire, self._sender, self._accumulator, settings, self._random)
        self._running = loop.create_task(self._sender.run())
        self._running.add_done_callback(self._on_sender_end)
        _log.info("producer started", name=self._name, producer_id=identity.producer_id)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def send(  # noqa: PLR0917 - the order that Kafka's users know
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Accept one event; waits for room while the buffer is full.

        Args:
            topic: Where it goes.
            value: Its payload; None is a tombstone.
            key: Chooses the partition, as in Java.
            headers: Names and values.
            partition: The partition, if it is not to be chosen.
            timestamp_ms: See `Record`; leave it.

        Returns:
            Its delivery, to be awaited for its outcome, which comes within `delivery_timeout`. An
            event that cannot be sent (too large, no such topic) has an outcome, too: it raises
            nothing.

        Raises:
            ProducerClosedError: The producer is not started, or closed. The event is not accepted.
        """
        accumulator = self._accepting()
        route = accumulator.routes.get(topic)
        if route is None or not accumulator.has_room:
            ready = await self._ready(accumulator, topic)
            if isinstance(ready, NotPersisted):
                return _settled(ready)
            route = ready
        return accumulator.add(route, Record(value, key, headers, partition, timestamp_ms))

    async def send_many(self, topic: str, events: Iterable[Record | bytes] | Any) -> Ticket:
        """Accept many events; waits for room whenever the buffer is full.

        Args:
            topic: Where they go.
            events: Records, or plain values; or an Arrow table or record batch with the columns
                `value` and, as wanted, `key`, `headers`, `partition`, `timestamp_ms`.

        Returns:
            A ticket, to be awaited for how many were persisted, and which were not.

        Raises:
            ProducerClosedError: The producer is not started, or closed in between.
            SendManyError: The iterable raised; it has the ticket of what came before.
        """
        accumulator = self._accepting()
        ticket = Ticket(asyncio.get_running_loop())
        records = _records(events)
        try:
            while True:
                try:
                    chunk = _chunk(records)
                except Exception as error:
                    raise SendManyError(ticket) from error
                if not chunk:
                    break
                await self._send_chunk(accumulator, topic, chunk, ticket)
        finally:
            ticket.close()
        return ticket

    async def accept(
        self, topic: str, records: Sequence[Record], position: Position | None = None
    ) -> Ticket:
        """Accept events, all or none of them, in one step; waits for room before it.

        A caller that is cancelled while it waits has given nothing away.

        Args:
            topic: Where they go.
            records: The events. What is no record, or too large, is refused alone, as in `send`.
            position: How far its source was read with these events. It is in the journal if and
                only if all of them are, and all that was accepted before.

        Returns:
            A ticket; its `journaled` tells when events and position outlive this process.

        Raises:
            ProducerClosedError: The producer is not started, or closed; nothing was accepted.
        """
        del position  # there is nothing yet to keep it in
        accumulator = self._accepting()
        ticket = Ticket(asyncio.get_running_loop())
        ready = await self._ready(accumulator, topic)
        if isinstance(ready, NotPersisted):
            ticket.accepted = len(records)
            ticket.settle(list(range(len(records))), ready)
        else:
            accumulator.add_many(ready, records, ticket, whole=True)
        ticket.close()
        return ticket

    async def accept_each(self, topic: str, records: Sequence[Record]) -> list[Delivery]:
        """Accept events as `accept` does; one delivery each.

        Raises:
            ProducerClosedError: The producer is not started, or closed; nothing was accepted.
        """
        accumulator = self._accepting()
        ready = await self._ready(accumulator, topic)
        if isinstance(ready, NotPersisted):
            return [_settled(ready) for _ in records]
        return [accumulator.add(ready, record) for record in records]

    async def note_position(self, position: Position) -> None:
        """Keep a position behind everything that was accepted before; returns when it is durable.

        Without a journal it returns when all that was accepted before has its outcome.

        Raises:
            ProducerClosedError: The producer is not started, or closed.
            JournalError: The journal failed.
        """
        del position
        await self._accepting().flushed()

    def recovered_position(self, source: str) -> bytes | None:
        """The last position of a source that the journal held at the start; None without one."""
        del source
        return None

    async def flush(self) -> None:
        """Wait until each event accepted before has its outcome."""
        if self._accumulator is not None:
            await self._accumulator.flushed()

    def statistics(self) -> ProducerStatistics:
        """The counts at this moment."""
        counters, accumulator = self._counters, self._accumulator
        lanes = list(self._lanes())
        return ProducerStatistics(
            accepted=0 if accumulator is None else accumulator.next_event,
            persisted=counters.persisted,
            not_persisted=counters.not_persisted,
            possibly_persisted=counters.possibly_persisted,
            buffered_bytes=0 if accumulator is None else accumulator.buffered,
            batches_in_flight=sum(len(lane.sequencer.slots) for lane in lanes),
            batches_sent=counters.batches_sent,
            batches_retried=counters.batches_retried,
            bytes_sent=counters.bytes_sent,
            batches_split=counters.batches_split,
            renewals=counters.renewals,
            requests=counters.requests,
        )

    async def close(self, timeout: timedelta | None = None) -> None:  # noqa: ASYNC109 - the promise
        """Send what was accepted, tell every outcome, and end.

        Args:
            timeout: When to return at the latest, whatever Kafka does; `close_timeout` by default.
                What has no outcome by then gets one. A second call with less time hurries the
                first.
        """
        limit_s = (timeout or self._settings.close_timeout).total_seconds()
        wire_s = min(_WIRE_CLOSE_S, limit_s / 5)
        loop = asyncio.get_running_loop()
        if self._closing is None:
            self._closed = True
            self._closing = loop.create_task(self._close(wire_s))
        hurrying = loop.call_later(limit_s - wire_s, self._hurry.set)
        try:
            # Shielded: what was begun is ended, also when the one who waits is cancelled.
            await asyncio.shield(self._closing)
        finally:
            if self._closing.done():
                hurrying.cancel()

    async def _close(self, wire_s: float) -> None:
        if self._accumulator is not None:
            self._accumulator.turn_away()
            hurry = asyncio.ensure_future(self._hurry.wait())
            await asyncio.wait(
                (self._accumulator.flushed(), hurry), return_when=asyncio.FIRST_COMPLETED
            )
            hurry.cancel()
        if self._routes is not None:
            self._routes.stop()
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running
        self._abandon("the producer was closed")
        if self._wire is not None:
            await close_within(self._wire, wire_s)

    def _accepting(self) -> Accumulator:
        if self._closed or self._accumulator is None:
            raise ProducerClosedError("the producer is closed" if self._closed else "not started")
        return self._accumulator

    async def _send_chunk(
        self, accumulator: Accumulator, topic: str, chunk: list[Record], ticket: Ticket
    ) -> None:
        while chunk:
            self._accepting()
            route = accumulator.routes.get(topic)
            if route is None or not accumulator.has_room:
                ready = await self._ready(accumulator, topic)
                if isinstance(ready, NotPersisted):
                    indices = list(range(ticket.accepted, ticket.accepted + len(chunk)))
                    ticket.accepted += len(chunk)
                    ticket.settle(indices, ready)
                    return
                route = ready
            done = accumulator.add_many(route, chunk, ticket)
            chunk = chunk[done:]
            await asyncio.sleep(0)  # let the sender send

    async def _ready(self, accumulator: Accumulator, topic: str) -> Route | NotPersisted:
        """Wait for the topic's route, and for room."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.delivery_timeout.total_seconds()
        route = accumulator.routes.get(topic)
        if route is None:
            assert self._routes is not None
            try:
                route = await self._routes.open(topic)
            except BrokerError as error:
                return NotPersisted(str(error))
        if not accumulator.has_room and not await accumulator.wait_for_room(deadline_s):
            self._accepting()
            return NotPersisted("no room in the buffer within delivery_timeout")
        self._accepting()
        return route

    async def _become_somebody(self) -> Identity:
        assert self._wire is not None
        await self._wire.start()
        return await self._wire.new_producer_id()

    def _poke(self, lane: Lane) -> None:
        if self._sender is not None:
            self._sender.poke(lane)

    def _lanes(self) -> Iterator[Lane]:
        if self._accumulator is not None:
            for route in self._accumulator.routes.values():
                yield from route.lanes

    def _abandon(self, reason: str) -> None:
        if self._settlement is not None:
            for lane in self._lanes():
                self._settlement.abandon(lane, reason)

    def _on_sender_end(self, running: asyncio.Task[None]) -> None:
        """No event may wait for a sender that is gone, should there ever be a fault in it."""
        if running.cancelled() or running.exception() is None:
            return
        _log.error("the sender failed", exc_info=running.exception())
        self._closed = True
        if self._accumulator is not None:
            self._accumulator.turn_away()
        self._abandon(f"the sender failed ({running.exception()!r})")


def _settled(outcome: Outcome) -> Delivery:
    delivery: Delivery = asyncio.get_running_loop().create_future()
    delivery.set_result(outcome)
    return delivery


def _records(events: Iterable[Record | bytes] | Any) -> Iterator[Record | bytes]:
    if hasattr(events, "schema") and hasattr(events, "column"):
        return records_of_arrow(events)
    return iter(events)


def _chunk(events: Iterator[Record | bytes]) -> list[Record]:
    chunk = list(islice(events, _CHUNK_RECORDS))
    if set(map(type, chunk)) == {Record}:
        return chunk  # type: ignore[return-value]  # just checked
    return [event if isinstance(event, Record) else Record(event) for event in chunk]
