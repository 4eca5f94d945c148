"""A producer whose topics are over their backlog quota: each call that accepts events."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.process import wall_clock_ms
from sequitur.errors import BacklogQuotaError, BufferFullError, ProducerClosedError, SendManyError
from sequitur.kafka.control import BacklogState, ProducerPolicy, key_of
from sequitur.producer import IdempotentProducer, NotPersisted, Persisted, Record, Ticket
from sequitur.producer.journal.frames import SourcePosition
from tests.support.producers import make_producer, values_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from sequitur.producer.quota import QuotaGate
    from tests.support.fake_wire import FakeWire

_RECORDS = [Record(b"1"), Record(b"2")]


class _NoReader:
    """Stands for the reader of the control topic: tests give the gate its records."""

    def __init__(self, _kafka: object, gate: QuotaGate, **_options: object) -> None:
        self.gate = gate

    def start(self) -> None:
        pass

    async def close(self, _timeout_s: float) -> None:
        pass


@pytest.fixture
def quotas(monkeypatch: pytest.MonkeyPatch, wire: FakeWire) -> FakeWire:
    """The cluster in memory, without its control topic."""
    monkeypatch.setattr("sequitur.producer._client.ControlReader", _NoReader)
    return wire


@pytest.fixture
async def producer(quotas: FakeWire) -> AsyncIterator[IdempotentProducer]:  # noqa: ARG001 - in use
    async with make_producer(backlog_quota=True) as producer:
        yield producer


def _gate(producer: IdempotentProducer) -> QuotaGate:
    assert producer._running is not None
    assert producer._running.quota is not None
    return producer._running.quota


def _limit(producer: IdempotentProducer, policy: ProducerPolicy | None, topic: str = "t") -> None:
    state = BacklogState(
        issued_ms=wall_clock_ms(),
        valid_for_ms=3_600_000,
        policy=policy,
        backlog_bytes=12,
        limit_bytes=10,
    )
    _gate(producer).take([(key_of(topic), state.encode())])


async def _many_by_one(producer: IdempotentProducer) -> None:
    async def values() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"

    await producer.send_many("t", values())


_CALLS: dict[str, Callable[[IdempotentProducer], Awaitable[object]]] = {
    "send": lambda producer: producer.send("t", b"1"),
    "send_and_wait": lambda producer: producer.send_and_wait("t", b"1"),
    "send_many": lambda producer: producer.send_many("t", [b"1", b"2"]),
    "send_many, async": _many_by_one,
    "accept": lambda producer: producer.accept("t", _RECORDS),
    "accept_each": lambda producer: producer.accept_each("t", _RECORDS),
}
_ANY_CALL = pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS.keys())


async def _held(producer: IdempotentProducer, call: Callable[..., Any]) -> asyncio.Task[Any]:
    """Return the call's task, once it waits for the quota."""

    async def run() -> Any:
        return await call(producer)

    task = asyncio.create_task(run())
    async with asyncio.timeout(PATIENCE_S):
        while not _gate(producer).statistics("t").held:  # noqa: ASYNC110 - a count tells of nothing
            await asyncio.sleep(0)
    return task


@pytest.mark.promise("in-topic-backlog-quota")
@_ANY_CALL
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_held_call_waits_until_the_quota_is_kept(
    producer: IdempotentProducer, wire: FakeWire, call: Callable[..., Any], is_known: bool
) -> None:
    """Whether or not it has sent to the topic before; what was accepted before goes out."""
    sent = []
    if is_known:
        sent = [b"before"]
        delivery = await producer.send("t", b"before")
        _limit(producer, "producer_request_hold")
        assert isinstance(await delivery, Persisted)
    _limit(producer, "producer_request_hold")
    held = await _held(producer, call)
    assert producer.statistics().accepted == len(sent)
    assert "(producer_request_hold): the backlog" in (producer.blocked_reason() or "")
    _gate(producer).take([(key_of("t"), None)])
    await held
    await producer.flush()
    assert producer.blocked_reason() is None
    assert values_of(wire)[: len(sent) + 1] == [*sent, b"1"]


@pytest.mark.promise("in-topic-backlog-quota")
@_ANY_CALL
@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
async def test_a_call_that_may_not_send_raises_with_the_figures(
    quotas: FakeWire, call: Callable[..., Any], policy: ProducerPolicy
) -> None:
    """At once by one policy, after `delivery_timeout` by the other; nothing was accepted."""
    settings = {"backlog_quota": True, "delivery_timeout": timedelta(milliseconds=50)}
    async with make_producer(**settings) as producer:
        _limit(producer, policy)
        with pytest.raises((BacklogQuotaError, SendManyError)) as raised:
            await call(producer)
        error: BaseException | None = raised.value
        if isinstance(error, SendManyError):
            assert error.ticket.accepted == 0
            error = error.__cause__
        assert isinstance(error, BacklogQuotaError)
        assert (error.topic, error.state.policy) == ("t", policy)
        assert (error.state.backlog_bytes, error.state.limit_bytes) == (12, 10)
        assert producer.statistics().accepted == 0
        assert producer.statistics().quota == _gate(producer).statistics("t")
        assert _gate(producer).statistics("t").refused == 1
        _gate(producer).take([(key_of("t"), None)])
        await call(producer)
        await producer.flush()
    assert values_of(quotas)[0] == b"1"


