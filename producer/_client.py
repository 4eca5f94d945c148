"""The producer as its users see it.

    async with IdempotentProducer("127.0.0.1:9092") as producer:
        delivery = await producer.send("events", b"value", key=b"key")
        match await delivery:
            case Persisted(partition, offset): ...
            case NotPersisted(reason) | PossiblyPersisted(reason): ...

`send` is awaited twice, and the two waits are different things: the first for room in the buffer,
so that a fast source is held back; the second for the outcome. Between them more can be sent.

How the parts work together is told in `_core`.
"""

from __future__ import annotations

import asyncio
import secrets
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

from producer._chunks import Chunks
from producer._core import Core
from producer._errors import (
    BrokerError,
    ProducerClosedError,
    RetriableError,
    SendManyError,
)
from producer._journal import Journal
from producer._journal_codec import Identity as JournalIdentity
from producer._journal_codec import Renewal
from producer._journal_limits import JournalLimits
from producer._journal_state import NOTHING_RECOVERED
from producer._log import Logger
from producer._outcomes import NotPersisted
from producer._record import Record
from producer._routes import until_answered
from producer._settings import ProducerSettings
from producer._slot import Identity
from producer._statistics import NOTHING_COUNTED
from producer._ticket import Ticket
from producer._wire import Wire, close_within
from producer.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta
    from types import TracebackType

    from producer._batch import Header
    from producer._given_up import GivenUp, OnGivenUp
    from producer._journal_codec import Position
    from producer._lane import Route
    from producer._outcomes import Delivery, Outcome
    from producer._statistics import ProducerStatistics

_WIRE_CLOSE_S: Final = 1.0
_REACH_S: Final = 2.0

_log = Logger(__name__)


