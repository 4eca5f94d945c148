"""Opening the route of a topic: how many partitions it has, and how large a batch it takes.

What a journal holds of the topic is taken over with it: how many partitions it had, and its
batches without an acknowledgment. These are in the send queues before any new event.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sequitur.base.log import Logger
from sequitur.base.process import report_failure
from sequitur.base.retry import Retry, any_of
from sequitur.errors import BrokerError, FatalError, ProducerClosedError, RetriableError
from sequitur.kafka.error_codes import FORBIDDEN_TOPIC
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_batch import NO_STAMP, Stamp
from sequitur.producer._settings import backoff_of
from sequitur.producer.batching.batch import Batch, Dating, InJournal, InMemory
from sequitur.producer.batching.route import Known, PartitionQueue, Route
from sequitur.producer.delivery.send_queues import SendQueue
from sequitur.producer.delivery.sequencer import Sequencer
from sequitur.producer.delivery.spill import REFERENCE_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from sequitur.kafka.wire import Wire
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer.batching.accumulator import Accumulator
    from sequitur.producer.delivery.identities import Identities
    from sequitur.producer.delivery.rounds import RoundMaker
    from sequitur.producer.delivery.send_queues import SendQueues
    from sequitur.producer.delivery.settlement import Settlement
    from sequitur.producer.journal.frames import BatchFrame, Waiting
    from sequitur.producer.journal.state import Recovered

_T = TypeVar("_T")
_LEARN_S: Final = 2.0
"""How long brokers are asked about a topic before the journal's knowledge of it is used."""
_KNOWN_FOR_S: Final = 1.0
"""How long the answers of brokers count when an event is refused; then they are asked again."""
_log = Logger(__name__)


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
            async with asyncio.timeout(_LEARN_S):
                limit = await until_answered(ask, self._settings, self._random)
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
        """Call `add`, which refuses events by the last answers of brokers."""
        before, route.known = route.known, Known.UNANSWERED
        try:
            return add()
        finally:
            route.known = before

    def stop(self) -> None:
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
                async with asyncio.timeout(_LEARN_S):
                    found = await self._learn(topic)
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

        Partitions only vanish with their topic. Events for a partition that is gone are given up:
        only their sender can say which partition of the new topic they would belong to.
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
        """Open the queue of a partition, with the batches that the journal holds of it.

        Where the numbering of the former life ended does not matter: new batches begin at 0, under
        an identity that no life had before.
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
        """Return a batch that a former life left; its bytes are only in the journal."""
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
    """Return the result of a task for which others wait, too."""
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
    """Return the answer of `ask`; ask again, with backoff, for `delivery_timeout` at most."""
    retry = Retry(
        patience_s=settings.delivery_timeout.total_seconds(),
        backoff=backoff_of(settings),
        random=random.random,
    )
    return await retry.run_async(ask, any_of(RetriableError))
