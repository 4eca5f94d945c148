"""What was cut for one partition and is not settled, and how sending it goes."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.base.retry import Retry, any_of
from sequitur.errors import BrokerError, FatalError, ProducerClosedError, RetriableError
from sequitur.kafka.error_codes import FORBIDDEN_TOPIC
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_batch import NO_STAMP, Stamp
from sequitur.producer._settings import backoff_of
from sequitur.producer.batching.batch import (
    Batch,
    Dating,
    InJournal,
    InMemory,
    Known,
    PartitionQueue,
    Route,
)
from sequitur.producer.delivery.journaling import REFERENCE_BYTES
from sequitur.producer.delivery.sequencer import Sequencer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
    from random import Random

    from sequitur.base.retry import Backoff
    from sequitur.kafka.wire import Wire
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.accumulator import Accumulator
    from sequitur.producer.batching.batch import BufferBudget, Outstanding
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.rounds import RoundMaker
    from sequitur.producer.delivery.sequencer import Slot
    from sequitur.producer.delivery.settlement import Settlement
    from sequitur.producer.journal.frames import BatchFrame, Waiting
    from sequitur.producer.journal.state import Recovered


class SendQueue:
    """Hold the batches of one partition from their cut until they are settled.

    Batches that have no sequence numbers yet wait here, oldest first; the sequencer holds those
    that have. Only the methods of this class write its fields.
    """

    __slots__ = (
        "_active_at_s",
        "_failures",
        "_halved",
        "_inherited",
        "_is_recovering",
        "_retry_at_s",
        "_trouble",
        "_waiting",
        "accumulated",
        "inherited_from",
        "partition",
        "sequencer",
        "topic",
    )

    def __init__(
        self,
        accumulated: PartitionQueue,
        sequencer: Sequencer[Batch],
        *,
        now_s: float = 0.0,
        inherited_from: Stamp = NO_STAMP,
    ) -> None:
        self.topic = accumulated.topic
        self.partition = accumulated.partition
        self.accumulated = accumulated
        self.sequencer = sequencer
        self.inherited_from = inherited_from
        self._waiting: deque[Batch] = deque()
        self._inherited: list[Batch] = []
        self._halved: list[Batch] = []
        self._failures = 0
        self._retry_at_s = 0.0
        self._trouble = ""
        self._active_at_s = now_s
        self._is_recovering = False

    # Batches without numbers.

    @property
    def has_unnumbered(self) -> bool:
        """Whether any batch has no numbers yet, cut or not."""
        return bool(self._waiting) or self.accumulated.has_batch

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be sent or answered."""
        return self.sequencer.is_empty and not self.has_unnumbered

    @property
    def first_waiting(self) -> Batch | None:
        """The oldest batch that was cut and has no numbers yet."""
        return self._waiting[0] if self._waiting else None

    @property
    def inherited(self) -> Sequence[Batch]:
        """Batches without numbers that a former life left, until `resolve_inherited`.

        They may be in the log: another process may hold a copy of the journal. No batch of the
        partition gets numbers before that is known.
        """
        return self._inherited

    def wait(self, batch: Batch) -> None:
        """Let a batch wait for its numbers."""
        self._waiting.append(batch)

    def inherit(self, batch: Batch) -> None:
        """Let a batch wait that a former life left without numbers."""
        self._waiting.append(batch)
        self._inherited.append(batch)

    def resolve_inherited(self, found: Collection[Batch]) -> list[Batch]:
        """Take out the inherited batches that were found in the log; the others may be sent."""
        self._inherited.clear()
        persisted = [batch for batch in self._waiting if batch in found]
        for batch in persisted:
            self._waiting.remove(batch)
        return persisted

    def number(self, batch: Batch) -> Slot[Batch]:
        """Give a batch its numbers; it is held until the journal has them."""
        return self.sequencer.admit(batch, batch.count, held=True)

    def number_first(self) -> Slot[Batch]:
        """Give the oldest waiting batch its numbers, as `number` does."""
        return self.number(self._waiting.popleft())

    def pop_unnumbered(self, accepted_until_s: float = inf) -> Batch | None:
        """Take out the oldest batch without numbers, if it was accepted until then."""
        if self._waiting and self._waiting[0].accepted_at_s <= accepted_until_s:
            return self._waiting.popleft()
        return self.accumulated.pop(accepted_until_s)

    # Batches with numbers.

    def replace(self, slot: Slot[Batch], halves: tuple[Batch, Batch]) -> None:
        """Put the halves of a batch in its place."""
        if slot.batch.journaled is not None:
            self._halved.append(slot.batch)
        self.sequencer.replace(slot, [(half, half.count) for half in halves])

    def take_halved(self) -> list[Batch]:
        """Take out the batches that were halved, and that the journal still holds whole."""
        halved, self._halved = self._halved, []
        return halved

    def return_halved(self, batch: Batch) -> None:
        """Take back what `take_halved` gave: the journal did not take its halves."""
        self._halved.append(batch)

    # How sending goes.

    @property
    def failures(self) -> int:
        """Failed attempts since the last success."""
        return self._failures

    @property
    def retry_at_s(self) -> float:
        """When the next attempt may be made, on the event loop's clock."""
        return self._retry_at_s

    @property
    def trouble(self) -> str:
        """What went wrong last, for the reasons of outcomes; empty after a success."""
        return self._trouble

    @property
    def active_at_s(self) -> float:
        """When the broker last answered for the partition, on the event loop's clock."""
        return self._active_at_s

    @property
    def is_recovering(self) -> bool:
        """Whether `Recovery` works on its identity and numbers; nothing is sent meanwhile."""
        return self._is_recovering

    def note_trouble(self, trouble: str) -> None:
        """Take note of what went wrong."""
        self._trouble = trouble

    def note_answer(self, now_s: float) -> None:
        """Take note that the broker has answered for the partition."""
        self._active_at_s = now_s

    def note_success(self, now_s: float) -> None:
        """Take note that a batch is in the log."""
        self._failures = 0
        self._trouble = ""
        self._active_at_s = now_s

    def back_off(self, backoff: Backoff, random: float, now_s: float) -> float:
        """Count a failed attempt, and return how many seconds to wait before the next."""
        self._failures += 1
        wait_s = backoff.delay_ms(self._failures, random) / 1000
        self._retry_at_s = now_s + wait_s
        return wait_s

    def begin_recovery(self) -> None:
        """Send nothing until `end_recovery`."""
        self._is_recovering = True

    def end_recovery(self) -> None:
        """Send again."""
        self._is_recovering = False


