"""Questions and batches for the leaders of partitions, by the connections of a `Wire`.

An answer says something of each partition. Ask again for partitions that it leaves out.
"""

from __future__ import annotations

import asyncio
import functools
import time
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from sequitur.errors import RequestUnknownError, RetriableError
from sequitur.kafka.log_reading import fetch, last_sequence_in_log, log_ends, timestamp_from
from sequitur.kafka.log_sizes import log_sizes
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import Told, Untold, known_producers, producer_states

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from typing import TypeVar

    from sequitur.kafka.identity import Identity
    from sequitur.kafka.log_reading import Fetched
    from sequitur.kafka.partition import SourcePartition
    from sequitur.kafka.producer_ids import KnownProducer, PartitionAnswer
    from sequitur.kafka.wire import Wire

    T = TypeVar("T")
    _Ask = Callable[[Any], Awaitable[Any]]

_Answer: TypeAlias = "asyncio.Future[PartitionAnswer]"
_ASKED_AT_ONCE: Final = 32
_REQUEST_BYTES: Final = 4 << 20
"""The size of a request, unless its batches are larger. Brokers limit it."""
_DELETED_AFTER_S: Final = 10.0
"""A broker that has just started may not list a topic yet."""
_FAR_APART_S: Final = 60.0
_REPLICA_FOR_S: Final = 60.0
"""A replica in this machine's rack is read or avoided for so long, then the leader is asked."""


