"""Topics that take no batch for a time: what is sent keeps its place, and others go on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import FatalError, RetriableError
from sequitur.producer import (
    IdempotentProducer,
    NotPersisted,
    Persisted,
    PossiblyPersisted,
    ProducerSettings,
    Record,
)
from sequitur.producer.batching.batch import Batch
from sequitur.producer.batching.budget import BufferBudget, Outstanding
from sequitur.producer.delivery.barred import BarredTopics
from sequitur.producer.delivery.send_queues import SendQueues
from sequitur.producer.journal.report import inspect_journal
from tests.support.outcomes import InLog
from tests.support.producers import FAST, let_pass, make_producer, scripted, values_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sequitur.kafka.record_batch import StoredRecord
    from sequitur.producer._outcome import GivenUp
    from tests.support.fake_wire import FakeWire, Fault

_DENIED = 29  # TOPIC_AUTHORIZATION_FAILED
_WHY = "topic t: TOPIC_AUTHORIZATION_FAILED: the right WRITE is missing"
_IN_TIME_S = PATIENCE_S


class _Right:
    """The right to write to one topic, taken and given back; counts what was refused meanwhile."""

    def __init__(self, wire: FakeWire, code: int = _DENIED) -> None:
        self.is_gone = True
        self.refused = asyncio.Queue[bytes | None]()
        self._code = code
        wire.fault = self._fault

    def _fault(self, records: list[StoredRecord]) -> Fault:
        if not self.is_gone or (records[0].value or b"").startswith(b"other"):
            return None
        self.refused.put_nowait(records[0].value)
        return self._code

    async def refuses(self, times: int) -> None:
        """Wait until so many batches were refused."""
        for _ in range(times):
            await self.refused.get()


@pytest.mark.promise("in-right-write-topic")
@pytest.mark.parametrize("code", [29, 31])
async def test_a_lost_right_keeps_what_was_sent_in_its_place(wire: FakeWire, code: int) -> None:
    """Codes that a broker gives before the append: the same numbers go out until it is back."""
    async with asyncio.timeout(_IN_TIME_S), make_producer(batch_size=1) as producer:
        await producer.send_and_wait("t", b"0")
        right = _Right(wire, code)
        deliveries = [await producer.send("t", b"%d" % number) for number in range(1, 9)]
        await right.refuses(20)
        assert "events wait" in (producer.blocked_reason() or "")
        assert not any(delivery.done() for delivery in deliveries)
        right.is_gone = False
        assert await asyncio.gather(*deliveries) == [InLog(0, n) for n in range(1, 9)]
        assert producer.blocked_reason() is None
        assert producer.statistics().renewals == 0
    assert values_of(wire) == [b"%d" % number for number in range(9)]


@pytest.mark.promise("in-right-write-topic")
async def test_without_the_right_events_are_not_persisted_in_time(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name; and the topic is not held for ever, when nothing of it is left to be tried."""
    timeout = timedelta(hours=1)
    async with make_producer(delivery_timeout=timeout) as producer:
        await producer.send_and_wait("t", b"0")
        right = _Right(wire)
        delivery = await producer.send("t", b"1")
        await right.refuses(1)
        let_pass(timeout, monkeypatch)
        outcome = await delivery
        assert outcome == NotPersisted(f"no answer within delivery_timeout: {_WHY}")
        await producer.wait_for_topic("t")
        right.is_gone = False
        assert isinstance(await (await producer.send("t", b"2")), Persisted)
    assert values_of(wire) == [b"0", b"2"]


