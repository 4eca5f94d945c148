"""A cluster in memory that takes the place of the wire: real batches, scripted faults."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from producer._answers import Answer
from producer._batch import count_of, records_of, stamp_of
from producer._errors import OutcomeUnknownError, RetriableError
from producer._slot import Identity
from producer._wire import PartitionAnswer
from tests.property.model_broker import ModelBroker, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from producer._batch import Record

LOST = "lost"
"""The broker takes the batch, and the connection breaks before it answers."""
DROPPED = "dropped"
"""The connection breaks before the broker sees the batch."""

_CODES: Final = {Answer.PERSISTED: 0, Answer.OUT_OF_ORDER: 45, Answer.FENCED: 47}
_NODE: Final = 1

Fault = int | str | None


class FakeWire:
    """Stands for `producer._wire.Wire`; every partition is led by broker 1.

    Args:
        partitions: Partitions of every topic.
        fault: Called for each batch that arrives, with its records; what goes wrong with it: one of
            Kafka's error codes, LOST or DROPPED.
    """

    def __init__(
        self,
        partitions: int = 1,
        fault: Callable[[list[Record]], Fault] = lambda _records: None,
    ) -> None:
        self.partition_count = partitions
        self.fault = fault
        self.reachable = True
        self.closed = False
        self.connected = True
        self.broken = asyncio.Event()
        self.max_bytes = 1 << 20
        self.brokers: dict[tuple[str, int], ModelBroker] = defaultdict(ModelBroker)
        self.records: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.requests = 0
        self.ids = 0

    async def start(self) -> None:
        """Be reachable, or not."""
        if not self.reachable:
            raise RetriableError("no broker answers")

    async def close(self) -> None:
        """Remember it."""
        self.closed = True

    def partitions(self, topic: str) -> int | None:
        """As many as were asked for."""
        return None if topic.startswith("missing") else self.partition_count

    def leader(self, _topic: str, partition: int) -> int | None:
        """There is one broker."""
        return _NODE if partition < self.partition_count else None

    async def refresh(self, _topics: Iterable[str] = ()) -> bool:
        """Nothing changes."""
        await asyncio.sleep(0)
        return self.reachable

    def is_connected(self, _node: int) -> bool:
        """Until the connection breaks."""
        return self.connected

    async def connect(self, _node: int) -> bool:
        """Works while the broker is reachable."""
        await asyncio.sleep(0)
        self.connected = self.reachable
        return self.connected

    async def new_producer_id(self) -> Identity:
        """Counts."""
        if not self.reachable:
            raise RetriableError("no broker answers")
        self.ids += 1
        return Identity(self.ids, 0)

    async def max_message_bytes(self, _topic: str) -> int:
        """The topic's limit."""
        return self.max_bytes

    async def last_sequence(self, topic: str, partition: int, identity: Identity) -> int | None:
        """What the model knows."""
        if not self.reachable or partition >= self.partition_count:
            raise RetriableError("no broker answers")
        return self.brokers[topic, partition].describe(identity)

    async def find_events(
        self, topic: str, partition: int, wanted: Collection[bytes], since_ms: int
    ) -> set[bytes]:
        """What the log holds."""
        if not self.reachable:
            raise RetriableError("no broker answers")
        ids = {
            record.headers[-1][1]
            for record in self.records[topic, partition]
            if record.timestamp_ms >= since_ms
        }
        return {event_id for event_id in wanted if event_id in ids}

    def produce(
        self, _node: int, topics: list[tuple[str, list[tuple[int, bytes]]]]
    ) -> Awaitable[dict[tuple[str, int], PartitionAnswer]]:
        """Append each batch, or let it run into its fault."""
        if not (self.connected and self.reachable):
            raise RetriableError("no connection")
        self.requests += 1
        answers: dict[tuple[str, int], PartitionAnswer] = {}
        broken = False
        for topic, batches in topics:
            for partition, data in batches:
                fault = self.fault(records_of(data))
                broken |= fault in (LOST, DROPPED)
                if fault is None or fault == LOST:
                    answers[topic, partition] = self._append((topic, partition), data)
                elif isinstance(fault, int):
                    answers[topic, partition] = PartitionAnswer(fault, -1)
        return self._answer(answers, broken=broken)

    async def _answer(self, answers: Any, *, broken: bool) -> Any:
        await asyncio.sleep(0)
        if broken:
            self.connected = False
            self.broken.set()
            raise OutcomeUnknownError("the connection broke")
        return answers

    def _append(self, place: tuple[str, int], data: bytes) -> PartitionAnswer:
        stamp = stamp_of(data)
        numbers = tuple(range(count_of(data)))
        request = Request(Identity(stamp.producer_id, stamp.epoch), stamp.base_sequence, numbers)
        broker = self.brokers[place]
        before = len(broker.log)
        answer, offset = broker.append(request)
        if len(broker.log) > before:
            self.records[place] += records_of(data)
        return PartitionAnswer(_CODES[answer], -1 if offset is None else offset)