class Leaders:
    """Asks the leaders of partitions.

    Batches that are given in one turn of the event loop go to a leader in one request: a broker
    takes the requests of a connection one after the other, each once the one before is answered.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._due: dict[int, list[tuple[OutputPartition, bytes, _Answer]]] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._asked_s: dict[str, float] = {}  # when topics were last asked for, with an answer
        # topics that brokers do not list: since when, and when they were last asked
        self._missing_s: dict[str, tuple[float, float]] = {}
        # replicas that leaders have named for this machine's rack, and until when they count; None
        # if the named replica has failed
        self._replicas: dict[SourcePartition, tuple[int | None, float]] = {}

    async def close(self) -> None:
        """Drop answers for which nobody waits any more, after the connections are closed."""
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def refresh(
        self,
        topics: Collection[str],
        *,
        unless_led: Collection[SourcePartition] = (),
    ) -> bool:
        """Ask the brokers again who leads; whether one answers.

        Who led when it was asked last may not lead now.

        Args:
            topics: The topics.
            unless_led: Do not ask if it was said of all of these, however long ago.
        """
        if unless_led and all(self._wire.leader(*where) is not None for where in unless_led):
            return True
        asked_s = time.monotonic()
        is_told = await self._wire.refresh(topics)
        self._asked_s |= dict.fromkeys(topics, asked_s if is_told else -inf)
        for topic in topics:
            self._note_missing(topic, is_told=is_told)
        return is_told

    def _note_missing(self, topic: str, *, is_told: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        is_listed = self._wire.topic_id(topic) is not None or self._wire.is_unauthorized(topic)
        since_s, last_s = self._missing_s.pop(topic, (now_s, now_s))
        if is_told and not is_listed:
            # Two looks far apart say nothing of the time between them.
            since_s = since_s if now_s - last_s <= _FAR_APART_S else now_s
            self._missing_s[topic] = since_s, now_s

    def is_deleted(self, topic: str) -> bool:
        """Tell whether brokers, each time that they were asked for a while, had no such topic.

        Only of a topic that was there: a broker may not know yet of one that is new.
        """
        since_s, last_s = self._missing_s.get(topic, (0.0, 0.0))
        return last_s - since_s > _DELETED_AFTER_S

    def were_told(self, topics: Iterable[str], within_s: float) -> bool:
        """Tell whether brokers answered a question about all topics that was asked so lately."""
        since_s = min((self._asked_s.get(topic, -inf) for topic in topics), default=-inf)
        return time.monotonic() - since_s < within_s

    async def connect(self, where: OutputPartition) -> int:
        """Return a partition's leader. Connect to it first if need be."""
        node = self._wire.leader(*where)
        if node is None or not (self._wire.is_connected(node) or await self._wire.connect(node)):
            raise RetriableError(f"{where} has no leader that can be reached")
        return node

    def connection(self, where: OutputPartition) -> tuple[int, float] | None:
        """Return a partition's leader, and since when it is connected; None while it is not."""
        node = self._wire.leader(*where)
        since_s = None if node is None else self._wire.connected_since(node)
        return None if node is None or since_s is None else (node, since_s)

    async def states(
        self, partitions: Collection[OutputPartition], producer_id: int
    ) -> dict[OutputPartition, Told]:
        found: dict[OutputPartition, Told] = dict.fromkeys(partitions, Untold.ASK_AGAIN)
        for node, led in self.by_leader(partitions).items():
            try:
                ask = functools.partial(self._wire.ask, node)
                told = await producer_states(ask, led, producer_id)
            except RetriableError:
                continue
            found |= {OutputPartition(*where): state for where, state in told.items()}
        return found

    async def ends(self, partitions: Collection[OutputPartition]) -> dict[OutputPartition, int]:
        """Return the ends of logs for readers, for partitions whose leader answers now."""
        return await self._told(log_ends, partitions)

    async def offsets(
        self, partitions: Collection[OutputPartition], time_ms: int
    ) -> dict[OutputPartition, int]:
        """Return the first offsets at or after a time; see `log_ends`."""
        return await self._told(functools.partial(log_ends, time_ms=time_ms), partitions)

    async def fetch(
        self,
        places: Mapping[SourcePartition, int],
        limit_s: float | None = None,
        *,
        rack: str = "",
        **how: Any,
    ) -> dict[SourcePartition, Fetched]:
        """Return what brokers send from places on, of those that answer now; see `fetch`.

        Leaders are asked; with a rack, replicas there that they have named. A broker that has not
        answered after `limit_s` costs no other its answer.
        """

        async def one(asked: _Asked, some: Mapping[SourcePartition, int]) -> list[Fetched]:
            try:
                async with asyncio.timeout(limit_s):
                    ask = functools.partial(self._wire.ask, asked.node)
                    told = await fetch(ask, some, rack=asked.rack, **how)
            except (RetriableError, TimeoutError):
                told = {}
            return self._heard(asked, some, told)

        by_node: dict[_Asked, dict[SourcePartition, int]] = {}
        for where, offset in places.items():
            if (asked := self._asked(where, rack)) is not None:
                by_node.setdefault(asked, {})[where] = offset
        answers = await asyncio.gather(*(one(asked, some) for asked, some in by_node.items()))
        return {one.where: one for several in answers for one in several}

    def _asked(self, where: SourcePartition, rack: str) -> _Asked | None:
        """Return the broker to ask for records; None if no leader is known."""
        leader = self._wire.leader(*where)
        replica, until_s = self._replicas.get(where, (None, 0.0))
        if rack and time.monotonic() < until_s:
            # A leader that knows the rack would name the failed replica again.
            if replica is not None:
                return _Asked(replica, rack, is_replica=True)
            rack = ""
        return None if leader is None else _Asked(leader, rack)

    def _heard(
        self,
        asked: _Asked,
        places: Iterable[SourcePartition],
        told: Mapping[SourcePartition, Fetched],
    ) -> list[Fetched]:
        """Take note of which replicas are to be asked, and return the answers that count.

        Where a replica gives none, or an error, its leader is asked: the replica may be behind.
        """
        found, until_s = [], time.monotonic() + _REPLICA_FOR_S
        for where in places:
            one = told.get(where)
            if asked.is_replica and (one is None or one.code):
                self._replicas[where] = None, until_s
            elif one is not None:
                found.append(one)
                if one.replica is not None:
                    self._replicas[where] = one.replica, until_s
        return found

    async def log_sizes(
        self, partitions: Collection[OutputPartition]
    ) -> dict[OutputPartition, int]:
        """Return the bytes of logs, for partitions whose leader answers now."""
        return await self._told(log_sizes, partitions, or_without=RequestUnknownError)

    async def timestamps(
        self, places: Iterable[tuple[OutputPartition, int]], ends: Mapping[OutputPartition, int]
    ) -> dict[tuple[OutputPartition, int], int | None]:
        """Return the first committed timestamp from each place on, if the leader answers now."""

        async def one(
            where: OutputPartition, offset: int
        ) -> tuple[tuple[OutputPartition, int], int | None] | None:
            node = self._wire.leader(*where)
            if node is None:
                is_gone = self._wire.topic_id(where.topic) is None
                return ((where, offset), None) if is_gone else None
            ask = functools.partial(self._wire.ask, node)
            try:
                return (where, offset), await timestamp_from(ask, *where, offset, ends[where])
            except RetriableError:
                return None

        found: dict[tuple[OutputPartition, int], int | None] = {}
        wanted = list(places)
        for first in range(0, len(wanted), _ASKED_AT_ONCE):
            some = wanted[first : first + _ASKED_AT_ONCE]
            told = await asyncio.gather(*(one(*place) for place in some))
            found |= dict(filter(None, told))
        return found

    async def producers(
        self, partitions: Collection[OutputPartition]
    ) -> dict[OutputPartition, list[KnownProducer]]:
        """Return the producers that partitions remember, if their leader answers now."""
        return await self._told(known_producers, partitions, or_without=RequestUnknownError)

    async def last_sequence_in_log(
        self, where: OutputPartition, identity: Identity, offset: int
    ) -> int | None:
        """Return an identity's last sequence that readers see from `offset` on, or None."""
        node = self._wire.leader(*where)
        if node is None:
            raise RetriableError(f"{where} has no leader")
        ask = functools.partial(self._wire.ask, node)
        return await last_sequence_in_log(ask, *where, identity, offset)

    def produce(self, where: OutputPartition, batch: bytes) -> asyncio.Future[PartitionAnswer]:
        """Give a batch to a partition's leader, and return its answer to be awaited.

        It goes by the connection of `connection`, or not at all: it is written in the next turn of
        the event loop, and to make another takes longer.
        """
        node = self._wire.leader(*where)
        if node is None or not self._wire.is_connected(node):
            raise RetriableError(f"{where} has no leader that is connected")
        loop = asyncio.get_running_loop()
        answer: _Answer = loop.create_future()
        if node not in self._due:
            self._due[node] = []
            loop.call_soon(self._send, node)
        self._due[node].append((where, batch, answer))
        return answer

    def _send(self, node: int) -> None:
        due = self._due.pop(node)
        while due:
            # A request has one batch per partition, and stays small if possible.
            topics: dict[str, list[tuple[int, bytes]]] = {}
            answers: dict[OutputPartition, _Answer] = {}
            later, size = [], 0
            waiting: set[OutputPartition] = set()
            for one in due:
                where, batch, answer = one
                is_large = size + len(batch) > _REQUEST_BYTES and answers
                if where in answers or where in waiting or is_large:
                    waiting.add(where)
                    later.append(one)
                    continue
                size += len(batch)
                topics.setdefault(where.topic, []).append((where.partition, batch))
                answers[where] = answer
            due = later
            try:
                answered = self._wire.produce(node, list(topics.items()))
            except RetriableError as error:
                _fail(answers.values(), error)
                continue
            request = asyncio.ensure_future(_hand_out(answered, answers))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    async def _told(
        self,
        ask_leader: Callable[[_Ask, Mapping[str, list[int]]], Awaitable[dict[tuple[str, int], T]]],
        partitions: Collection[OutputPartition],
        *,
        or_without: type[Exception] = RetriableError,
    ) -> dict[OutputPartition, T]:
        """Ask partitions' leaders. Partitions whose leader does not answer now are left out."""

        async def one(node: int, led: Mapping[str, list[int]]) -> dict[tuple[str, int], T]:
            try:
                return await ask_leader(functools.partial(self._wire.ask, node), led)
            except (RetriableError, or_without):
                return {}

        by_leader = self.by_leader(partitions).items()
        answers = await asyncio.gather(*(one(node, led) for node, led in by_leader))
        return {OutputPartition(*where): end for told in answers for where, end in told.items()}

    def by_leader(self, partitions: Iterable[OutputPartition]) -> dict[int, dict[str, list[int]]]:
        """Return partitions by the node that leads them. Those without a leader are left out."""
        found: dict[int, dict[str, list[int]]] = {}
        for where in partitions:
            node = self._wire.leader(*where)
            if node is not None:
                found.setdefault(node, {}).setdefault(where.topic, []).append(where.partition)
        return found


class _Asked(NamedTuple):
    node: int
    rack: str
    is_replica: bool = False


async def _hand_out(
    answered: Awaitable[dict[tuple[str, int], PartitionAnswer]],
    answers: dict[OutputPartition, _Answer],
) -> None:
    try:
        found = await answered
    except Exception as error:  # noqa: BLE001 - those who wait for an answer get it
        _fail(answers.values(), error)
        return
    for where, answer in answers.items():
        if where not in found:
            _fail([answer], RetriableError(f"{where}: the answer left it out"))
        elif not answer.done():
            answer.set_result(found[where])


def _fail(answers: Iterable[_Answer], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
            answer.exception()  # retrieved: its batch may have been dropped