class SendQueues:
    """The send queues of all partitions, and which of them may have something to send.

    Whoever changes that (a round is durable, an answer comes, a wait ends) wakes the queue; the
    sender takes it, and wakes it again if it found a batch.
    """

    __slots__ = ("_by_accumulated", "_woken", "are_woken")

    def __init__(self) -> None:
        self.are_woken = asyncio.Event()
        self._by_accumulated: dict[PartitionQueue, SendQueue] = {}
        self._woken: dict[SendQueue, None] = {}

    def __iter__(self) -> Iterator[SendQueue]:
        """Give all of them."""
        return iter(self._by_accumulated.values())

    def of(self, accumulated: PartitionQueue) -> SendQueue:
        """Return the queue that the batches of a partition go to."""
        return self._by_accumulated[accumulated]

    def add(self, queue: SendQueue) -> None:
        """Add the queue of another partition."""
        self._by_accumulated[queue.accumulated] = queue

    def remove(self, queue: SendQueue) -> None:
        """Remove the queue of a partition that is gone."""
        del self._by_accumulated[queue.accumulated]

    def wake(self, queue: SendQueue) -> None:
        """Have the sender look whether a queue has something to send."""
        self._woken[queue] = None
        self.are_woken.set()

    def wake_all(self) -> None:
        """Have it look at all of them."""
        self._woken.update(dict.fromkeys(self))
        self.are_woken.set()

    def take_woken(self) -> Iterable[SendQueue]:
        """Take out those to be looked at."""
        woken, self._woken = self._woken, {}
        return woken


# Opening the route of a topic: how many partitions it has, and how large a batch it takes.
#
# What a journal holds of the topic is taken over with it: how many partitions it had, and its
# un-acknowledged batches, which stand in the send queues before any new event.


# Topics that take no batch for a time, whatever is in it: their senders wait, and no others.
#
# A topic is barred while a broker answers that we may not write to it, or refuses timestamps that
# we cannot correct: the batches keep their numbers and their place, and are tried again. One that
# gets in lifts the bar; so does the end of the last that waited, since nobody would hear of a
# change.

_SHARE: Final = 4
"""No event is accepted while all barred topics together have a quarter of buffer or journal."""

_log = Logger(__name__)


