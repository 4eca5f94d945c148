"""Finding out how a topic is partitioned, and how large a batch it takes.

What a journal holds of the topic is taken over with it: the numbering of its partitions goes on,
and its un-acked batches stand in the lanes before any new event.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from producer._backoff import Backoff
from producer._batch import Stamp
from producer._errors import FatalError, ProducerClosedError, RetriableError
from producer._lane import Batch, Lane, Route
from producer._sequencer import Sequencer
from producer._slot import Identity
from producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from producer._accumulator import Accumulator
    from producer._journal_state import Recovered
    from producer._rounds import Rounds
    from producer._sender import Sender
    from producer._settings import ProducerSettings
    from producer._wire import Wire

_T = TypeVar("_T")

_LEARN_S: Final = 2.0
"""How long brokers are asked about a topic that the journal knows, before its word is taken."""


class Routes:
    """Opens the routes of topics; one task a topic, for all who wait for it.

    Args:
        wire: The way to the brokers.
        sender: Knows the identity that new lanes start under.
        accumulator: Gets the routes.
        settings: Sizes and timeouts.
        random: Jitter, and the first sticky partition.
        rounds: Holds new partitions back until the journal knows of them.
        former: What the journal held at the start.
    """

    def __init__(
        self,
        *,
        wire: Wire,
        sender: Sender,
        accumulator: Accumulator,
        settings: ProducerSettings,
        random: Random,
        rounds: Rounds,
        former: Recovered,
    ) -> None:
        self._wire = wire
        self._sender = sender
        self._accumulator = accumulator
        self._settings = settings
        self._random = random
        self._rounds = rounds
        self._former = former
        self._opening: dict[str, asyncio.Task[Route]] = {}

    async def open(self, topic: str) -> Route:
        """The topic's route, once it is known.

        Raises:
            RetriableError: There is no such topic, or no broker answers, for `delivery_timeout`.
            FatalError: A broker turned us down.
            ProducerClosedError: The producer was closed meanwhile.
        """
        task = self._opening.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._find(topic))
            self._opening[topic] = task
            task.add_done_callback(lambda _: self._opening.pop(topic, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise ProducerClosedError("the producer is closed") from None
            raise

    def stop(self) -> None:
        """Open nothing any more."""
        for task in self._opening.values():
            task.cancel()

    async def _find(self, topic: str) -> Route:
        known = self._former.partition_count(topic)
        if known is None:
            found = await self._learn(topic)
        else:
            try:
                found = await asyncio.wait_for(self._learn(topic), _LEARN_S)
            except (TimeoutError, RetriableError):
                # The journal can take events while Kafka is away.
                found = known, self._settings.max_request_size
        partitions, max_batch_bytes = found
        settings = self._settings
        route = Route(
            topic,
            [self._lane(topic, partition) for partition in range(max(partitions, known or 0))],
            partitions=partitions,
            max_batch_bytes=max_batch_bytes,
            # A record that is larger than these starts a batch of its own, and is checked there.
            batch_bytes=min(settings.batch_size, settings.max_request_size),
            random=self._random.random(),
        )
        self._accumulator.routes[topic] = route
        return route

    async def _learn(self, topic: str) -> tuple[int, int]:
        """How many partitions a topic has, and how large a batch it takes."""

        async def partitions() -> int:
            return await self._partitions(topic)

        async def limit() -> int:
            return await self._max_batch_bytes(topic)

        count = await until_answered(partitions, self._settings, self._random)
        return count, await until_answered(limit, self._settings, self._random)

    def _lane(self, topic: str, partition: int) -> Lane:
        window = self._settings.max_in_flight
        state = self._former.partitions.get((topic, partition))
        if state is None:
            sequencer = Sequencer[Batch](self._sender.identity, window=window)
            lane = Lane(topic, partition, sequencer)
            lane.active_at_s = asyncio.get_running_loop().time()
            self._rounds.renewed(lane)
            return lane
        sequencer = Sequencer[Batch](
            Identity(state.producer_id, state.epoch),
            next_sequence=state.next_sequence,
            window=window,
        )
        lane = Lane(topic, partition, sequencer)
        now_s = asyncio.get_running_loop().time()
        for kept in self._former.unacked.get((topic, partition), ()):
            stamp = Stamp(kept.producer_id, kept.epoch, kept.base_sequence)
            batch = Batch(
                topic,
                partition,
                now_s,
                kept.first_event_sequence,
                last_event=kept.last_event_sequence,
                count=kept.record_count,
                size=len(kept.data),
                data=kept.data,
                stamp=stamp,
                journaled=stamp,
            )
            sequencer.recover(batch, batch.count, kept.base_sequence)
            self._accumulator.take_over(batch)
            self._sender.poke(lane)
        return lane

    async def _partitions(self, topic: str) -> int:
        found = self._wire.partitions(topic)
        if found is None:
            await self._wire.refresh([topic])
            found = self._wire.partitions(topic)
        if found is None:
            raise RetriableError(f"topic {topic} is not there")
        return found

    async def _max_batch_bytes(self, topic: str) -> int:
        try:
            return await self._wire.max_message_bytes(topic)
        except FatalError:
            # Without the right to know it, the broker's refusal will tell.
            return self._settings.max_request_size


async def until_answered(
    ask: Callable[[], Awaitable[_T]], settings: ProducerSettings, random: Random
) -> _T:
    """What `ask` gives; asked again with backoff for as long as `delivery_timeout`.

    Raises:
        RetriableError: The last one, when the time is over.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + settings.delivery_timeout.total_seconds()
    backoff = Backoff(
        initial_ms=milliseconds(settings.retry_backoff),
        maximum_ms=milliseconds(settings.retry_backoff_max),
    )
    failures = 0
    while True:
        try:
            return await ask()
        except RetriableError:
            failures += 1
            wait_s = backoff.delay_ms(failures, random.random()) / 1000
            if loop.time() + wait_s > deadline_s:
                raise
            await asyncio.sleep(wait_s)
