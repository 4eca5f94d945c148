"""The producer as its users see it.

    async with IdempotentProducer("127.0.0.1:9092") as producer:
        delivery = await producer.send("events", b"value", key=b"key")
        match await delivery:
            case Persisted(partition, offset): ...
            case NotPersisted(reason) | PossiblyPersisted(reason): ...

To have an exception for an event that is not surely in the log:

        persisted = await producer.send_and_wait("events", b"value", key=b"key")

`send` is awaited twice, and the two waits are different things: the first for room in the buffer,
so that a fast source is slowed down; the second for the outcome. Between them more can be sent.

`_running` says how the parts work together.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, Self

from sequitur.base.log import Logger
from sequitur.base.process import StampClock
from sequitur.errors import NotAllPersistedError, ProducerClosedError, ProducerError
from sequitur.kafka.records import name_in_ids, name_of_a_life, new_generation
from sequitur.kafka.settings import KafkaSettings, settings_of
from sequitur.kafka.wire import Wire, close_within
from sequitur.producer._claims import ENDS_THE_PROGRAM
from sequitur.producer._home import Home
from sequitur.producer._opening import (
    JournalOpening,
    acquire_identity,
    unnamed_producer,
)
from sequitur.producer._outcome import Ticket
from sequitur.producer._record import RecordMaker, checked
from sequitur.producer._running import NOTHING_COUNTED, RunningProducer
from sequitur.producer._sending import Sending
from sequitur.producer._settings import ProducerSettings
from sequitur.producer.delivery.identities import Identities
from sequitur.producer.journal.frames import SourcePosition
from sequitur.producer.journal.state import NOTHING_RECOVERED
from sequitur.producer.quota import ControlReader, QuotaGate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta
    from types import TracebackType

    from sequitur.kafka.settings import TokenProvider
    from sequitur.producer._outcome import Delivery, GivenUp, OnGivenUp, OnSendFailure
    from sequitur.producer._record import Partitioner, Record, Serializer
    from sequitur.producer._running import ProducerStatistics
    from sequitur.producer.journal.journal import Journal

_WIRE_CLOSE_S: Final = 1.0

_log = Logger(__name__)


class IdempotentProducer(Sending):
    """Sends events to Kafka once and in order, per partition.

    ::

        from pathlib import Path

        settings = ProducerSettings(journal=Path("orders.journal"))
        async with IdempotentProducer("broker-1:9092", settings) as producer:
            delivery = await producer.send("orders", b"lamp", key=b"customer 1")
            persisted = await delivery.result_or_raise()

    Args:
        kafka: How to reach the cluster. One string or several are `bootstrap_servers`.
        settings: How events are sent.
        on_given_up: Called with events that are not, or not surely, in the log, and that the
            producer does not try again: a broker refused them, for example. Store elsewhere what
            must not be lost before it returns. If it raises, the producer ends, and the journal
            keeps the events. Events whose answer is only missing at `close` are not among them.
        on_failure: Called with failed events of `send_nowait` that have no `on_delivery`. It does
            not get events that `on_given_up` got or that the journal keeps. Without it, or if it
            raises, the producer counts the events and logs them every second by topic and reason,
            and `close` raises. The producer, or its next start, sends the events that the journal
            keeps. If an event of an earlier run fails for good, only `on_given_up` is called.
        key_serializer: Makes the bytes of each key. It is not called for None.
        value_serializer: Makes the bytes of each value. It is not called for None, which is a
            tombstone.
        partitioner: Chooses the partition of each event that names none, with the signature of
            aiokafka's: the key's bytes, all partitions, and those that have a leader. By default a
            key goes to the partition that Java's client chooses.
        token_provider: Returns the token for OAUTHBEARER at each login. By default the token file
            is read.

    Raises:
        SettingsError: The settings do not fit together, or name a file that cannot be read.

    Any number of tasks of the event loop that started it may send. Another loop or thread gets
    `WrongThreadError`.
    """

    def __init__(
        self,
        kafka: KafkaSettings | str | Iterable[str],
        settings: ProducerSettings | None = None,
        *,
        on_given_up: OnGivenUp | None = None,
        on_failure: OnSendFailure | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        token_provider: TokenProvider | None = None,
    ) -> None:
        self._token_provider = token_provider
        self._kafka = settings_of(kafka)
        self._settings = settings or ProducerSettings()
        self._on_given_up = on_given_up
        self._on_send_failure = on_failure
        journals = self._settings.journaling != "none"
        self._name = self._settings.name or unnamed_producer(
            self._settings.journal if journals else None
        )
        self._generation = ""
        if not journals:
            # Without a journal events are counted from 0 in each life, under a name of its own.
            self._name = name_of_a_life(self._name)
        else:
            self._generation = new_generation()
        self._opening = JournalOpening()
        self._journal: Journal | None = None
        self._former = NOTHING_RECOVERED
        self._random = Random()
        self._clock = StampClock()
        self._home: Home | None = None  # where it was started
        self._wire: Wire | None = None
        self._running: RunningProducer | None = None
        self._control: ControlReader | None = None
        self._failure: Exception | None = None
        self._failed = asyncio.Event()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._maker = RecordMaker(
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
            has_leader=self._has_leader,
        )

    @property
    def name(self) -> str:
        """The producer's name. Without a journal, `<name>~~<digits>` for this run."""
        return self._name

    @property
    def generation(self) -> str:
        """The generation in the ids of this producer's events. Empty without a journal."""
        return self._generation

    async def start(self) -> None:
        """Take over the journal, connect to the cluster, and resume where the last run ended.

        Tries for as long as `delivery_timeout`; with a journal that has an identity it does not
        wait for Kafka, and events are accepted at once. What the journal holds is sent in the
        background, before any new event of the same partition.

        Raises:
            RetriableError: No broker answered, and the journal has no identity yet.
            FatalError: The producer may not write to this cluster.
            JournalError: The journal is held by another process, damaged, another producer's, or
                cannot be written.
            ProducerClosedError: It was started before, or closed.
        """
        if self._closed or self._wire is not None:
            raise ProducerClosedError("a producer is started once")
        settings = self._settings
        self._home = Home()
        client_id = settings.client_id or self._name
        # First, so that a bad certificate does not leave the journal locked.
        self._wire = Wire(
            self._kafka,
            client_id=client_id,
            request_timeout=settings.request_timeout,
            token_provider=self._token_provider,
        )
        try:
            if settings.journal is not None and settings.journaling != "none":
                self._journal = await self._opening.open(
                    settings.journal, self._name, limit_bytes=settings.journal_limit
                )
                self._former = self._journal.recovered
            identities = Identities(
                self._wire,
                None if settings.journaling == "none" else self._name,
                self._former,
                accept_new_cluster=settings.accept_new_cluster,
            )
            await acquire_identity(
                identities, self._journal, self._former, settings, random=self._random
            )
            self._check_open()
            quota = QuotaGate() if settings.backlog_quota else None
            self._running = RunningProducer(
                wire=self._wire,
                clock=self._clock,
                identities=identities,
                settings=settings,
                name=name_in_ids(self._name, self._generation),
                journal=self._journal,
                former=self._former,
                random=self._random,
                quota=quota,
                on_given_up=None if self._on_given_up is None else self._give_up,
                on_send_failure=self._on_send_failure,
                on_failure=self._on_failure,
            )
            self._opening.take()
        except BaseException as error:
            self._opening.let_go()
            await close_within(self._wire, _WIRE_CLOSE_S)
            if self._journal is not None:  # else the thread that opens it has no end in sight
                await self._opening.closed()
            if isinstance(error, Exception):
                self._check_open()  # what has failed otherwise follows from that
            raise
        if quota is not None:
            self._control = ControlReader(
                self._kafka,
                quota,
                client_id=client_id,
                random=self._random,
                token_provider=self._token_provider,
            )
            self._control.start()
        _log.info(
            "producer started",
            name=self._name,
            producer_id=identities.current.producer_id,
            durability=settings.journaling,
            recovered=self._running.recovered_events,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ProducerClosedError("the producer was closed while it started")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except NotAllPersistedError:
            if error is None:  # else that one says more; these were logged
                raise

    async def accept(
        self, topic: str, records: Sequence[Record], position: SourcePosition | None = None
    ) -> Ticket:
        """Accept all events or none, in one step. Wait for room before that.

        If the caller is cancelled while it waits, no event was accepted.

        Args:
            topic: Where they go.
            records: The events; no serializer is applied. One that is too large is refused alone.
            position: How far its source was read with these events. It is in the journal if and
                only if all of them are, and all that was accepted before.

        Returns:
            A ticket; its `journaled` tells when events and position outlive this process.

        Raises:
            ProducerClosedError: The producer is not started, or closed; nothing was accepted.
            BacklogQuotaError: The topic is over its backlog quota: the policy is to refuse events,
                or to hold them, and `delivery_timeout` is over; nothing was accepted.
            BrokerError: There is no such topic, or no room within `delivery_timeout`; nothing was
                accepted.
            TypeError: An event or the position is of a wrong type; nothing was accepted.
            ValueError: No topic can have this name, or UTF-8 has no such characters as in the name
                of the position's source; nothing was accepted.
        """
        running = self._accepting_for(topic)
        _check_position(position)
        ticket = Ticket()
        ticket.open(asyncio.get_running_loop())
        route = await self._route_with_room(running, topic, for_events=bool(records))
        add = partial(running.accumulator.add_many, route, records, ticket, whole=True)
        await running.accepted(route, add)
        if position is not None:
            running.rounds.note(position)
        ticket.close(running.keeper())
        return ticket

    async def accept_each(self, topic: str, records: Sequence[Record]) -> list[Delivery]:
        """Accept events as `accept` does, and return a delivery for each.

        Raises:
            ProducerClosedError: The producer is not started, or closed; nothing was accepted.
            BacklogQuotaError: As in `accept`.
            BrokerError: As in `accept`.
            TypeError: As in `accept`.
            ValueError: As in `accept`.
        """
        running = self._accepting_for(topic)
        records = [checked(record) for record in records]
        if not records:
            return []
        route = await self._route_with_room(running, topic)
        accumulator = running.accumulator

        def add() -> list[Delivery]:
            accumulator.require_known(route, records)
            return [accumulator.add(route, record) for record in records]

        return await running.accepted(route, add)

    async def wait_for_quota(self, topic: str) -> None:
        """Wait until a topic is within its backlog quota, whatever the policy, and however long.

        For callers to whom `BacklogQuotaError` was raised, and who have the event still.

        Raises:
            ProducerClosedError: The producer is not started, or closed.
        """
        quota = self._accepting().quota
        if quota is not None:
            await quota.lifted(topic)
            self._accepting()

    async def wait_for_topic(self, topic: str) -> None:
        """Wait, however long, while a topic takes no batches, as without the right to write.

        For callers that can wait with their next event for what they sent before.

        Raises:
            ProducerClosedError: The producer is not started, or closed.
        """
        await self._accepting().barred.lifted(topic)
        self._accepting()

    async def note_position(self, position: SourcePosition) -> None:
        """Journal a position after all events accepted so far. Return when it is durable.

        Without a journal it returns when all that was accepted before has its outcome.

        Raises:
            ProducerClosedError: The producer is not started, or closed.
            JournalError: The journal failed.
            TypeError: The position is of a wrong type.
            ValueError: UTF-8 has no such characters as in the name of its source.
        """
        running = self._accepting()
        _check_position(position)
        if running.rounds.journals:
            running.rounds.note(position)
            await running.rounds.kept(running.rounds.next_cut)
        else:
            await running.accumulator.flushed()

    def recovered_position(self, source: str) -> bytes | None:
        """Return the last position of a source that the journal had at the start, or None."""
        return self._former.positions.get(source)

    def recovered_topics(self) -> frozenset[str]:
        """Return the topics that the journal knew at the start, which take events at once."""
        return frozenset(topic for topic, _ in self._former.partitions)

    async def failure(self) -> Exception:
        """Wait until the producer fails, as when its disk does, and return the reason.

        It then accepts no more events, and each accepted event has its outcome.

        Raises:
            WrongThreadError: See `send`.
        """
        self._check_home()
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    async def flush(self) -> None:
        """Wait until each event accepted so far, in any run, has its outcome.

        Raises:
            WrongThreadError: See `send`.
        """
        self._check_home()
        if self._running is not None:
            await self._running.all_completed()

    def blocked_reason(self) -> str | None:
        """Return in a sentence why the producer takes no events at the moment, or None."""
        if self._failure is not None:
            return f"it failed: {self._failure}"
        if self._closed or self._running is None:
            return "it is closed" if self._closed else "it is not started"
        return self._running.blocked_reason

    def statistics(self) -> ProducerStatistics:
        """Return the counts at this moment."""
        return NOTHING_COUNTED if self._running is None else self._running.statistics()

    async def close(self, timeout: timedelta | None = None) -> None:  # noqa: ASYNC109 - the promise
        """Send all accepted events, set every outcome, and end.

        Args:
            timeout: When to return at the latest, whatever Kafka does; `close_timeout` by default.
                What has no outcome by then gets one. A second call with less time hurries the
                first. A journal is always closed before, however long its disk takes.

        Raises:
            NotAllPersistedError: Events of `send_nowait` ended badly, and nobody was told: they had
                no `on_delivery`, and the producer has no `on_failure`.
            WrongThreadError: See `send`. Only its own event loop can close it.
        """
        if self._closing is None or not self._closing.done():
            self._check_home()
        limit_s = (timeout or self._settings.close_timeout).total_seconds()
        wire_s = min(_WIRE_CLOSE_S, limit_s / 5)
        loop = asyncio.get_running_loop()
        if self._closing is None:
            self._closed = True
            self._closing = loop.create_task(self._close(wire_s))
        hurrying = loop.call_later(limit_s - wire_s, self._hurry.set)
        try:
            # Shielded: closing goes on when a caller that waits for it is cancelled.
            await asyncio.shield(self._closing)
        finally:
            if self._closing.done():
                hurrying.cancel()
        if self._running is not None:
            self._running.accumulator.unawaited.raise_if_untold()

    async def _close(self, wire_s: float) -> None:
        if self._running is not None:
            await self._running.close(self._hurry, wire_s)
        self._opening.let_go()
        closing = [self._opening.closed()]
        if self._wire is not None:
            closing.append(close_within(self._wire, wire_s))
        if self._control is not None:
            closing.append(self._control.close(wire_s))
        await asyncio.gather(*closing)

    def _accepting(self) -> RunningProducer:
        if self._failure is not None:
            raise ProducerClosedError(f"the producer failed: {self._failure}") from self._failure
        if self._closed or self._running is None:
            raise ProducerClosedError("the producer is closed" if self._closed else "not started")
        self._check_home()
        return self._running

    def _check_home(self) -> None:
        if self._home is not None:
            self._home.check()

    def _has_leader(self, topic: str, partition: int) -> bool:
        return self._wire is not None and self._wire.leader(topic, partition) is not None

    def _give_up(self, events: Sequence[GivenUp]) -> None:
        """Give events to `on_given_up`; unless it returns, they are not forgotten."""
        if self._on_given_up is not None:
            try:
                self._on_given_up(events)
            except ENDS_THE_PROGRAM:
                raise
            except BaseException as error:
                if isinstance(error, Exception):
                    self._on_failure(error)
                    raise
                failure = ProducerError(f"on_given_up raised {error!r}")
                self._on_failure(failure)
                raise failure from error

    def _on_failure(self, error: Exception) -> None:
        """End the producer: without sender or journal no event may go on waiting.

        The first failure counts: what follows from it is no other.
        """
        if self._failure is not None:
            return
        _log.error("the producer failed", exc_info=error)
        self._failure = error
        self._failed.set()
        self._closed = True
        if self._running is not None:
            self._running.fail(f"the producer failed ({error!r})")


def _check_position(position: object) -> None:
    """Refuse what no start could read again: it would find its journal damaged."""
    if position is None:
        return
    _check_type("position", position, SourcePosition, "sequitur.producer.SourcePosition")
    assert isinstance(position, SourcePosition)
    _check_type("position.source", position.source, str, "str")
    _check_type("position.value", position.value, bytes, "bytes")
    position.source.encode()


def _check_type(name: str, found: object, expected: type, words: str) -> None:
    if not isinstance(found, expected):
        raise TypeError(f"{name} is {type(found).__name__}, expected {words}")