@pytest.mark.promise("in-topic-backlog-quota")
@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
async def test_send_nowait_does_not_wait_for_a_quota(
    producer: IdempotentProducer, wire: FakeWire, policy: ProducerPolicy
) -> None:
    """It raises the figures: as room that is missing where `send` would wait, else as `send`."""
    await producer.partitions_for("t")
    _limit(producer, policy)
    error = BufferFullError if policy == "producer_request_hold" else BacklogQuotaError
    with pytest.raises(error, match="the backlog is over its quota"):
        producer.send_nowait("t", b"0")
    assert producer.statistics().accepted == 0
    assert _gate(producer).statistics("t").refused == (policy == "producer_exception")
    _gate(producer).take([(key_of("t"), None)])
    producer.send_nowait("t", b"1")
    await producer.flush()
    assert values_of(wire) == [b"1"]


@pytest.mark.promise("in-topic-backlog-quota")
async def test_send_nowait_overtakes_no_call_that_a_quota_holds(
    producer: IdempotentProducer, wire: FakeWire
) -> None:
    """The quota is kept again, and the call that waited has not had its turn yet."""
    await producer.partitions_for("t")
    _limit(producer, "producer_request_hold")
    held = await _held(producer, _CALLS["send"])
    _gate(producer).take([(key_of("t"), None)])
    with pytest.raises(BufferFullError):
        producer.send_nowait("t", b"2")
    await held
    producer.send_nowait("t", b"2")
    await producer.flush()
    assert values_of(wire) == [b"1", b"2"]


@pytest.mark.promise("in-topic-backlog-quota")
@_ANY_CALL
async def test_a_held_call_that_is_cancelled_has_accepted_nothing(
    producer: IdempotentProducer, wire: FakeWire, call: Callable[..., Any]
) -> None:
    """Also once the quota is kept again."""
    _limit(producer, "producer_request_hold")
    held = await _held(producer, call)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    _gate(producer).take([(key_of("t"), None)])
    await producer.flush()
    assert producer.statistics().accepted == 0
    assert values_of(wire) == []


@_ANY_CALL
async def test_closing_ends_a_held_call(
    producer: IdempotentProducer, call: Callable[..., Any]
) -> None:
    """It says that the producer is closed, and not that Kafka failed."""
    _limit(producer, "producer_request_hold")
    held = await _held(producer, call)
    await producer.close()
    with pytest.raises(ProducerClosedError):
        await held


async def test_a_failure_ends_a_held_call(producer: IdempotentProducer) -> None:
    _limit(producer, "producer_request_hold")
    held = await _held(producer, _CALLS["send"])
    producer._on_failure(RuntimeError("disk"))
    with pytest.raises(ProducerClosedError, match="the producer failed: disk"):
        await held


async def test_send_many_that_is_cut_short_has_its_ticket(
    producer: IdempotentProducer, wire: FakeWire
) -> None:
    """What came before is accepted and goes out; the rest is not."""

    async def values() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"
        _limit(producer, "producer_exception")
        yield b"3"

    ticket = Ticket()
    with pytest.raises(SendManyError, match="after 2 events"):
        await producer.send_many("t", values(), ticket=ticket)
    assert (await ticket).persisted == 2
    assert values_of(wire) == [b"1", b"2"]


@pytest.mark.usefixtures("quotas")
async def test_a_position_without_events_is_not_held(
    make: Callable[..., IdempotentProducer],
) -> None:
    """A quota is about events; the daemon opens its topic by accepting none."""
    async with make(backlog_quota=True) as producer:
        _limit(producer, "producer_exception")
        await (await producer.accept("t", [], SourcePosition("s", b"1"))).journaled
        await producer.note_position(SourcePosition("s", b"2"))
        assert producer.statistics().quota == _gate(producer).statistics("t")
        assert "producer_exception" in (producer.blocked_reason() or "")


async def test_other_topics_of_a_producer_go_on(producer: IdempotentProducer) -> None:
    _limit(producer, "producer_request_hold", topic="other")
    assert isinstance(await (await producer.send("t", b"1")), Persisted)
    assert producer.blocked_reason() is None


async def test_the_wait_for_the_quota_ends_with_it(producer: IdempotentProducer) -> None:

    async def lift() -> None:
        _gate(producer).take([(key_of("t"), None)])

    async def wait_while(then: Callable[[], Coroutine[Any, Any, None]]) -> None:
        _limit(producer, "producer_exception")
        waiting = asyncio.create_task(producer.wait_for_quota("t"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await then()
        await waiting

    await wait_while(lift)
    with pytest.raises(ProducerClosedError):
        await wait_while(producer.close)


async def test_without_the_setting_nothing_is_asked(wire: FakeWire) -> None:
    async with make_producer() as producer:
        assert producer._running is not None
        assert producer._running.quota is None
        assert producer._control is None
        await producer.wait_for_quota("t")
        assert isinstance(await (await producer.send("t", b"1")), Persisted)
        assert producer.statistics().quota is None
    assert values_of(wire) == [b"1"]


async def test_proximity_is_told_of_the_topics_sent_to(producer: IdempotentProducer) -> None:
    _limit(producer, None)
    _limit(producer, None, topic="other")
    assert producer.statistics().quota is not None
    assert _gate(producer).statistics([]).proximity is None
    outcome = await (await producer.send("t", b"1"))
    assert not isinstance(outcome, NotPersisted)
    quota = producer.statistics().quota
    assert quota is not None
    assert quota.proximity == 1.2