class IdempotentProducer:
    """Sends events to Kafka once and in order, per partition.

    Args:
        kafka: How to reach the cluster; a string is `bootstrap_servers`.
        settings: How events are sent.
        on_given_up: Called with events that are not, or not surely, in the log and that are tried
            no more, as those that a broker refused: whoever must not lose them keeps them
            elsewhere before it returns. If it raises, the producer ends, and the journal keeps
            them. Events that are only not answered yet at `close` are not among them.

    Not safe for several threads; any number of tasks of one event loop may send.
    """

    def __init__(
        self,
        kafka: KafkaSettings | str,
        settings: ProducerSettings | None = None,
        *,
        on_given_up: OnGivenUp | None = None,
    ) -> None:
        self._kafka = KafkaSettings(bootstrap_servers=kafka) if isinstance(kafka, str) else kafka
        self._settings = settings or ProducerSettings()
        self._on_given_up = on_given_up
        self._name = self._settings.name
        if self._settings.journaling == "none":
            # Nothing keeps the count of events over a restart, so neither may the name be kept.
            self._name = f"{self._settings.name}~{secrets.token_hex(4)}"
        self._journal: Journal | None = None
        self._former = NOTHING_RECOVERED
        self._random = Random()
        self._wire: Wire | None = None
        self._core: Core | None = None
        self._failure: Exception | None = None
        self._failed = asyncio.Event()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    @property
    def name(self) -> str:
        """The name in the ids of this producer's events."""
        return self._name

    async def start(self) -> None:
        """Take the journal over, reach the cluster, and go on where the last run ended.

        Tries for as long as `delivery_timeout`; with a journal that has an identity it does not
        wait for Kafka, and events are accepted at once. What the journal holds is sent in the
        background, before any new event of the same partition.

        Raises:
            RetriableError: No broker answered, and the journal has no identity yet.
            FatalError: We may not write to this cluster.
            JournalError: The journal is held by another process, damaged, another producer's, or
                cannot be written.
        """
        if self._closed or self._wire is not None:
            raise ProducerClosedError("a producer is started once")
        settings = self._settings
        # First, so that a bad certificate does not leave the journal locked.
        self._wire = Wire(
            self._kafka, client_id=self._name, request_timeout=settings.request_timeout
        )
        try:
            if settings.journal is not None and settings.journaling != "none":
                self._journal = await asyncio.to_thread(
                    Journal.open,
                    settings.journal,
                    producer=self._name,
                    limits=JournalLimits.within(settings.journal_limit),
                )
                self._former = self._journal.recovered
            identity = await self._become_somebody(self._wire)
        except BaseException:
            await close_within(self._wire, _WIRE_CLOSE_S)
            if self._journal is not None:
                await asyncio.to_thread(self._journal.close)
            raise
        self._core = Core(
            wire=self._wire,
            identity=identity,
            settings=settings,
            name=self._name,
            journal=self._journal,
            former=self._former,
            random=self._random,
            on_given_up=None if self._on_given_up is None else self._give_up,
            on_failure=self._on_failure,
        )
        _log.info(
            "producer started",
            name=self._name,
            producer_id=identity.producer_id,
            durability=settings.journaling,
            recovered=self._core.recovered_events,
        )

    async def _become_somebody(self, wire: Wire) -> Identity:
        """The identity to go on with: the journal's, or a new one, which it then has."""
        former = self._former.identity
        if former is not None:
            try:
                await asyncio.wait_for(wire.start(), _REACH_S)
            except (RetriableError, TimeoutError) as error:
                _log.warning("no broker answers yet; the journal takes events", reason=str(error))
            return Identity(former.producer_id, former.epoch)

        async def ask() -> Identity:
            await wire.start()
            return await wire.new_producer_id()

        identity = await until_answered(ask, self._settings, self._random)
        if self._journal is not None:
            journaled = JournalIdentity(identity.producer_id, identity.epoch)
            self._journal.append([Renewal(journaled)])
            await asyncio.to_thread(self._journal.sync)
        return identity

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
        core = self._accepting()
        accumulator = core.accumulator
        route = accumulator.routes.get(topic)
        if route is None or not accumulator.room.is_free:
            ready = await self._ready(core, topic)
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
        core = self._accepting()
        ticket = Ticket(asyncio.get_running_loop())
        chunks = Chunks(events)
        try:
            for chunk in chunks:
                await self._send_chunk(core, topic, chunk, ticket)
            if chunks.error is not None:
                raise SendManyError(ticket) from chunks.error
        finally:
            ticket.close(core.keeper())
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
            BrokerError: There is no such topic, or no room within `delivery_timeout`; nothing was
                accepted.
        """
        core = self._accepting()
        ticket = Ticket(asyncio.get_running_loop())
        route = await self._route_with_room(core, topic)
        core.accumulator.add_many(route, records, ticket, whole=True)
        if position is not None:
            core.rounds.note(position)
        ticket.close(core.keeper())
        return ticket

    async def accept_each(self, topic: str, records: Sequence[Record]) -> list[Delivery]:
        """Accept events as `accept` does; one delivery each.

        Raises:
            ProducerClosedError: The producer is not started, or closed; nothing was accepted.
            BrokerError: As in `accept`.
        """
        core = self._accepting()
        if not records:
            return []
        route = await self._route_with_room(core, topic)
        return [core.accumulator.add(route, record) for record in records]

    async def note_position(self, position: Position) -> None:
        """Keep a position behind everything that was accepted before; returns when it is durable.

        Without a journal it returns when all that was accepted before has its outcome.

        Raises:
            ProducerClosedError: The producer is not started, or closed.
            JournalError: The journal failed.
        """
        core = self._accepting()
        if core.rounds.journals:
            core.rounds.note(position)
            await core.rounds.kept(core.rounds.next_cut)
        else:
            await core.accumulator.flushed()

    def recovered_position(self, source: str) -> bytes | None:
        """The last position of a source that the journal held at the start; None without one."""
        return self._former.positions.get(source)

    def recovered_topics(self) -> frozenset[str]:
        """The topics that the journal knew at the start: to them it takes events at once."""
        return frozenset(topic for topic, _ in self._former.partitions)

    async def failure(self) -> Exception:
        """Wait until the producer fails, as when its journal cannot be written: see why.

        It takes nothing any more then, and has told of each event.
        """
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    async def flush(self) -> None:
        """Wait until each event accepted before, in this run or a former, has its outcome."""
        if self._core is not None:
            await self._core.all_told()

    def statistics(self) -> ProducerStatistics:
        """The counts at this moment."""
        return NOTHING_COUNTED if self._core is None else self._core.statistics()

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
        if self._core is not None:
            await self._core.close(self._hurry, wire_s)
        if self._wire is not None:
            await close_within(self._wire, wire_s)

    def _accepting(self) -> Core:
        if self._failure is not None:
            raise ProducerClosedError(f"the producer failed: {self._failure}") from self._failure
        if self._closed or self._core is None:
            raise ProducerClosedError("the producer is closed" if self._closed else "not started")
        return self._core

    async def _send_chunk(
        self, core: Core, topic: str, chunk: list[Record], ticket: Ticket
    ) -> None:
        accumulator = core.accumulator
        while chunk:
            self._accepting()
            route = accumulator.routes.get(topic)
            if route is None or not accumulator.room.is_free:
                ready = await self._ready(core, topic)
                if isinstance(ready, NotPersisted):
                    indices = list(range(ticket.accepted, ticket.accepted + len(chunk)))
                    ticket.accepted += len(chunk)
                    ticket.settle(indices, ready)
                    return
                route = ready
            done = accumulator.add_many(route, chunk, ticket)
            chunk = chunk[done:]
            await asyncio.sleep(0)  # let the sender send

    async def _ready(self, core: Core, topic: str) -> Route | NotPersisted:
        """`_route_with_room`, or why there is none."""
        try:
            return await self._route_with_room(core, topic)
        except BrokerError as error:
            return NotPersisted(str(error))

    async def _route_with_room(self, core: Core, topic: str) -> Route:
        try:
            route = await core.route_with_room(topic)
        except BrokerError:
            self._accepting()  # that it was closed meanwhile says more
            raise
        self._accepting()
        return route

    def _give_up(self, events: Sequence[GivenUp]) -> None:
        """Hand events over to whoever keeps them; without that they may not be forgotten."""
        if self._on_given_up is not None:
            try:
                self._on_given_up(events)
            except Exception as error:
                self._on_failure(error)
                raise

    def _on_failure(self, error: Exception) -> None:
        """No event may wait for a sender that is gone, or a journal that cannot be written."""
        _log.error("the producer failed", exc_info=error)
        self._failure = error
        self._failed.set()
        self._closed = True
        if self._core is not None:
            self._core.fail(f"the producer failed ({error!r})")


def _settled(outcome: Outcome) -> Delivery:
    delivery: Delivery = asyncio.get_running_loop().create_future()
    delivery.set_result(outcome)
    return delivery
