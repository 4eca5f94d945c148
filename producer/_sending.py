"""The calls by which users give events to a producer: `send` and its kin.

Types are checked here, at the call: the outcome of an accepted event is a value, which code written
for another client may ignore.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import (
    BacklogQuotaError,
    BrokerError,
    BufferFullError,
    SendManyError,
    WrongRecordError,
)
from sequitur.kafka.partition import check_topic_name
from sequitur.producer._outcome import Delivery, NotPersisted, Ticket
from sequitur.producer._record import Record, records_of_arrow
from sequitur.producer.batching.route import OutdatedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from sequitur.kafka.record_batch import Header
    from sequitur.producer._outcome import OnDelivery, Persisted
    from sequitur.producer._record import RecordMaker
    from sequitur.producer._running import RunningProducer
    from sequitur.producer.batching.route import Route

    Ready = Callable[[], Awaitable[Route | NotPersisted]]

CHUNK_RECORDS: Final = 4_000
"""So many are laid out in a few milliseconds, during which the loop does nothing else."""
_LOOP_EVERY: Final = 64
"""After so many events of an async iterable that never waits, other tasks get their turn."""


class Sending(ABC):
    """The part of `IdempotentProducer` that accepts events."""

    _maker: RecordMaker

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Sequence[Header] | None = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Accept one event. Wait for room while the buffer is full.

        With `backlog_quota` it also waits while the topic is over its quota and the policy is
        `producer_request_hold`, up to `delivery_timeout`. Cancelled meanwhile, it accepts nothing.

        Args:
            topic: Where it goes.
            value: Its payload, bytes or what `value_serializer` takes; None is a tombstone. Of a
                bytearray or memoryview, also as key or in headers, a copy is taken.
            key: Chooses the partition, as in Java; bytes or what `key_serializer` takes.
            headers: Names and values.
            partition: The partition. None: it is chosen by the key.
            timestamp_ms: See `Record`; usually left out.

        Returns:
            Its delivery, to be awaited for its outcome, which comes within `delivery_timeout`. An
            event that cannot be sent (too large, no such topic) has an outcome, too: it raises
            nothing, unless `result_or_raise` of the delivery is awaited.

        Raises:
            ProducerClosedError: The producer is not started, or closed. The event is not accepted.
            WrongThreadError: The producer was started in another event loop; likewise.
            BacklogQuotaError: The topic is over its backlog quota; likewise.
            TypeError: An argument is of a wrong type; likewise.
            ValueError: No topic can have this name; likewise.
        """
        running = self._accepting_for(topic)
        record = self._maker.record(value, key, headers, partition, timestamp_ms)
        route = running.free_route(topic)
        if route is None:
            ready = await self._ready(running, topic)
            if isinstance(ready, NotPersisted):
                return _completed(running, topic, ready)
            route = ready
        if self._maker.is_plain:
            try:
                return running.accumulator.add(route, record)
            except OutdatedError:
                pass  # `accepted` asks brokers, then adds

        def add() -> Delivery:
            return running.accumulator.add(route, self._maker.placed(record, route))

        return await running.accepted(route, add)

    def send_nowait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Sequence[Header] | None = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Accept one event without waiting, or raise `BufferFullError`.

            try:
                producer.send_nowait("events", b"value")
            except BufferFullError:
                await producer.send("events", b"value")

        Between many of them the event loop needs its turn, or nothing is sent: `send` gives it one
        while the buffer is full.

        Args:
            topic: Where it goes.
            value: See `send`.
            key: See `send`.
            headers: See `send`.
            partition: See `send`.
            timestamp_ms: See `send`.
            on_delivery: Called in the event loop with the outcome. Without it an event that ends
                badly goes to the producer's `on_failure`.

        Raises:
            BufferFullError: `send` would wait: for room, for the topic, for its backlog quota, or
                for brokers that are asked again whether the event is too large, or its partition
                there. The event is not accepted.
            WrongThreadError: As in `send`.
            ProducerClosedError: As in `send`.
            BacklogQuotaError: As in `send`.
            TypeError: As in `send`.
            ValueError: As in `send`.
        """
        running = self._accepting()
        record = self._maker.record(value, key, headers, partition, timestamp_ms)
        route = running.free_route(topic)
        if route is None:
            check_topic_name(topic)
            raise running.full_error(topic)
        try:
            if not self._maker.is_plain:
                record = self._maker.placed(record, route)
            if on_delivery is None:
                running.accumulator.add_unawaited(route, record)
            else:
                running.accumulator.add_called(route, record, on_delivery)
        except OutdatedError as error:
            running.look_again(route)
            raise BufferFullError(topic, f"brokers are asked again, since {error}") from None

    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Sequence[Header] | None = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Persisted:
        """Send one event, wait until it is in the log, and return its partition and offset.

        Raises:
            NotPersistedError: It is not in the log, and never will be.
            PossiblyPersistedError: It is unknown whether it is.
            ProducerClosedError: As in `send`.
            BacklogQuotaError: As in `send`.
            TypeError: As in `send`.
            ValueError: As in `send`.
        """
        delivery = await self.send(
            topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return await delivery.result_or_raise()

    async def send_many(
        self,
        topic: str,
        events: Iterable[Record | Any] | AsyncIterable[Record | Any] | Any,
        *,
        ticket: Ticket | None = None,
    ) -> Ticket:
        """Accept many events. Wait for room whenever the buffer is full.

        Args:
            topic: Where they go.
            events: Records, or plain values, from an iterable or an async iterable; or an Arrow
                table or record batch with the columns `value` and, as wanted, `key`, `headers`,
                `partition`, `timestamp_ms`.
            ticket: Counts them, a new one by default. A caller that may be cancelled keeps its own.

        Returns:
            The ticket, to be awaited for how many were persisted, and which were not.

        Raises:
            ProducerClosedError: The producer is not started, or closed in between.
            SendManyError: The iterable or a serializer raised, an event is of a wrong type
                (its cause is a `TypeError`), or the topic is over its backlog quota (a
                `BacklogQuotaError`); it has the ticket of what came before. When this call is
                cancelled, it is the cause of the `CancelledError`.
            ValueError: No topic can have this name; nothing was accepted.
        """
        running = self._accepting_for(topic)
        ticket = Ticket() if ticket is None else ticket

        async def ready() -> Route | NotPersisted:
            self._accepting()
            return await self._ready(running, topic)

        await ManySender(running, topic, ticket, self._maker, ready).send(events)
        return ticket

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic. Ask the cluster if they are unknown.

        Raises:
            ProducerClosedError: The producer is not started, or closed.
            BrokerError: It is not known within `delivery_timeout`.
            ValueError: No topic can have this name.
        """
        return set(range(await self._accepting_for(topic).partitions(topic)))

    def _accepting_for(self, topic: str) -> RunningProducer:
        """Return the started parts of the producer, for a topic that there may be."""
        running = self._accepting()
        if not isinstance(topic, str) or topic not in running.accumulator.routes:
            check_topic_name(topic)
        return running

    async def _ready(self, running: RunningProducer, topic: str) -> Route | NotPersisted:
        """Return the topic's route once there is room, or why there is none."""
        route = running.free_route(topic)
        if route is not None:
            return route
        try:
            return await self._route_with_room(running, topic)
        except BacklogQuotaError:
            raise
        except BrokerError as error:
            return NotPersisted(str(error))

    async def _route_with_room(
        self, running: RunningProducer, topic: str, *, for_events: bool = True
    ) -> Route:
        try:
            route = await running.route_with_room(topic, for_events=for_events)
        except BrokerError:
            self._accepting()  # if it was closed meanwhile, that is the better reason
            raise
        self._accepting()
        return route

    @abstractmethod
    def _accepting(self) -> RunningProducer:
        """Return the started parts of the producer."""


