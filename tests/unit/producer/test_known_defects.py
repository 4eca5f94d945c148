"""Defects that other clients have, and that we must not have; docs/guarantees.md lists them all."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.producer import NotPersisted, Persisted, Record
from tests.support.fake_wire import FakeWire
from tests.support.outcomes import InLog
from tests.support.producers import make_producer, use
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable

_POLICY_VIOLATION = 44
_NOT_ENOUGH_REPLICAS = 19


class _HeldWire(FakeWire):
    """Its broker takes each request at once, and answers it when `answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = asyncio.Event()
        self.unanswered = 0
        self.most_unanswered = 0
        self.arrived = asyncio.Condition()

    def produce(self, node: int, topics: list[tuple[str, list[tuple[int, bytes]]]]) -> Any:
        return self._held(super().produce(node, topics))

    async def _held(self, answers: Awaitable[Any]) -> Any:
        self.unanswered += 1
        self.most_unanswered = max(self.most_unanswered, self.unanswered)
        async with self.arrived:
            self.arrived.notify_all()
        await self.answer.wait()
        self.unanswered -= 1
        return await answers


@pytest.mark.promise("in-delivered-batches-sent")
async def test_delivered_batches_are_not_sent_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of a call's events is refused: the others went once (confluent-kafka-python #2320)."""
    wire = FakeWire(partitions=3)
    use(wire, monkeypatch)
    seen: Counter[bytes] = Counter()

    def refuse_some(records: list[Any]) -> int | None:
        seen.update(record.value for record in records)
        bad = any(record.value.startswith(b"bad") for record in records)
        return _POLICY_VIOLATION if bad else None

    wire.fault = refuse_some
    events = [Record(b"%d" % n, partition=n % 2) for n in range(10)]
    refused = [Record(b"bad%d" % n, partition=2) for n in range(5)]
    async with (
        asyncio.timeout(PATIENCE_S),
        make_producer(linger=timedelta(milliseconds=5)) as producer,
    ):
        result = await (await producer.send_many("t", [*events, *refused]))
        await (await producer.send_many("t", [Record(b"later", partition=p) for p in range(3)]))
    assert (result.persisted, len(result.failures)) == (10, 5)
    assert seen == Counter({**{r.value or b"": 1 for r in [*events, *refused]}, b"later": 3})
    assert sum(len(wire.records["t", p]) for p in range(3)) == 13


@pytest.mark.promise("in-batch-partition-flight")
async def test_five_batches_of_a_partition_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one after the other's answer, as in aiokafka; and no sixth, which nobody remembers."""
    wire = _HeldWire()
    use(wire, monkeypatch)
    async with asyncio.timeout(PATIENCE_S), make_producer(batch_size=1) as producer:
        wire.answer.set()
        await (await producer.send("t", b"first"))  # it goes alone: the broker does not know us yet
        wire.answer.clear()
        wire.most_unanswered = 0
        deliveries = [await producer.send("t", b"%d" % n) for n in range(20)]
        async with wire.arrived:
            await wire.arrived.wait_for(lambda: wire.unanswered == 5)
        assert producer.statistics().batches_in_flight == 5
        wire.answer.set()
        outcomes = await asyncio.gather(*deliveries)
    assert outcomes == [InLog(0, 1 + n) for n in range(20)]
    assert wire.most_unanswered == 5


@pytest.mark.promise("in-fixed-wait-attempts")
@in_virtual_time
async def test_the_waits_between_attempts_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker in trouble is not asked every 100 ms for ever, as aiokafka does."""
    wire = FakeWire()
    use(wire, monkeypatch)
    attempts_s: list[float] = []

    def too_few_replicas(_records: list[Any]) -> int | None:
        attempts_s.append(asyncio.get_running_loop().time())
        return _NOT_ENOUGH_REPLICAS if len(attempts_s) < 6 else None

    wire.fault = too_few_replicas
    waits = {
        "retry_backoff": timedelta(milliseconds=10),
        "retry_backoff_max": timedelta(milliseconds=80),
    }
    async with asyncio.timeout(PATIENCE_S), make_producer(**waits) as producer:
        assert isinstance(await (await producer.send("t", b"1")), Persisted)
    between_ms = [(b - a) * 1000 for a, b in pairwise(attempts_s)]
    least_ms = [0.8 * wait for wait in (10, 20, 40, 80, 80)]
    assert all(found >= least for found, least in zip(between_ms, least_ms, strict=True))


@pytest.mark.promise("in-sequence-number-assigned")
async def test_a_refused_event_is_told_and_the_partition_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five batches in flight, the second refused: no number is missing (aiokafka #1017)."""
    wire = FakeWire()
    use(wire, monkeypatch)
    async with asyncio.timeout(PATIENCE_S), make_producer(batch_size=1) as producer:
        await (await producer.send("t", b"first"))
        wire.fault = lambda records: _POLICY_VIOLATION if records[0].value == b"1" else None
        deliveries = [await producer.send("t", b"%d" % n) for n in range(10)]
        outcomes = await asyncio.gather(*deliveries)
    refused = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, NotPersisted)]
    assert refused == [1]
    values = [record.value for record in wire.records["t", 0]]
    assert values == [b"first", *(b"%d" % n for n in range(10) if n != 1)]
