"""No event is refused for good by what brokers said a while ago: they are asked again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import BufferFullError, ProducerClosedError
from sequitur.producer import IdempotentProducer, NotPersisted, Outcome, ProducerSettings, Record
from sequitur.producer.journal.frames import SourcePosition
from tests.support.outcomes import InLog
from tests.support.producers import FAST, let_pass, make_producer, values_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.fake_wire import FakeWire

_LARGE = bytes(range(256)) * 20


async def _let_a_while_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what brokers said get old: longer than the second for which they are not asked again."""
    let_pass(timedelta(seconds=2), monkeypatch)
    for _ in range(3):
        await asyncio.sleep(0)


async def _send(producer: IdempotentProducer, record: Record) -> Outcome:
    return await (await producer.send("t", record.value, record.key, partition=record.partition))


async def _send_nowait(producer: IdempotentProducer, record: Record) -> Outcome:
    """Send it as users of the call do: by `send` where that would wait."""
    outcomes: list[Outcome] = []
    with pytest.raises(BufferFullError, match="brokers are asked again"):
        producer.send_nowait("t", record.value, partition=record.partition)
    while not outcomes:
        try:
            producer.send_nowait(
                "t", record.value, partition=record.partition, on_delivery=outcomes.append
            )
        except BufferFullError:
            await asyncio.sleep(0)
        else:
            await producer.flush()
    return outcomes[0]


async def _send_many(producer: IdempotentProducer, record: Record) -> Outcome | None:
    ticket = await producer.send_many("t", [Record(b"before"), record, Record(b"after")])
    result = await ticket
    assert result.accepted == 3
    return result.failures[0].outcome if result.failures else None


async def _accept(producer: IdempotentProducer, record: Record) -> Outcome | None:
    ticket = await producer.accept("t", [Record(b"before"), record], SourcePosition("s", b"1"))
    result = await ticket
    assert result.accepted == 2
    return result.failures[0].outcome if result.failures else None


async def _accept_each(producer: IdempotentProducer, record: Record) -> Outcome:
    return await (await producer.accept_each("t", [Record(b"before"), record]))[1]


WAYS = [_send, _send_nowait, _send_many, _accept, _accept_each]


def _raise_limit(wire: FakeWire) -> None:
    wire.max_bytes = 100_000


def _add_partitions(wire: FakeWire) -> None:
    wire.partition_count = 3