def _completed(running: RunningProducer, topic: str, outcome: NotPersisted) -> Delivery:
    delivery = Delivery(loop=asyncio.get_running_loop())
    delivery.keeper = None
    delivery.set_result(outcome)
    running.unheard.watch(delivery, topic)
    return delivery


class ManySender:
    """Send the events of one call."""

    def __init__(
        self, running: RunningProducer, topic: str, ticket: Ticket, maker: RecordMaker, ready: Ready
    ) -> None:
        self._running = running
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
            self._ticket.close(self._running.keeper())

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
        accumulator = self._running.accumulator
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
                left = await self._running.accepted(route, partial(self._placed, left, route))
            # One by one to a barred topic, which has to leave room to others.
            room = left[:1] if self._topic in self._running.barred.reasons else left
            add = partial(accumulator.add_many, route, room, self._ticket)
            done = await self._running.accepted(route, add)
            left = left[done:]
            if not is_alone:
                await asyncio.sleep(0)  # let the sender send

    def _placed(self, records: list[Record], route: Route) -> list[Record]:
        try:
            return [self._maker.placed(each, route) for each in records]
        except OutdatedError:
            raise
        except Exception as error:
            raise SendManyError(self._ticket) from error

    def _refuse(self, count: int, outcome: NotPersisted) -> None:
        ticket = self._ticket
        indices = list(range(ticket.accepted, ticket.accepted + count))
        ticket.accepted += count
        ticket.complete(indices, outcome)
        ticket.watch(count, outcome, self._topic, self._running.unheard)


class Chunks:
    """Cut the events of `send_many` into lists of records."""

    def __init__(
        self,
        events: Iterable[Record | bytes] | Any,
        record_of: Callable[[Any], Record] | None = None,
    ) -> None:
        is_table = hasattr(events, "schema") and hasattr(events, "column")
        self._events: Iterator[Any] = records_of_arrow(events) if is_table else iter(events)
        if record_of is not None:
            self._events = map(record_of, self._events)
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[list[Record]]:
        """Give chunks until there are no more events or their iterable raises."""
        while self.error is None:
            chunk: list[Any] = []
            try:
                # The events before an error stay in the list.
                chunk.extend(islice(self._events, CHUNK_RECORDS))
            except Exception as error:  # noqa: BLE001 - `send_many` raises it
                self.error = error
            if not chunk:
                return
            yield _all_records(chunk)


def _all_records(events: list[Record | bytes]) -> list[Record]:
    if set(map(type, events)) == {Record}:
        return events  # type: ignore[return-value]  # just checked
    return [event if isinstance(event, Record) else Record(event) for event in events]
