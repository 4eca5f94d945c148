"""A cluster in memory behind a network that loses, delays and reorders: it takes the wire's place.

What the brokers of `partition_model` answer goes through the code that asks real ones: `Leaders`,
DescribeProducers, ListOffsets and Fetch, with the batches as they stand on the wire.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from sequitur.errors import OutcomeUnknownError, RetriableError
from sequitur.kafka.identity import Identity
from sequitur.kafka.partition import OutputPartition
from sequitur.kafka.producer_ids import DescribeProducersRequest, PartitionAnswer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from tests.support.partition_model import PartitionModel

NODES: Final = 3
_NOT_LEADER: Final = 6
_TIMED_OUT: Final = 7
_NOT_AVAILABLE: Final = 78
_LATEST: Final = -1
_EARLIEST: Final = -2
_DEBUGGING_REPLICA: Final = -2
_BROKER_TIMEOUT_S: Final = 30.0
_LATENCY_S: Final = 0.001


@dataclass(slots=True)
class Faults:
    """How likely what is: shares of requests.

    Attributes:
        no_answer: It is carried out, and its answer does not come.
        dropped: It does not arrive.
        late: A batch arrives when nobody waits for it any more.
        late_s: By so much at most.
        paused: Its sender is stopped while it waits.
        paused_s: For so long at most.
        stale: Metadata is as it was before.
    """

    no_answer: float = 0.0
    dropped: float = 0.0
    late: float = 0.0
    late_s: float = 900.0
    paused: float = 0.0
    paused_s: float = 14_400.0
    stale: float = 0.0


@dataclass(slots=True)
class FakeCluster:
    """Partitions, and who has asked what.

    Attributes:
        random: Says which requests fail.
        faults: How likely that is.
        log: What happened, in words.
        epoch: The newest that a driver has got.
        refusal: The code that batches are refused with, unseen; None while they are not.
        clock: Says what time it is.
        is_deleted: Whether its topics are deleted.
    """

    random: Random = field(default_factory=lambda: Random(0))
    faults: Faults = field(default_factory=Faults)
    partitions: dict[OutputPartition, PartitionModel] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    epoch: int = 4
    refusal: int | None = None
    clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
    is_deleted: bool = False
    _waiting: dict[OutputPartition, list[tuple[int, int, Callable[[int], None]]]] = field(
        default_factory=dict
    )

    @property
    def now_s(self) -> float:
        return self.clock()

    def happens(self, share: float) -> bool:
        return share > 0 and self.random.random() < share

    def tell(self, what: str) -> None:
        self.log.append(f"{self.now_s:.3f} {what}")

    def arrive(
        self, node: int, where: OutputPartition, raw: bytes, on: Callable[[int], None]
    ) -> None:
        """A batch reaches a broker, which answers once it is replicated."""
        partition = self.partitions[where]
        if partition.leader != node or self.is_deleted:
            on(_NOT_LEADER)
            return
        if self.refusal is not None:
            on(self.refusal)
            return
        before = partition.end
        code, end = partition.append(raw, self.now_s)
        self.tell(f"batch at {node}: code {code}, log {before} -> {partition.end}")
        if code or partition.replicated >= end:
            on(code)
            return
        waiting = (node, end, on)
        self._waiting.setdefault(where, []).append(waiting)
        loop = asyncio.get_running_loop()
        loop.call_later(_BROKER_TIMEOUT_S, self._time_out, where, waiting)

    def settle(self, where: OutputPartition) -> None:
        """Answer those who waited for what has happened."""
        partition, left = self.partitions[where], []
        for one in self._waiting.get(where, ()):
            node, end, on = one
            if node != partition.leader:
                on(_NOT_LEADER)
            elif end <= partition.replicated:
                on(0)
            else:
                left.append(one)
        self._waiting[where] = left

    def _time_out(self, where: OutputPartition, waiting: Any) -> None:
        if waiting in self._waiting.get(where, ()):
            self._waiting[where].remove(waiting)
            waiting[2](_TIMED_OUT)

    def replicate(self, where: OutputPartition, most: int | None = None) -> None:
        """Followers catch up, and those who waited for that are answered."""
        self.partitions[where].replicate(most)
        self.settle(where)

    def move(self, where: OutputPartition, kept: int, shown: int | None = None) -> None:
        partition = self.partitions[where]
        partition.move((partition.leader + 1) % NODES, kept, shown)
        self.tell(f"{partition.leader} leads, log ends at {partition.end}")
        self.settle(where)


class FakeWire:
    """What one process has of the cluster; stands for `sequitur.kafka.wire.Wire`."""

    cluster_id = "cluster"

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._leaders: dict[OutputPartition, int] = {}
        self._connections: dict[int, float] = {}
        self._since: dict[int, float] = {}

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def topic_id(self, _topic: str) -> bytes | None:
        return None if self.cluster.is_deleted else b"topic"

    def is_unauthorized(self, _topic: str) -> bool:
        return False

    def leader(self, topic: str, partition: int) -> int | None:
        return self._leaders.get(OutputPartition(topic, partition))

    async def refresh(self, _topics: Iterable[str] = ()) -> bool:
        """Look who leads; a broker that is behind says what was."""
        await asyncio.sleep(_LATENCY_S)
        if self.cluster.is_deleted:
            self._leaders.clear()
            return True
        for where, partition in self.cluster.partitions.items():
            if where not in self._leaders or not self.cluster.happens(self.cluster.faults.stale):
                self._leaders[where] = partition.leader
        return True

    def is_connected(self, node: int) -> bool:
        return node in self._connections

    async def connect(self, node: int) -> bool:
        await asyncio.sleep(_LATENCY_S)
        if node not in self._connections:
            self._connections[node] = self._since[node] = self.cluster.now_s
        return True

    def connected_since(self, node: int) -> float | None:
        return self._since[node] if node in self._connections else None

    def disconnect(self) -> None:
        """All connections break, with nothing on its way."""
        self._connections.clear()

    async def claim(self, _name: str, _held: Identity | None) -> Identity:
        self.cluster.epoch += 1
        return Identity(7, self.cluster.epoch)

    async def max_message_bytes(self, _topic: str) -> int:
        return 1 << 20

    def produce(
        self, node: int, topics: list[tuple[str, list[tuple[int, bytes]]]]
    ) -> Awaitable[dict[tuple[str, int], PartitionAnswer]]:
        """Batches of a connection arrive in their order; whoever sent them may be gone by then."""
        if node not in self._connections:
            raise RetriableError("no connection")
        cluster, faults = self.cluster, self.cluster.faults
        loop = asyncio.get_running_loop()
        batches = {
            OutputPartition(topic, number): raw for topic, some in topics for number, raw in some
        }
        answer: asyncio.Future[dict[tuple[str, int], PartitionAnswer]] = loop.create_future()
        found: dict[tuple[str, int], PartitionAnswer] = {}
        is_lost = cluster.happens(faults.no_answer)

        def answered(where: OutputPartition, code: int) -> None:
            found[where] = PartitionAnswer(code, -1)
            if len(found) == len(batches) and not is_lost:
                self._give(answer, found)

        def arrive() -> None:
            for where, raw in batches.items():
                cluster.arrive(node, where, raw, functools.partial(answered, where))

        if is_lost or cluster.happens(faults.dropped):
            # The connection is gone, and what is behind it on its way may arrive all the same.
            if is_lost:
                late_s = cluster.random.random() * faults.late_s
                after_s = late_s if cluster.happens(faults.late) else _LATENCY_S
                loop.call_at(max(self._connections[node], loop.time() + after_s), arrive)
            self._connections.pop(node)
            loop.call_later(
                cluster.random.random(), _fail, answer, OutcomeUnknownError("the connection broke")
            )
            return answer
        at_s = max(self._connections[node], loop.time() + _LATENCY_S * cluster.random.random())
        self._connections[node] = at_s
        loop.call_at(at_s, arrive)
        # As the wire's request timeout: an answer that does not come.
        loop.call_later(2 * _BROKER_TIMEOUT_S, _fail, answer, OutcomeUnknownError("no answer"))
        return answer

    def _give(self, answer: asyncio.Future[Any], found: Any) -> None:
        if not answer.done():
            cluster = self.cluster
            pause_s = cluster.random.random() * cluster.faults.paused_s
            after_s = pause_s if cluster.happens(cluster.faults.paused) else _LATENCY_S
            asyncio.get_running_loop().call_later(after_s, _set, answer, found)

    async def ask(self, node: int, request: Any) -> Any:
        cluster, faults = self.cluster, self.cluster.faults
        await asyncio.sleep(_LATENCY_S * cluster.random.random())
        if cluster.happens(faults.no_answer + faults.dropped):
            raise RetriableError("the connection broke")
        answer = await self._answer(node, request)
        is_paused = cluster.happens(faults.paused)
        await asyncio.sleep(
            cluster.random.random() * (faults.paused_s if is_paused else _LATENCY_S)
        )
        return answer

    async def _answer(self, node: int, request: Any) -> Any:
        if isinstance(request, DescribeProducersRequest):
            return self._producers(node, request._partitions)
        if isinstance(request, OffsetRequest):
            return self._offsets(node, request)
        assert isinstance(request, FetchRequest)
        topics = [
            (topic, [self._fetched(node, topic, number, offset) for number, offset, _ in some])
            for topic, some in request.topics
        ]
        if not any(found[-1] for _, some in topics for found in some):
            await asyncio.sleep(request._max_wait_ms / 1000)
        return SimpleNamespace(API_VERSION=4, topics=topics)

    def _producers(self, node: int, wanted: Mapping[str, Iterable[int]]) -> Any:
        described: list[Any] = []
        for topic, numbers in wanted.items():
            of_topic: list[Any] = []
            for number in numbers:
                partition = self.cluster.partitions[OutputPartition(topic, number)]
                known: list[Any] = [
                    (producer_id, one.epoch, one.last, 0, 0, -1, {})
                    for producer_id, one in partition.producers.items()
                ]
                code = 0 if partition.leader == node else _NOT_LEADER
                of_topic.append((number, code, "", [] if code else known, {}))
            described.append((topic, of_topic, {}))
        return SimpleNamespace(topics=described)

    def _offsets(self, node: int, request: Any) -> Any:
        found: list[Any] = []
        for topic, wanted in request._topics:
            of_topic: list[Any] = []
            for number, time_ms in wanted:
                partition = self.cluster.partitions[OutputPartition(topic, number)]
                code, offset = 0, partition.shown
                if partition.leader != node:
                    code = _NOT_LEADER
                elif time_ms == _EARLIEST:
                    offset = partition.start
                elif request._replica_id == _DEBUGGING_REPLICA:
                    offset = partition.end
                elif partition.lags:
                    code = _NOT_AVAILABLE
                of_topic.append((number, code, -1, offset))
            found.append((topic, of_topic))
        return SimpleNamespace(topics=found)

    def _fetched(self, node: int, topic: str, number: int, offset: int) -> tuple[Any, ...]:
        partition = self.cluster.partitions[OutputPartition(topic, number)]
        code = 0 if partition.leader == node else _NOT_LEADER
        if not code and not partition.start <= offset <= partition.end:
            code = 1
        batches = [
            one for one in partition.batches if one.end > offset and one.end <= partition.shown
        ]
        # One at a time: whoever reads asks again, and others may lead by then.
        data = b"".join(one.offset.to_bytes(8, "big") + one.raw[8:] for one in batches[:1])
        return number, code, partition.shown, partition.shown, [], b"" if code else data


def _set(answer: asyncio.Future[Any], found: Any) -> None:
    if not answer.done():
        answer.set_result(found)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # retrieved: its sender may be gone
