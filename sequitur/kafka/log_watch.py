"""Where partitions end, and a wait until there is more, by requests that brokers keep.

A broker that is asked for records at the end of a log answers once there are some, or after a
second without any. So a waiting program asks once a second, and hears of records at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from sequitur.errors import FatalError, LogRangeError, RetriableError, TopicError
from sequitur.kafka.connections import Bound, Connections
from sequitur.kafka.partition import OutputPartition, SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping
    from typing import Any

    from sequitur.kafka.log_reading import Fetched
    from sequitur.kafka.settings import KafkaSettings

    Places = Mapping[SourcePartition, int]

_KEPT_MS: Final = 1_000
"""A broker holds a request for so long if it has no records."""
_SILENCE_S: Final = 10.0
"""A partition that is silent for so long has no leader that answers."""
_PAUSE_S: Final = 0.1
_SHORTLY_S: Final = 0.005
"""Other leaders with records answer at most so much later than the first."""
_LEAST_BYTES: Final = 1
"""A broker sends one whole batch of a partition anyway. Nobody reads it."""


class LogWatch:
    """Where the committed records of partitions end.

    It has connections of its own, since a broker answers the requests of a connection one after the
    other. A leader without records keeps its request while the records of others are read.
    """

    def __init__(self, kafka: KafkaSettings, *, is_stopping: Callable[[], bool] = bool) -> None:
        self._kafka = kafka
        self._is_stopping = is_stopping
        self._connections: Connections | None = None
        self._asked: dict[int, asyncio.Task[dict[SourcePartition, Fetched]]] = {}
        self._heard_s: dict[SourcePartition, float] = {}
        self._knows_leaders = False

    def ends(self, places: Places) -> dict[SourcePartition, int]:
        """Return where open transactions begin, or logs end, behind a place of each partition.

        Raises:
            LogRangeError: A log has no such place: what was there is deleted.
            RetriableError: Not all leaders answer.
            TopicError: The brokers refuse it.
        """
        return self._run(self._ends_of_all(places), _SILENCE_S)

    def later(self, places: Places, wait_s: float) -> dict[SourcePartition, int]:
        """Return the ends of partitions that have records behind their places.

        Returns as soon as one has any, and without any once the time is over. Raises what `ends`
        raises.
        """
        return self._run(self._ends_of_some(places, wait_s), wait_s + _SILENCE_S)

    def close(self) -> None:
        """Close the connections. Brokers' held requests end with them."""
        connections, self._connections = self._connections, None
        self._heard_s.clear()
        self._knows_leaders = False
        if connections is not None:
            connections.run(self._forget())
            connections.close()

    def _run(
        self, work: Coroutine[Any, Any, dict[SourcePartition, int]], most_s: float
    ) -> dict[SourcePartition, int]:
        bound = Bound(time.monotonic() + most_s, self._is_stopping)
        try:
            if self._connections is None:
                self._connections = Connections(self._kafka, bound)
            return self._connections.run(work, bound)
        except LogRangeError:
            raise
        except FatalError as error:
            raise TopicError(f"the input topics cannot be read: {error}") from error
        finally:
            work.close()

    async def _forget(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        self._asked.clear()

    async def _ends_of_all(self, places: Places) -> dict[SourcePartition, int]:
        found: dict[SourcePartition, int] = {}
        while left := places.keys() - found.keys():
            await self._ask({where: places[where] for where in left}, wait_ms=0)
            if told := await self._told(_SILENCE_S):
                found |= told
            else:
                await asyncio.sleep(_PAUSE_S)
        return {where: found[where] for where in places}

    async def _ends_of_some(self, places: Places, wait_s: float) -> dict[SourcePartition, int]:
        until_s = time.monotonic() + wait_s
        while True:
            before = dict(self._asked)
            await self._ask(places, wait_ms=_KEPT_MS)
            told = await self._told(max(0.0, until_s - time.monotonic()))
            more = {where: end for where, end in told.items() if end > places.get(where, end)}
            left_s = until_s - time.monotonic()
            if more or left_s <= 0:
                if more:
                    more |= await self._ends_by_now(places, before)
                self._check_heard(places)
                return more
            if not told:
                await asyncio.sleep(min(_PAUSE_S, left_s))

    async def _ends_by_now(
        self, places: Places, before: Mapping[int, asyncio.Task[Any]]
    ) -> dict[SourcePartition, int]:
        """Return what leaders have now beside the first that told of some.

        Who was asked before this wait answered when there was a first record. What others answer is
        on its way.
        """
        told_early = {node for node, asked in before.items() if self._asked.get(node) is not asked}
        await self._ask(places, wait_ms=0, of=told_early)
        asked_now = [asked for node, asked in self._asked.items() if before.get(node) is not asked]
        if not asked_now or not (await asyncio.wait(asked_now, timeout=_SHORTLY_S))[0]:
            return {}
        told = await self._told(0.0)
        return {where: end for where, end in told.items() if end > places.get(where, end)}

    async def _ask(self, places: Places, wait_ms: int, of: Collection[int] | None = None) -> None:
        """Ask leaders for records behind their places, except those that hold a request."""
        assert self._connections is not None
        leaders = self._connections.leaders
        if not self._knows_leaders:
            self._knows_leaders = await leaders.refresh({where.topic for where in places})
        by_leader = leaders.by_leader(OutputPartition(*where) for where in places)
        led = [where for topics in by_leader.values() for where in _partitions_of(topics)]
        self._knows_leaders &= len(led) == len(places)
        for node, topics in by_leader.items():
            if node not in self._asked and (of is None or node in of):
                own = _partitions_of(topics)
                some = {where: place for where, place in places.items() if where in own}
                asked = leaders.fetch(
                    some,
                    limit_s=_SILENCE_S,
                    wait_ms=wait_ms,
                    partition_bytes=_LEAST_BYTES,
                    most_bytes=_LEAST_BYTES,
                )
                self._asked[node] = asyncio.ensure_future(asked)

    async def _told(self, wait_s: float) -> dict[SourcePartition, int]:
        """Return the ends from the leaders that answer first."""
        if self._asked:
            await asyncio.wait(
                self._asked.values(), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
        answered = [node for node, task in self._asked.items() if task.done()]
        told = [one for node in answered for one in self._asked.pop(node).result().values()]
        for one in told:
            if one.is_out_of_range:
                raise LogRangeError(f"{OutputPartition(*one.where)} has no offset {one.offset}")
        ends = {one.where: max(one.last_stable, one.offset) for one in told if not one.code}
        # A missing partition has a new leader, or none.
        self._knows_leaders &= bool(ends) and len(ends) == len(told)
        self._heard_s |= dict.fromkeys(ends, time.monotonic())
        return ends

    def _check_heard(self, places: Places) -> None:
        now_s = time.monotonic()
        silent = [
            where
            for where in places
            if now_s - self._heard_s.setdefault(where, now_s) > _SILENCE_S + _KEPT_MS / 1000
        ]
        if silent:
            self._heard_s |= dict.fromkeys(silent, now_s)  # the next leader has as long
            raise RetriableError(f"{OutputPartition(*min(silent))}: no leader answers")


def _partitions_of(topics: Mapping[str, list[int]]) -> set[SourcePartition]:
    return {SourcePartition(topic, number) for topic, some in topics.items() for number in some}
