"""A producer between `start` and `close`: its parts, put together and kept going, and its counts.

- `batching.accumulator` collects events in batches.
- `delivery.rounds` gets batches into the journal, and numbers them.
- `delivery.send_queues` and its sequencers hold them, and `delivery.sender` sends them.
- `delivery.settlement` sets their outcomes.
- `delivery.routes` opens topics, and `delivery.barred` holds the senders of some.
- `kafka.wire` speaks Kafka's protocol.

`_client` is the producer that users see.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.errors import (
    BrokerError,
    BufferFullError,
    JournalError,
    ProducerClosedError,
    RetriableError,
)
from sequitur.producer._unheard import Unheard
from sequitur.producer.batching.accumulator import Accumulator
from sequitur.producer.batching.route import OutdatedError
from sequitur.producer.delivery.barred import BarredTopics
from sequitur.producer.delivery.rounds import RoundMaker
from sequitur.producer.delivery.routes import Routes
from sequitur.producer.delivery.send_queues import SendQueues
from sequitur.producer.delivery.sender import Sender
from sequitur.producer.delivery.settlement import Settlement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from sequitur.base.process import StampClock
    from sequitur.kafka.wire import Wire
    from sequitur.producer._outcome import OnGivenUp, OnSendFailure
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.route import Route
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.journal.journal import Journal, JournalStatistics
    from sequitur.producer.journal.state import Recovered
    from sequitur.producer.quota import QuotaGate, QuotaStatistics

_STUCK_AFTER_S: Final = 1.0
_T = TypeVar("_T")
_log = Logger(__name__)


class RunningProducer:
    """What runs between `start` and `close`."""

    def __init__(
        self,
        *,
        wire: Wire,
        clock: StampClock,
        identities: Identities,
        settings: ProducerSettings,
        name: str,
        journal: Journal | None,
        former: Recovered,
        random: Random,
        quota: QuotaGate | None,
        on_given_up: OnGivenUp | None,
        on_send_failure: OnSendFailure | None,
        on_failure: Callable[[Exception], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.identities = identities
        self.quota = quota
        self._settings = settings
        self._journal = journal
        self._former = former
        self._counters = Counters()
        self._is_closing = False
        buffer_size = settings.buffer_size
        if journal is not None:
            # A quarter is for batches that are read back from the journal, one for rounds on their
            # way into it; and what is accepted in one call must fit into it.
            buffer_size = max(1, min(buffer_size // 2, settings.journal_limit // 4))
        self.unheard = Unheard(loop)
        self._queues = SendQueues()
        round_due = asyncio.Event()
        self.accumulator = Accumulator(
            settings,
            producer_name=name,
            next_event=former.next_event_sequence,
            loop=loop,
            random=random,
            buffer_size=buffer_size,
            on_due=round_due.set,
            clock=clock,
            on_given_up=on_given_up,
            on_send_failure=on_send_failure,
            unheard=None if on_given_up else self.unheard,  # it is told of what is refused
            journal_event_bytes=None if journal is None else settings.journal_limit // 8,
        )
        self.rounds = RoundMaker(
            queues=self._queues,
            accumulator=self.accumulator,
            settings=settings,
            journal=journal,
            identities=identities,
            clock=clock,
            due=round_due,
            on_failure=on_failure,
        )
        outstanding = self.accumulator.outstanding
        self.barred = BarredTopics(
            self._queues,
            outstanding,
            self.accumulator.budget,
            journal_bytes=None if journal is None else journal.bytes_of,
            journal_limit=settings.journal_limit,
        )
        self._settlement = Settlement(
            outstanding,
            self._counters,
            self.rounds,
            on_failure,
            on_given_up,
            unheard=self.unheard,
            unawaited=self.accumulator.unawaited,
        )
        self._routes = Routes(
            wire=wire,
            queues=self._queues,
            identities=identities,
            settlement=self._settlement,
            accumulator=self.accumulator,
            settings=settings,
            random=random,
            rounds=self.rounds,
            former=former,
            on_failure=on_failure,
        )
        self.sender = Sender(
            wire=wire,
            clock=clock,
            queues=self._queues,
            outstanding=outstanding,
            settlement=self._settlement,
            settings=settings,
            identities=identities,
            on_failure=on_failure,
            counters=self._counters,
            random=random,
            rounds=self.rounds,
            barred=self.barred,
            routes=self._routes,
            known_topics=former.known_topics,
        )
        wire.watch(self._routes.follow, on_failure)
        self._running = [loop.create_task(part.run()) for part in (self.rounds, self.sender)]
        for task in self._running:
            report_failure(task, on_failure)
        self._resuming = [loop.create_task(self._resume(topic)) for topic in former.topics]
        for task in self._resuming:
            report_failure(task, on_failure)

    @property
    def recovered_events(self) -> int:
        """How many events of a former run are sent again."""
        return self._former.events

    def keeper(self) -> Callable[[], Awaitable[None]] | None:
        """Wait for what was accepted until now to be in the journal; None without one."""
        return partial(self.rounds.kept, self.rounds.next_cut) if self.rounds.journals else None

    @property
    def blocked_reason(self) -> str | None:
        """Why no events are accepted; None while they are, and during a short wait for budget."""
        budget = self.accumulator.budget
        if self.rounds.full_reason is not None:
            return self.rounds.full_reason
        if budget.stuck_s > _STUCK_AFTER_S:
            stuck_s = f"{budget.stuck_s:.0f} s"
            return f"{budget.used} bytes wait for their answer, and none came for {stuck_s}"
        if self.quota is not None:
            limited = self.quota.blocked_reason(self.accumulator.routes)
            if limited is not None:
                return limited
        waited_for = next(iter(self._routes.unopened.values()), None)
        return self.barred.blocked_reason or waited_for

    def free_route(self, topic: str) -> Route | None:
        """Return the topic's route if an event may be accepted now; None if it has to wait."""
        accumulator, quota = self.accumulator, self.quota
        if (
            not accumulator.budget.is_free
            or self.barred.holds(topic)
            or (quota is not None and quota.limits(topic))
        ):
            return None
        return accumulator.routes.get(topic)

    def full_error(self, topic: str) -> BufferFullError:
        """Return why an event has to wait.

        Raises:
            BacklogQuotaError: It would not wait, but be refused.
        """
        state = None if self.quota is None else self.quota.refuse_or_state(topic)
        if state is not None:
            reason = state.figures
        elif topic not in self.accumulator.routes:
            reason = "its partitions are not known yet"
        else:
            reason = self.barred.reasons.get(topic, "the buffer is full")
        return BufferFullError(topic, reason)

    async def route_with_room(self, topic: str, *, for_events: bool = True) -> Route:
        """Wait for the topic's route, for its backlog quota, and for budget."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.delivery_timeout.total_seconds()
        route = self.accumulator.routes.get(topic)
        if route is None:
            route = await self._routes.open(topic)
        # First this: who has waited for budget gets it only for the step in which it is told so.
        if self.quota is not None and for_events:
            await self.quota.admit(topic, deadline_s)
        budget = self.accumulator.budget
        while True:
            if for_events:
                await self.barred.admit(topic, deadline_s)
            if budget.is_free:
                return route
            if not await budget.wait(deadline_s):
                raise RetriableError("no room in the buffer within delivery_timeout")
            # Meanwhile the topic may have been barred: then others have the room.
            if not (for_events and self.barred.holds(topic)):
                return route

    async def accepted(self, route: Route, add: Callable[[], _T]) -> _T:
        """Call `add`; before it refuses an event by what brokers said a while ago, ask them again.

        Without an answer within `delivery_timeout` the event is refused by what they said.

        Raises:
            ProducerClosedError: It was closed meanwhile; nothing was accepted.
        """
        deadline_s: float | None = None
        while True:
            try:
                return add()
            except OutdatedError:
                now_s = asyncio.get_running_loop().time()
                if deadline_s is None:
                    deadline_s = now_s + self._settings.delivery_timeout.total_seconds()
                if now_s >= deadline_s:
                    return self._routes.unanswered(route, add)
                await self._routes.looked_again(route)
                if self._is_closing:
                    raise ProducerClosedError("the producer is closed") from None

    def look_again(self, route: Route) -> None:
        """Ask brokers again for a topic's limit and partitions, in the background."""
        self._routes.look_again(route)

    async def partitions(self, topic: str) -> int:
        route = self.accumulator.routes.get(topic) or await self._routes.open(topic)
        return route.partitions

    async def all_completed(self) -> None:
        """Wait until each event has its outcome; those of the journal once they are known, too."""
        if self._resuming:
            await asyncio.wait(self._resuming)
        await self.accumulator.flushed()

    def fail(self, reason: str) -> None:
        """Stop sending at once, and set the outcome of every event."""
        self._hold_nobody()
        for task in self._running:
            task.cancel()
        self._abandon(reason)
        self.rounds.end_waits(reason)

    async def close(self, hurry: asyncio.Event, last_s: float) -> None:
        """Wait for the answers until hurried; then set the other outcomes, and end.

        If this call is cancelled, it sets them at once. The journal is closed in any case.
        """
        self._hold_nobody()
        async with contextlib.AsyncExitStack() as ends:
            # From the last to the first, each although one before it fails or is cancelled.
            ends.push_async_callback(self.rounds.close)
            ends.callback(self._abandon, "the producer was closed")
            ends.push_async_callback(self._end_tasks)
            await self._wait_for_answers(hurry, last_s)
        self.unheard.tell()

    async def _wait_for_answers(self, hurry: asyncio.Event, last_s: float) -> None:
        hurried = asyncio.ensure_future(hurry.wait())
        completed = asyncio.ensure_future(self.all_completed())
        try:
            await asyncio.wait((completed, hurried), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (hurried, completed):
                task.cancel()
        if self.rounds.journals:
            # So that the journal has every event without an outcome.
            with contextlib.suppress(JournalError, TimeoutError):
                async with asyncio.timeout(last_s):
                    await self.rounds.kept(self.rounds.next_cut)

    def statistics(self) -> ProducerStatistics:
        counters, accumulator = self._counters, self.accumulator
        return ProducerStatistics(
            accepted=accumulator.next_event - self._former.next_event_sequence,
            recovered=self.recovered_events,
            persisted=counters.persisted,
            not_persisted=counters.not_persisted,
            possibly_persisted=counters.possibly_persisted,
            buffered_bytes=accumulator.budget.used,
            batches_in_flight=sum(len(queue.sequencer.slots) for queue in self._queues),
            batches_sent=counters.batches_sent,
            batches_retried=counters.batches_retried,
            bytes_sent=counters.bytes_sent,
            batches_split=counters.batches_split,
            renewals=counters.renewals,
            requests=counters.requests,
            unheard=accumulator.unawaited.untold + self.unheard.count,
            journal=None if self._journal is None else self._journal.statistics(),
            quota=None if self.quota is None else self.quota.statistics(accumulator.routes),
        )

    async def _end_tasks(self) -> None:
        self._routes.stop()
        await asyncio.wait(self.halt())

    def halt(self) -> list[asyncio.Task[None]]:
        """Cancel all tasks without setting outcomes: what remains is for the journal."""
        tasks = [*self._running, *self._resuming]
        for task in tasks:
            task.cancel()
        return tasks

    def _hold_nobody(self) -> None:
        """End the waits of senders: nothing is accepted any more."""
        self._is_closing = True
        self.accumulator.budget.close()
        self.barred.close()
        if self.quota is not None:
            self.quota.close()

    async def _resume(self, topic: str) -> None:
        """Send what the journal holds for a topic."""
        try:
            await self._routes.open(topic)
        except ProducerClosedError:
            return
        except BrokerError as error:
            _log.error("the journal's events cannot be sent", topic=topic, reason=str(error))

    def _abandon(self, reason: str) -> None:
        for queue in self._queues:
            self._settlement.abandon(queue, reason)
        self._settlement.abandon_rest(reason)


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """The counts of a producer since it was started, at one moment.

    Attributes:
        accepted: Events that were given an event id.
        recovered: Events that a journal held from a former run, to be sent again. They are in the
            outcomes, too.
        persisted: Events whose outcome was `Persisted`.
        not_persisted: Accepted or recovered events whose outcome was `NotPersisted`.
        possibly_persisted: Events whose outcome was `PossiblyPersisted`.
        buffered_bytes: Bytes of the accepted events that are held now, uncompressed.
        batches_in_flight: Batches that have a sequence and no final answer now.
        batches_sent: Attempts to send a batch.
        batches_retried: Those of them that were not the first.
        bytes_sent: Bytes of those attempts, compressed.
        batches_split: Batches that a broker refused and that were halved.
        renewals: How often a partition got another producer id or epoch.
        requests: Produce requests written.
        unheard: Events that are not, or not surely, in the log, and of which the program has not
            heard. Its delivery or ticket was discarded unread, or `send_nowait` sent the event and
            no callback got it. The log has them by topic and reason, once a minute or, for
            `send_nowait`, every second. Events that `on_given_up` got are not among them.
        journal: Counts of the journal. None without one.
        quota: How backlog quotas held up sends. None unless `backlog_quota` is set.
    """

    accepted: int
    recovered: int
    persisted: int
    not_persisted: int
    possibly_persisted: int
    buffered_bytes: int
    batches_in_flight: int
    batches_sent: int
    batches_retried: int
    bytes_sent: int
    batches_split: int
    renewals: int
    requests: int
    unheard: int
    journal: JournalStatistics | None
    quota: QuotaStatistics | None


NOTHING_COUNTED: Final = ProducerStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, None)


@dataclass(slots=True)
class Counters:
    """The same while they grow; see `ProducerStatistics`."""

    persisted: int = 0
    not_persisted: int = 0
    possibly_persisted: int = 0
    batches_sent: int = 0
    batches_retried: int = 0
    bytes_sent: int = 0
    batches_split: int = 0
    renewals: int = 0
    requests: int = 0
