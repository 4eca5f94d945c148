"""A cluster in memory that takes the place of the wire: real batches, scripted faults."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import (
    FatalError,
    NameNotAllowedError,
    OutcomeUnknownError,
    RetriableError,
    TakenOverError,
)
from sequitur.kafka.error_codes import Answer
from sequitur.kafka.identity import Identity
from sequitur.kafka.producer_ids import PartitionAnswer
from sequitur.kafka.record_batch import Stamp, count_of, records_of
from tests.property.model_broker import ModelBroker, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from sequitur.kafka.record_batch import StoredRecord

LOST = "lost"
"""The broker takes the batch, and the connection breaks before it answers."""
DROPPED = "dropped"
"""The connection breaks before the broker sees the batch."""
DELAYED = "delayed"
"""The connection breaks, and the broker sees the batch only later (`FakeWire.deliver`)."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The leader appends the batch, and answers with an error all the same (DelayedProduce).

    Attributes:
        code: Kafka's error code.
    """

    code: int


_CODES: Final = {Answer.PERSISTED: 0, Answer.OUT_OF_ORDER: 45, Answer.FENCED: 47}
_NODE: Final = 1
_RANGE: Final = (
    "Timestamp 1 of message with offset 0 is out of range. The timestamp should be within [{}, {}]"
)

Fault = int | str | Appended | None


class FakeWire:
    """Stands for `sequitur.kafka.wire.Wire`; every partition is led by broker 1.

    Args:
        partitions: Partitions of every topic.
        fault: Called for each batch that arrives, with its records; what goes wrong with it: one of
            Kafka's error codes, with which it is not appended, Appended, LOST, DROPPED or DELAYED.
    """

    def __init__(
        self,
        partitions: int = 1,
        fault: Callable[[list[StoredRecord]], Fault] = lambda _records: None,
    ) -> None:
        self.partition_count = partitions
        self.topic_generation = 0
        self.on_update: Callable[[], None] = lambda: None
        self.fault = fault
        self.reachable = True
        self.closed = False
        self.connected = True
        self.knows_leaders = True
        self.broken = asyncio.Event()
        self.max_bytes = 1 << 20
        self.now_ms: Callable[[], int] | None = None
        self.after_max_ms = 3_600_000
        self.before_max_ms = 31_536_000_000
        self.range_text = _RANGE
        self.misdated = 0
        self.append_ms = -1
        self.configs_known = True
        self.brokers: dict[tuple[str, int], ModelBroker] = defaultdict(ModelBroker)
        self.records: dict[tuple[str, int], list[StoredRecord]] = defaultdict(list)
        self.delayed: deque[tuple[tuple[str, int], bytes]] = deque()
        self.on_judged: Callable[[], None] = lambda: None
        self.requests = 0
        self.ids = 0
        self.cluster_id: str | None = "cluster"
        self.names: dict[str, Identity] = {}
        self.may_use_names = True
        self.unauthorized: set[str] = set()
        self.forgotten: list[str] = []
        self.created: set[str] = set()

    async def start(self) -> None:
        if not self.reachable:
            raise RetriableError("no broker answers")

    async def close(self) -> None:
        self.closed = True

    def watch(
        self, on_update: Callable[[], None], _on_failure: Callable[[Exception], None]
    ) -> None:
        """Remember whom to tell of refreshed metadata, which is never given up."""
        self.on_update = on_update

    def topic_id(self, _topic: str) -> bytes | None:
        return b"%d" % self.topic_generation

    def is_unauthorized(self, topic: str) -> bool:
        return topic in self.unauthorized

    def partitions(self, topic: str) -> int | None:
        is_missing = topic.startswith("missing") and topic not in self.created
        return None if is_missing else self.partition_count

    def leader(self, _topic: str, partition: int) -> int | None:
        return _NODE if self.knows_leaders and partition < self.partition_count else None

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)

    async def create_topic(self, topic: str) -> None:
        await asyncio.sleep(0)
        self.created.add(topic)

    async def refresh(self, _topics: Iterable[str] = ()) -> bool:
        """Know the leaders, while a broker is reachable."""
        await asyncio.sleep(0)
        self.knows_leaders |= self.reachable
        if self.reachable:
            self.on_update()
        return self.reachable

    def is_connected(self, _node: int) -> bool:
        return self.connected

    async def connect(self, _node: int) -> bool:
        """Works while the broker is reachable."""
        await asyncio.sleep(0)
        self.connected = self.reachable
        return self.connected

    async def new_producer_id(self) -> Identity:
        if not self.reachable:
            raise RetriableError("no broker answers")
        self.ids += 1
        return Identity(self.ids, 0)

    async def claim(self, transactional_id: str, held: Identity | None) -> Identity:
        if not self.reachable:
            raise RetriableError("no broker answers")
        if not self.may_use_names:
            raise NameNotAllowedError("not allowed")
        current = self.names.get(transactional_id)
        if held is not None and current not in (None, held):
            raise TakenOverError(transactional_id)
        bumped = None if current is None else current.bumped()
        self.names[transactional_id] = bumped or await self.new_producer_id()
        return self.names[transactional_id]

    def deliver(self) -> None:
        """What was on its way arrives, whoever sent it and whether he is still there or not."""
        while self.delayed:
            self._append(*self.delayed.popleft())

    async def max_message_bytes(self, _topic: str) -> int:
        return self.max_bytes

    async def timestamp_after_max_ms(self, _topic: str) -> int:
        """How far ahead of `now_ms` records may be."""
        await asyncio.sleep(0)
        if not self.configs_known:
            raise FatalError("the configuration of topic t: TOPIC_AUTHORIZATION_FAILED")
        return self.after_max_ms

    async def last_sequence(self, topic: str, partition: int, identity: Identity) -> int | None:
        if not (self.reachable and self.knows_leaders) or partition >= self.partition_count:
            raise RetriableError("no broker answers")
        last = self.brokers[topic, partition].describe(identity)
        self.on_judged()
        return last

    async def find_events(
        self, topic: str, partition: int, wanted: Collection[bytes], since_ms: int
    ) -> set[bytes]:
        if not self.reachable:
            raise RetriableError("no broker answers")
        ids = {
            record.headers[-1][1]
            for record in self.records[topic, partition]
            if record.timestamp_ms >= since_ms
        }
        self.on_judged()
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
                broken |= fault in (LOST, DROPPED, DELAYED)
                if fault == DELAYED:
                    self.delayed.append(((topic, partition), data))
                if fault is None or fault == LOST or isinstance(fault, Appended):
                    answers[topic, partition] = self._append((topic, partition), data)
                if isinstance(fault, Appended) and answers[topic, partition].code == 0:
                    answers[topic, partition] = PartitionAnswer(fault.code, -1)
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
        if self.now_ms is not None:
            # As Kafka's LogValidator, which looks at a batch before at who sent it.
            now_ms = self.now_ms()
            first_ms, last_ms = now_ms - self.before_max_ms, now_ms + self.after_max_ms
            times_ms = [record.timestamp_ms for record in records_of(data)]
            if min(times_ms) < first_ms or max(times_ms) > last_ms:
                self.misdated += 1
                return PartitionAnswer(32, -1, self.range_text.format(first_ms, last_ms))
        stamp = Stamp.of(data)
        numbers = tuple(range(count_of(data)))
        request = Request(Identity(stamp.producer_id, stamp.epoch), stamp.base_sequence, numbers)
        broker = self.brokers[place]
        before = len(broker.log)
        answer, offset = broker.append(request)
        if len(broker.log) > before:
            self.records[place] += records_of(data)
        where = -1 if offset is None else offset
        return PartitionAnswer(_CODES[answer], where, append_ms=self.append_ms)