@pytest.fixture
def asked(wire: FakeWire, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics whose limit brokers were asked for."""
    asked: list[str] = []
    answer = wire.max_message_bytes

    async def max_message_bytes(topic: str) -> int:
        asked.append(topic)
        return await answer(topic)

    monkeypatch.setattr(wire, "max_message_bytes", max_message_bytes)
    return asked


@pytest.mark.promise("in-event-large-topic-raised")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("record", "change"),
    [(Record(_LARGE), _raise_limit), (Record(b"1", partition=2), _add_partitions)],
    ids=["limit", "partitions"],
)
async def test_what_was_raised_meanwhile_is_noticed(
    wire: FakeWire,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[IdempotentProducer, Record], Awaitable[Outcome | None]],
    record: Record,
    change: Callable[[FakeWire], None],
) -> None:
    """By each way to send; before the change the same event is refused."""
    wire.max_bytes = 2_000
    async with make_producer(compression="none") as producer:
        refused = await _send(producer, record)
        assert isinstance(refused, NotPersisted)
        assert "t takes" in refused.reason or "topic t has 0 to 0" in refused.reason
        change(wire)
        await _let_a_while_pass(monkeypatch)
        assert not isinstance(await way(producer, record), NotPersisted)
    assert record.value in values_of(wire, record.partition or 0)


@pytest.mark.parametrize("way", [_send, _send_many, _accept, _accept_each])
async def test_brokers_are_asked_once_a_second_at_most(
    wire: FakeWire,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[IdempotentProducer, Record], Awaitable[Outcome | None]],
) -> None:
    """A stream of events that are too large costs one question a second, and they are refused."""
    wire.max_bytes = 2_000
    async with make_producer(compression="none") as producer:
        for seconds in range(3):
            for _ in range(20):
                assert isinstance(await way(producer, Record(_LARGE)), NotPersisted)
            assert asked == ["t"] * (seconds + 1)
            await _let_a_while_pass(monkeypatch)


async def test_senders_that_doubt_at_once_share_one_question(
    wire: FakeWire, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.max_bytes = 2_000
    async with make_producer(compression="none") as producer:
        await producer.partitions_for("t")
        _raise_limit(wire)
        await _let_a_while_pass(monkeypatch)
        outcomes = await asyncio.gather(*(_send(producer, Record(_LARGE)) for _ in range(10)))
    assert outcomes == [InLog(0, offset) for offset in range(10)]
    assert asked == ["t"] * 2


async def test_small_events_ask_nobody_and_wait_for_none_who_asks(
    wire: FakeWire, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.max_bytes = 2_000
    async with make_producer(compression="none") as producer:
        await producer.partitions_for("t")
        await _let_a_while_pass(monkeypatch)
        large = asyncio.create_task(_send(producer, Record(_LARGE)))
        for number in range(3):
            await producer.accept("t", [Record(b"%d" % number)])
        assert asked == ["t"]
        assert isinstance(await large, NotPersisted)
        assert asked == ["t"] * 2
    assert values_of(wire) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("partition", [-1, -5])
async def test_what_no_topic_ever_has_is_refused_unasked(
    wire: FakeWire, asked: list[str], monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    del wire
    async with make_producer() as producer:
        await producer.partitions_for("t")
        await _let_a_while_pass(monkeypatch)
        outcome = await _send(producer, Record(b"", partition=partition))
    assert outcome == NotPersisted(f"partition {partition}: topic t has 0 to 0")
    assert asked == ["t"]


async def test_a_partitioner_that_knows_of_more_partitions_is_right(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may look at the cluster itself."""
    producer = IdempotentProducer(
        "unused:1", ProducerSettings(**FAST), partitioner=lambda _key, _all, _led: 2
    )
    async with producer:
        await producer.partitions_for("t")
        _add_partitions(wire)
        await _let_a_while_pass(monkeypatch)
        outcome = await (await producer.send("t", b"1"))
        ticket = await producer.send_many("t", [b"2", b"3"])
        assert (await ticket).persisted == 2
    assert outcome == InLog(2, 0)


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (Record(_LARGE), InLog(0, 0)),
        (
            Record(b"", partition=1),
            NotPersisted(
                "partition 1: topic t has 0 to 0, as brokers said when they last answered. They do "
                "not answer now: send it again later"
            ),
        ),
    ],
    ids=["large", "partition"],
)
async def test_without_an_answer_the_broker_of_the_batch_decides(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch, record: Record, outcome: Outcome
) -> None:
    """It takes or halves a batch; but for a partition that is not known there is none."""
    wire.max_bytes = 2_000
    async with make_producer(
        compression="none", delivery_timeout=timedelta(milliseconds=500)
    ) as producer:
        await producer.partitions_for("t")
        await _let_a_while_pass(monkeypatch)

        async def unanswered(_topics: object) -> bool:
            return False

        monkeypatch.setattr(wire, "refresh", unanswered)
        assert await _send(producer, record) == outcome


async def test_a_producer_that_is_closed_meanwhile_accepts_nothing(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.max_bytes = 2_000
    producer = make_producer(compression="none")
    async with producer:
        await producer.partitions_for("t")
        await _let_a_while_pass(monkeypatch)
        wire.reachable = False
        sending = asyncio.create_task(producer.send("t", _LARGE))
        await asyncio.sleep(0)
    with pytest.raises(ProducerClosedError):
        await sending


@pytest.mark.promise("in-event-large-topic-raised")
async def test_a_lowered_limit_is_learned_from_the_first_refused_batch(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later batches are small enough: each refusal costs another identity."""
    wire.fault = lambda records: (
        10 if sum(len(one.value or b"") for one in records) > wire.max_bytes else None
    )
    values = [b"%04d" % number + b"x" * 96 for number in range(100)]
    async with make_producer(compression="none", linger=timedelta(milliseconds=5)) as producer:
        await (await producer.send_many("t", values))
        await _let_a_while_pass(monkeypatch)
        wire.max_bytes = 2_000
        await (await producer.send_many("t", values))
        halved = producer.statistics().batches_split
        assert halved
        await (await producer.send_many("t", values))
        assert producer.statistics().batches_split == halved
    assert values_of(wire) == values * 3