class BarredTopics:
    """Say which topics are barred and why, and hold their senders."""

    def __init__(
        self,
        queues: SendQueues,
        outstanding: Outstanding,
        budget: BufferBudget,
        *,
        journal_bytes: Callable[[Collection[str]], int] | None,
        journal_limit: int,
    ) -> None:
        self.reasons: dict[str, str] = {}
        self._queues = queues
        self._outstanding = outstanding
        self._budget = budget
        self._journal_bytes = journal_bytes
        self._journal_limit = journal_limit
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def blocked_reason(self) -> str | None:
        """Why one of the topics takes no events; None if all do."""
        return next((f"{reason}: events wait" for reason in self.reasons.values()), None)

    def bar(self, topic: str, reason: str) -> None:
        """Hold the senders of a topic, until `lift`."""
        if self.reasons.get(topic) != reason:
            _log.warning("a topic takes no batches: they wait", topic=topic, reason=reason)
        self.reasons[topic] = reason
        self._spare()

    def lift(self, topic: str) -> None:
        """Hold the senders of a topic no more: it takes batches, or none of its batches is left."""
        if self.reasons.pop(topic, None) is not None:
            _log.info("a topic takes batches again", topic=topic)
            self._spare()
            self._look_again()

    def look_again(self) -> None:
        """Let those who wait look whether there is room: batches may have ended."""
        if self.reasons:
            waiting = {queue.topic for queue in self._queues if not queue.is_empty}
            for topic in self.reasons.keys() - waiting:
                self.lift(topic)
            self._spare()
            self._look_again()

    def holds(self, topic: str) -> bool:
        """Return whether senders of a topic have to wait."""
        return topic in self.reasons and self._is_full()

    async def admit(self, topic: str, deadline_s: float) -> None:
        """Wait until a topic is not barred, or barred topics have room."""
        try:
            async with asyncio.timeout_at(deadline_s):
                while self.holds(topic):
                    if self._is_closed:
                        raise RetriableError("the producer was closed")
                    await self._changed.wait()
        except TimeoutError:
            reason = self.reasons.get(topic, "")
            raise RetriableError(f"not accepted within delivery_timeout: {reason}") from None

    async def lifted(self, topic: str) -> None:
        """Wait until a topic is not barred, or the producer is closed."""
        while topic in self.reasons and not self._is_closed:
            await self._changed.wait()

    def close(self) -> None:
        """Hold nobody any more: the producer closes, and accepts nothing."""
        self._is_closed = True
        self._look_again()

    def _in_memory(self) -> int:
        """Return how many bytes of memory the batches of barred topics take."""
        barred = self.reasons
        cut = sum(batch.size for batch in self._outstanding.batches if batch.topic in barred)
        return cut + sum(q.accumulated.open_bytes for q in self._queues if q.topic in barred)

    def _spare(self) -> None:
        """Let others have the memory that barred topics have taken beyond their share."""
        beyond = self._in_memory() - self._budget.limit // _SHARE if self.reasons else 0
        self._budget.spare(max(0, beyond))

    def _is_full(self) -> bool:
        if self._in_memory() * _SHARE >= self._budget.limit:
            return True
        if self._journal_bytes is None:
            return False
        return self._journal_bytes(self.reasons.keys()) * _SHARE >= self._journal_limit

    def _look_again(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


_T = TypeVar("_T")

_LEARN_S: Final = 2.0
"""How long brokers are asked about a topic that is known, before what is known of it is taken."""
_KNOWN_FOR_S: Final = 1.0
"""How long an event is refused by what brokers said, before they are asked again."""


class Routes:
    """Open the routes of topics; one task a topic, for all callers that wait for it."""

    def __init__(
        self,
        *,
        wire: Wire,
        queues: SendQueues,
        identities: Identities,
        settlement: Settlement,
        accumulator: Accumulator,
        settings: ProducerSettings,
        random: Random,
        rounds: RoundMaker,
        former: Recovered,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._on_failure = on_failure
        self._wire = wire
        self._queues = queues
        self._identities = identities
        self._settlement = settlement
        self._accumulator = accumulator
        self._settings = settings
        self._random = random
        self._rounds = rounds
        self._former = former
        self.unopened: dict[str, str] = {}
        self._opening: dict[str, asyncio.Task[Route]] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def open(self, topic: str) -> Route:
        """Return the topic's route, once it is known."""
        task = self._opening.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._find(topic))
            self._opening[topic] = task
            task.add_done_callback(lambda _: self._opening.pop(topic, None))
        return await _outcome_of(task)

    async def looked_again(self, route: Route) -> None:
        """Wait until a topic was asked for again, or no broker has answered for two seconds."""
        await _outcome_of(self.look_again(route))

    def look_again(self, route: Route) -> asyncio.Task[None]:
        """Ask for a topic's limit and partitions again; one task a topic, for all who wait."""
        task = self._looking.get(route.topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look_again(route))
            self._looking[route.topic] = task
            task.add_done_callback(lambda _: self._looking.pop(route.topic, None))
            report_failure(task, self._on_failure)
        return task

    def doubt(self, topic: str) -> None:
        """Ask again, in the background: a broker refused a batch that was within the limit."""
        route = self._accumulator.routes.get(topic)
        if route is not None and route.known is Known.BEFORE:
            self.look_again(route)

    async def _look_again(self, route: Route) -> None:
        async def ask() -> int:
            if not await self._wire.refresh([route.topic]):
                raise RetriableError("no broker answers")
            return await self._max_batch_bytes(route.topic)

        try:
            limit = await asyncio.wait_for(
                until_answered(ask, self._settings, self._random), _LEARN_S
            )
        except (TimeoutError, RetriableError):
            # A broker refuses a batch that is too large, and it is halved.
            route.limit(self._settings.max_request_size)
        else:
            route.limit(limit)
            self._note_known(route)

    def _note_known(self, route: Route) -> None:
        """Take note that brokers just said what a topic is like; that holds for a second."""
        route.known = Known.NOW
        asyncio.get_running_loop().call_later(_KNOWN_FOR_S, self._forget_known, route)

    @staticmethod
    def _forget_known(route: Route) -> None:
        route.known = Known.BEFORE

    @staticmethod
    def unanswered(route: Route, add: Callable[[], _T]) -> _T:
        """Call `add`, and have it refuse events by what brokers said when they last answered."""
        before, route.known = route.known, Known.UNANSWERED
        try:
            return add()
        finally:
            route.known = before

    def stop(self) -> None:
        """Open nothing any more."""
        for task in (*self._opening.values(), *self._looking.values()):
            task.cancel()

    async def _find(self, topic: str) -> Route:
        known = self._former.partition_count(topic)
        is_answered = True
        if known is None:
            try:
                found = await self._learn(topic, is_new=not self._settings.waits_for_topics)
            except BrokerError:
                self._wire.forget(topic)
                self.unopened.pop(topic, None)
                raise
        else:
            try:
                found = await asyncio.wait_for(self._learn(topic), _LEARN_S)
            except (TimeoutError, RetriableError):
                # The journal can take events while Kafka is away.
                found = known, self._settings.max_request_size
                is_answered = False
        self.unopened.pop(topic, None)
        partitions, max_batch_bytes = found
        settings = self._settings
        route = Route(
            topic,
            [self._open_queue(topic, p) for p in range(max(partitions, known or 0))],
            partitions=partitions,
            max_batch_bytes=max_batch_bytes,
            # A record that is larger than these starts a batch of its own, and is checked there.
            batch_bytes=min(
                settings.batch_size, settings.max_request_size, settings.journal_limit // 16
            ),
            random=self._random.random(),
            topic_id=self._wire.topic_id(topic),
        )
        if is_answered:
            self._note_known(route)
        self._accumulator.routes[topic] = route
        self._follow(route)
        return route

    def follow(self) -> None:
        """Adapt to what has changed of the topics, after a refresh of the metadata."""
        for route in self._accumulator.routes.values():
            self._follow(route)

    def _follow(self, route: Route) -> None:
        """Adapt to a topic that was recreated, and to more or fewer partitions.

        Partitions only vanish with their topic. What was for one that is gone is given up: only
        its sender can say which partition of the new topic it would belong to.
        """
        topic_id, partitions = self._wire.topic_id(route.topic), self._wire.partitions(route.topic)
        if partitions is None:
            return  # not there now; it may come back
        if route.topic_id not in (None, topic_id) and topic_id is not None:
            _log.warning(
                "a topic was deleted and recreated: what it held is gone",
                topic=route.topic,
                partitions=partitions,
            )
        route.topic_id = topic_id or route.topic_id
        before = route.partitions
        if partitions != before:
            first_new = len(route.queues)
            route.queues += [self._open_queue(route.topic, p) for p in range(first_new, partitions)]
            route.resize(partitions, self._random.random())
            _log.info(
                "a topic has another number of partitions",
                topic=route.topic,
                partitions=partitions,
                before=before,
            )
        for accumulated in route.queues[partitions:]:
            queue = self._queues.of(accumulated)
            self._settlement.give_up(
                queue, f"{queue.topic} was recreated without partition {queue.partition}"
            )
            self._queues.remove(queue)
            self._accumulator.cutter.forget(accumulated)
        del route.queues[partitions:]

    async def _learn(self, topic: str, *, is_new: bool = False) -> tuple[int, int]:
        """Return how many partitions a topic has, and how large a batch it takes."""
        missing_since_s: float | None = None

        async def partitions() -> int:
            nonlocal missing_since_s
            found = self._wire.partitions(topic)
            if found is not None:
                return found
            if not await self._wire.refresh([topic]):
                raise RetriableError("no broker answers")
            found = self._wire.partitions(topic)
            if found is not None:
                return found
            is_forbidden = self._wire.is_unauthorized(topic)
            why = f"topic {topic} is not there"
            if is_forbidden:
                why = f"topic {topic}: {FORBIDDEN_TOPIC.name}{FORBIDDEN_TOPIC.hint}"
            elif self._settings.create_topics:
                await self._wire.create_topic(topic)
            self.unopened[topic] = why
            now_s = asyncio.get_running_loop().time()
            missing_since_s = now_s if missing_since_s is None else missing_since_s
            missing_s = now_s - missing_since_s
            limit_s = self._settings.topic_timeout.total_seconds()
            if is_new and (is_forbidden or missing_s >= limit_s):
                raise FatalError(why if is_forbidden else f"{why}, for {limit_s:g} s")
            raise RetriableError(why)

        async def limit() -> int:
            return await self._max_batch_bytes(topic)

        count = await until_answered(partitions, self._settings, self._random)
        return count, await until_answered(limit, self._settings, self._random)

    def _open_queue(self, topic: str, partition: int) -> PartitionQueue:
        """Open the queues of a partition: first what the journal holds of it, then what is new.

        Where the numbering of the former life stood does not matter: what is new begins at 0,
        under an identity that no life had before.
        """
        sequencer = Sequencer[Batch](self._identities.current, window=self._settings.max_in_flight)
        state = self._former.partitions.get((topic, partition))
        queue = SendQueue(
            PartitionQueue(topic, partition),
            sequencer,
            now_s=asyncio.get_running_loop().time(),
            inherited_from=NO_STAMP
            if state is None
            else Stamp(state.producer_id, state.epoch, state.next_sequence),
        )
        self._queues.add(queue)
        for kept in self._former.unacked.get((topic, partition), ()):
            stamp = Stamp(kept.producer_id, kept.epoch, kept.base_sequence)
            batch = self._take_over(
                queue,
                kept,
                stamp=stamp,
                in_journal=InJournal.NUMBERED,
                journaled=stamp,
                last_ms=kept.timestamp_ms,
            )
            sequencer.recover(
                batch, batch.count, kept.base_sequence, Identity(kept.producer_id, kept.epoch)
            )
        for waiting in self._former.waiting.get((topic, partition), ()):
            # Its bytes stay in the journal until it is sent.
            batch = self._take_over(queue, waiting, in_journal=InJournal.WAITING)
            queue.inherit(batch)
            self._rounds.add_waiting(queue)
        self._rounds.renewed(queue)
        return queue.accumulated

    def _take_over(self, queue: SendQueue, frame: BatchFrame | Waiting, **known: Any) -> Batch:
        """Make a batch of what a former life left; its bytes are in the journal alone."""
        batch = Batch(
            queue.topic,
            queue.partition,
            asyncio.get_running_loop().time(),
            frame.first_event_sequence,
            last_event=frame.last_event_sequence,
            count=frame.record_count,
            size=REFERENCE_BYTES,
            in_memory=InMemory.AWAY,
            dating=Dating.SENDERS if frame.dated else Dating.OURS,
            **known,
        )
        self._accumulator.outstanding.take_over(batch)
        self._queues.wake(queue)
        return batch

    async def _max_batch_bytes(self, topic: str) -> int:
        try:
            return await self._wire.max_message_bytes(topic)
        except FatalError:
            # Without the right to ask for it: a batch that is too large is refused, and halved.
            return self._settings.max_request_size


async def _outcome_of(task: asyncio.Task[_T]) -> _T:
    """Return what a task that others wait for, too, returns."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if task.cancelled() and waiting is not None and not waiting.cancelling():
            raise ProducerClosedError("the producer is closed") from None
        raise


async def until_answered(
    ask: Callable[[], Awaitable[_T]], settings: ProducerSettings, random: Random
) -> _T:
    """Return what `ask` gives; ask again, with backoff, for as long as `delivery_timeout`."""
    retry = Retry(
        patience_s=settings.delivery_timeout.total_seconds(),
        backoff=backoff_of(settings),
        random=random.random,
    )
    return await retry.run_async(ask, any_of(RetriableError))