@pytest.mark.promise("in-right-write-topic")
async def test_a_topic_that_never_took_a_batch_is_refused_at_once(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """Nobody had the right, so nobody has lost it; the journal says which topics took batches."""
    right = _Right(wire)
    async with asyncio.timeout(_IN_TIME_S), make() as producer:
        assert await (await producer.send("t", b"1")) == NotPersisted(_WHY)
    right.is_gone = False
    async with asyncio.timeout(_IN_TIME_S), make() as producer:
        await producer.send_and_wait("t", b"2")
    right.is_gone, right.refused = True, asyncio.Queue()
    async with asyncio.timeout(_IN_TIME_S), make() as producer:
        delivery = await producer.send("t", b"3")
        await right.refuses(3)
        assert not delivery.done()
        right.is_gone = False
        assert isinstance(await delivery, Persisted)


async def test_who_waits_for_topics_waits_for_the_first_right_too(wire: FakeWire) -> None:
    """As the daemon does: it has nowhere else to put its events."""
    right = _Right(wire)
    patient = {"topic_timeout": timedelta(hours=1), "delivery_timeout": timedelta(hours=1)}
    async with asyncio.timeout(_IN_TIME_S), make_producer(**patient) as producer:
        delivery = await producer.send("t", b"1")
        await right.refuses(3)
        right.is_gone = False
        assert await delivery == InLog(0, 0)


async def test_metadata_without_the_topic_say_the_same(wire: FakeWire) -> None:
    """Who may not even know of a topic hears of no leader: the reason is the right."""
    async with asyncio.timeout(_IN_TIME_S), make_producer() as producer:
        await producer.send_and_wait("t", b"0")
        wire.unauthorized.add("t")
        wire.knows_leaders = wire.reachable = False
        delivery = await producer.send("t", b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(delivery), 0.05)
        assert producer.blocked_reason() == f"{_WHY}: events wait"
        wire.unauthorized.clear()
        wire.reachable = True
        assert await delivery == InLog(0, 1)
        assert producer.blocked_reason() is None


@pytest.mark.promise("in-right-write-topic")
@pytest.mark.parametrize("journals", [False, True])
async def test_a_barred_topic_leaves_room_to_the_others(
    wire: FakeWire, tmp_path: Path, journals: bool
) -> None:
    """What it had taken before keeps nobody waiting; its own senders wait, those of others not."""
    wire.partition_count = 2
    journal = {"journal": tmp_path / "journal", "name": "me"} if journals else {}
    room = {"buffer_size": 80_000, "batch_size": 1_000, "compression": "none"}
    producer = make_producer(**room, **journal)
    held = Record(b"x" * 900, partition=0)
    async with asyncio.timeout(_IN_TIME_S), producer:
        await producer.send_and_wait("t", b"0")
        await producer.send_and_wait("o", b"other")
        right = _Right(wire)
        # In one step of the loop, as long as there is room: the buffer is full of it.
        full = asyncio.create_task(producer.send_many("t", [held] * 120))
        await right.refuses(5)
        assert producer.statistics().accepted < 122
        for number in range(200):
            await producer.send_and_wait("o", b"other%d" % number)
        assert producer.statistics().accepted < 322
        assert not full.done()
        right.is_gone = False
        assert (await (await full)).persisted == 120
    assert [record.value for record in wire.records["t", 0]].count(held.value) == 120


async def test_who_waits_for_room_of_a_barred_topic_hears_why() -> None:
    """After `delivery_timeout`; and at once when the producer is closed."""
    loop = asyncio.get_running_loop()
    budget = BufferBudget(loop, 4_000)
    outstanding = Outstanding(budget)
    outstanding.take_over(Batch("t", 0, 0.0, 0, size=1_000))
    barred = BarredTopics(SendQueues(), outstanding, budget, journal_bytes=None, journal_limit=0)
    barred.bar("t", "no right")
    await barred.admit("other", loop.time())
    with pytest.raises(RetriableError, match="not accepted within delivery_timeout: no right"):
        await barred.admit("t", loop.time() + 0.01)
    waiting = asyncio.create_task(barred.admit("t", loop.time() + _IN_TIME_S))
    await asyncio.sleep(0)
    barred.close()
    with pytest.raises(RetriableError, match="closed"):
        await waiting


@pytest.mark.promise("in-broker-answers-producer")
@pytest.mark.parametrize("code", [21, 35, 42, 43, 76])
async def test_what_is_our_fault_ends_the_producer_and_the_journal_keeps_all(
    wire: FakeWire, tmp_path: Path, code: int
) -> None:
    """No event is at fault, so none is given up: the next start, as it should be, sends them."""
    given_up: list[GivenUp] = []

    def life() -> IdempotentProducer:
        chosen = ProducerSettings(name="me", journal=tmp_path / "journal", **FAST)

        def keep(events: Sequence[GivenUp]) -> None:
            given_up.extend(events)

        return IdempotentProducer("unused:1", chosen, on_given_up=keep)

    wire.fault = scripted(code)
    async with asyncio.timeout(_IN_TIME_S), life() as producer:
        outcome = await (await producer.send("t", b"1"))
        failure = await producer.failure()
    assert isinstance(failure, FatalError)
    assert str(failure).startswith("topic t: ")
    assert isinstance(outcome, PossiblyPersisted)
    assert "the journal keeps it for the next start" in outcome.reason
    (partition,) = inspect_journal(tmp_path / "journal").partitions
    assert len(partition.unacked) == 1
    async with asyncio.timeout(_IN_TIME_S), life() as producer:
        await producer.flush()
    assert values_of(wire) == [b"1"]
    assert given_up == []
