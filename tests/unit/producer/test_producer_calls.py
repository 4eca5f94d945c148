"""How the producer is called: what it refuses at once, what raises, and what ported code needs."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import (
    NotAllPersistedError,
    NotPersistedError,
    PossiblyPersistedError,
    SendManyError,
)
from sequitur.producer import IdempotentProducer, Persisted, ProducerSettings, Record, Ticket
from tests.support.fake_wire import DROPPED, FakeWire, Fault
from tests.support.outcomes import InLog
from tests.support.producers import FAST
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

_LEFT_UNREAD = 10_000_000


def _producer(options: dict[str, Any] | None = None, **settings: Any) -> IdempotentProducer:
    return IdempotentProducer("unused:1", ProducerSettings(**(FAST | settings)), **(options or {}))


_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"value": "text"}, "value is str, expected bytes or None"),
    ({"value": [1]}, "value is list, expected bytes or None"),
    ({"value": b"", "key": 5}, "key is int, expected bytes or None"),
    ({"value": b"", "headers": {"a": b"1"}}, "headers is dict, expected a sequence"),
    ({"value": b"", "headers": {}}, "headers is dict, expected a sequence"),
    ({"value": b"", "headers": "ab"}, "headers is str, expected a sequence"),
    ({"value": b"", "headers": [b"xyz"]}, "a header is bytes, expected a sequence"),
    ({"value": b"", "headers": [("a", b"", b"")]}, "a header is tuple, expected a sequence"),
    ({"value": b"", "headers": [(b"a", b"")]}, "the name of a header is bytes, expected str"),
    ({"value": b"", "headers": [("a", "text")]}, "header a is str, expected bytes or None"),
    ({"value": b"", "partition": "0"}, "partition is str, expected int or None"),
    ({"value": b"", "timestamp_ms": 1.5}, "timestamp_ms is float, expected int or None"),
]


@pytest.mark.promise("in-send-given-str")
@pytest.mark.parametrize(("arguments", "reason"), _WRONG)
async def test_a_wrong_type_is_an_error_at_the_call(
    wire: FakeWire, arguments: dict[str, Any], reason: str
) -> None:
    """Code that looks at no outcome hears of it, one by one and in bulk; nothing is accepted."""
    async with _producer() as producer:
        for call in (producer.send, producer.send_and_wait):
            with pytest.raises(TypeError, match=reason):
                await call("t", **arguments)
        for accept in (producer.accept, producer.accept_each):
            with pytest.raises(TypeError, match=reason):
                await accept("t", [Record(b"first"), Record(**arguments)])
        assert producer.statistics().accepted == 0
        for count in (1, 300):  # one by one, and as many as are laid out by columns
            events = [*[Record(b"good")] * count, Record(**arguments), Record(b"behind")]
            with pytest.raises(SendManyError) as caught:
                await producer.send_many("t", events)
            assert f"event {count}: {reason}" in str(caught.value.__cause__)
            assert (await caught.value.ticket).persisted == count
    assert {record.value for record in wire.records["t", 0]} == {b"good"}


@pytest.mark.promise("in-buffer-event-sent")
@pytest.mark.parametrize("count", [1, 300])
async def test_bytes_that_may_change_are_copied_at_the_call(wire: FakeWire, count: int) -> None:
    """What a socket's buffer holds a moment later is another event's."""
    buffer = bytearray(b"event")
    view = memoryview(buffer)
    headers: Any = [("a", view), ("b", None)]
    changing: Any = Record(view, bytearray(b"key"), headers)  # type: ignore[arg-type]
    async with _producer(linger=timedelta(milliseconds=50)) as producer:
        deliveries = [
            await producer.send("t", buffer, bytearray(b"key"), headers=headers),
            *await producer.accept_each("t", [changing]),
        ]
        tickets = [
            await producer.accept("t", [changing]),
            await producer.send_many("t", [changing] * count),
        ]
        buffer[:] = b"other"
        await asyncio.gather(*deliveries, *tickets)
    records = wire.records["t", 0]
    assert {(r.value, r.key, r.headers[:-1]) for r in records} == {
        (b"event", b"key", (("a", b"event"), ("b", None)))
    }
    assert len(records) == count + 3


@pytest.mark.promise("in-send-given-str")
async def test_what_follows_the_key_has_a_name(wire: FakeWire) -> None:
    """Fourth in aiokafka is the partition: ported code must not give it as headers."""
    del wire
    async with _producer() as producer:
        with pytest.raises(TypeError, match="positional"):
            await producer.send("t", b"1", b"k", 0)  # type: ignore[call-arg, arg-type]
        with pytest.raises(TypeError, match="topic is bytes, expected str"):
            await producer.send(b"t", b"1")  # type: ignore[arg-type]
        assert await producer.send_and_wait("t", b"1", b"k", headers=None) == InLog(0, 0)


@pytest.mark.promise("in-event-topic-name")
@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "t\xf6pic", "x" * 250, "\ud800", "a\n"])
async def test_a_name_that_no_topic_has_is_an_error_at_the_call(wire: FakeWire, topic: str) -> None:
    """By Kafka's rule; nothing is accepted, and no broker is asked for it."""
    del wire
    async with _producer() as producer:
        calls: list[Coroutine[Any, Any, Any]] = [
            producer.send(topic, b""),
            producer.send_and_wait(topic, b""),
            producer.send_many(topic, [b""]),
            producer.accept(topic, [Record(b"")]),
            producer.accept_each(topic, [Record(b"")]),
            producer.partitions_for(topic),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"expected a topic name: letters, digits"):
                await call
        assert producer.statistics().accepted == 0
        assert await producer.send_and_wait("x" * 249, b"1") == InLog(0, 0)


@pytest.mark.promise("in-code-ignores-outcomes")
async def test_who_wants_an_error_gets_one(wire: FakeWire) -> None:
    """`result_or_raise` and `send_and_wait` give the offset, or raise the reason."""
    codes: dict[bytes, Fault] = {b"bad": 44, b"silent": DROPPED}
    wire.fault = lambda records: codes.get(records[0].value or b"")
    async with _producer(delivery_timeout=timedelta(milliseconds=300)) as producer:
        assert await producer.send_and_wait("t", b"1") == InLog(0, 0)
        delivery = await producer.send("t", b"2")
        assert await delivery.result_or_raise() == await delivery == InLog(0, 1)
        with pytest.raises(NotPersistedError, match="POLICY_VIOLATION"):
            await producer.send_and_wait("t", b"bad")
        with pytest.raises(PossiblyPersistedError, match="no answer"):
            await producer.send_and_wait("t", b"silent")
        await asyncio.sleep(0)


@pytest.mark.promise("in-code-ignores-outcomes")
async def test_a_ticket_raises_if_that_is_wanted(wire: FakeWire) -> None:
    """With the counts, and the first failure in its message."""
    wire.fault = lambda records: 44 if any(r.value == b"bad" for r in records) else None
    async with _producer() as producer:
        good = await producer.send_many("t", [b"1", b"2"])
        assert (await good.result_or_raise()).persisted == 2
        bad = await producer.send_many("t", [b"bad"])
        with pytest.raises(NotAllPersistedError, match="of 1 events 1 are not persisted") as caught:
            await bad.result_or_raise()
        assert caught.value.result.not_persisted == 1


async def test_a_wait_that_is_cancelled_leaves_the_delivery(wire: FakeWire) -> None:
    """Somebody else may still wait for it."""
    del wire
    async with _producer(linger=timedelta(milliseconds=20)) as producer:
        delivery = await producer.send("t", b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(delivery.result_or_raise(), 0.001)
        assert await delivery == InLog(0, 0)


@pytest.mark.promise("in-send-cancelled-events")
async def test_a_cancelled_send_many_keeps_its_ticket(wire: FakeWire) -> None:
    """By the ticket that it was given, and by the error; both count what was accepted."""
    events = [b"%06d" % number for number in range(2_000)]
    async with _producer(buffer_size=5_000, batch_size=1_000) as producer:
        await producer.send_and_wait("t", b"first")
        wire.reachable = wire.connected = False
        mine = Ticket()
        assert (await mine).accepted == 0  # nothing to wait for before it is used
        with pytest.raises(TimeoutError) as caught:
            await asyncio.wait_for(producer.send_many("t", events, ticket=mine), 0.05)
        cancelled = caught.value.__cause__
        assert isinstance(cancelled, asyncio.CancelledError)
        assert isinstance(cancelled.__cause__, SendManyError)
        assert cancelled.__cause__.ticket is mine
        accepted = mine.accepted
        assert 0 < accepted < 2_000
        wire.reachable = wire.connected = True
        result = await asyncio.wait_for(mine, PATIENCE_S)
        assert (result.accepted, result.persisted) == (accepted, accepted)
        with pytest.raises(ValueError, match="has been used"):
            await producer.send_many("t", events, ticket=mine)
    values = [record.value for record in wire.records["t", 0]]
    assert values == [b"first", *events[:accepted]]


async def test_events_of_an_async_iterable_are_sent_as_they_come(wire: FakeWire) -> None:
    """Each is on its way before the next one is there; none waits for a chunk to be full."""
    stored = asyncio.Event()
    wire.fault = lambda _records: stored.set()

    async def events() -> AsyncIterator[bytes | Record]:
        yield b"1"
        async with asyncio.timeout(PATIENCE_S):
            await stored.wait()
        yield Record(b"2", b"key")
        for number in range(3, 200):
            yield b"%d" % number

    async with _producer() as producer:
        result = await (await producer.send_many("t", events()))
    assert (result.accepted, result.persisted) == (199, 199)
    assert [int(record.value or b"") for record in wire.records["t", 0]] == list(range(1, 200))


@pytest.mark.promise("in-send-cancelled-events")
async def test_an_async_iterable_that_breaks_off_keeps_its_ticket(wire: FakeWire) -> None:
    """As a plain one does, whether it raised or gave what is no event."""
    del wire

    async def raises() -> AsyncIterator[bytes]:
        yield b"1"
        raise OSError("the line is dead")

    async def gives_text() -> AsyncIterator[Any]:
        yield b"1"
        yield "2"

    async with _producer() as producer:
        for events, cause in ((raises(), OSError), (gives_text(), TypeError)):
            with pytest.raises(SendManyError) as caught:
                await producer.send_many("t", events)
            assert isinstance(caught.value.__cause__, cause)
            assert (await caught.value.ticket).persisted == 1


async def test_keys_and_values_are_serialized(wire: FakeWire) -> None:
    """One by one and in bulk; None stays a tombstone, and what is no bytes then is refused."""
    options = {
        "key_serializer": str.encode,
        "value_serializer": lambda value: json.dumps(value).encode(),
    }
    async with _producer(options) as producer:
        await producer.send_and_wait("t", {"a": 1}, "k")
        await producer.send_and_wait("t", None, "k")
        await (await producer.send_many("t", [1, Record([2], "r")])).result_or_raise()  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await producer.send("t", object())
        with pytest.raises(SendManyError) as caught:
            await producer.send_many("t", [3, object(), 4])
        assert (await caught.value.ticket).persisted == 1
    async with _producer({"value_serializer": lambda value: value}) as producer:
        with pytest.raises(TypeError, match="value is str, expected bytes or None"):
            await producer.send("t", "text")
    assert [(record.key, record.value) for record in wire.records["t", 0]] == [
        (b"k", b'{"a": 1}'),
        (b"k", None),
        (None, b"1"),
        (b"r", b"[2]"),
        (None, b"3"),
    ]


async def test_a_partitioner_of_ones_own_chooses(wire: FakeWire) -> None:
    """It sees the key's bytes and the partitions; who names a partition has the last word."""
    wire.partition_count = 3
    asked: list[tuple[bytes | None, list[int], list[int]]] = []

    def partitioner(key: bytes | None, everywhere: list[int], led: list[int]) -> int:
        asked.append((key, everywhere, led))
        return int(key or b"2")

    async with _producer({"partitioner": partitioner}) as producer:
        assert await producer.send_and_wait("t", b"1", b"0") == InLog(0, 0)
        assert await producer.send_and_wait("t", b"2") == InLog(2, 0)
        assert await producer.send_and_wait("t", b"3", b"0", partition=1) == InLog(1, 0)
        await (await producer.send_many("t", [Record(b"4", b"1"), b"5"])).result_or_raise()
        with pytest.raises(ValueError, match="the partitioner gave 7: topic t has 0 to 2"):
            await producer.send("t", b"6", b"7")
        with pytest.raises(SendManyError):
            await producer.send_many("t", [Record(b"6", b"7")])
    assert asked[:2] == [(b"0", [0, 1, 2], [0, 1, 2]), (None, [0, 1, 2], [0, 1, 2])]
    found = {p: [record.value for record in wire.records["t", p]] for p in range(3)}
    assert found == {0: [b"1"], 1: [b"3", b"4"], 2: [b"2", b"5"]}


async def _send_with_a_key_that_no_partition_gets(producer: IdempotentProducer) -> None:
    await producer.send("t", b"", b"bad")


async def _send_many_of_a_wrong_type(producer: IdempotentProducer) -> None:
    await producer.send_many("t", [Record("text")])  # type: ignore[arg-type]  # that is the point


async def _accept_a_wrong_type(producer: IdempotentProducer) -> None:
    await producer.accept("t", [Record("text")])  # type: ignore[arg-type]  # that is the point


def _partitioner_that_raises(key: bytes | None, _all: list[int], _led: list[int]) -> int:
    if key == b"bad":
        raise ValueError("no partition")
    return 0


@pytest.mark.promise("in-call-waited-room")
@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"partitioner": _partitioner_that_raises}, _send_with_a_key_that_no_partition_gets),
        ({}, _send_many_of_a_wrong_type),
        ({}, _accept_a_wrong_type),
    ],
)
async def test_a_call_that_raises_after_its_wait_lets_the_next_sender_in(
    wire: FakeWire,
    options: dict[str, Any],
    call: Callable[[IdempotentProducer], Coroutine[Any, Any, None]],
) -> None:
    """It has waited for room in the buffer and takes none: nothing else would wake the next."""
    limits: dict[str, Any] = {"buffer_size": 200, "delivery_timeout": timedelta(seconds=5)}
    async with _producer(options, **limits) as producer:
        await producer.send_and_wait("t", b"first")
        wire.reachable = wire.connected = False
        full = await producer.send("t", b"x" * 300)
        raising = asyncio.create_task(call(producer))
        await asyncio.sleep(0)
        behind = asyncio.create_task(producer.send("t", b"behind"))
        await asyncio.sleep(0)
        assert not raising.done()
        assert not behind.done()
        wire.reachable = True
        with pytest.raises((ValueError, TypeError, SendManyError)):
            await raising
        assert isinstance(await full, Persisted)
        assert await (await behind) == InLog(0, 2)


async def test_the_partitions_of_a_topic_are_told(wire: FakeWire) -> None:
    wire.partition_count = 3
    async with _producer() as producer:
        assert await producer.partitions_for("t") == {0, 1, 2}


async def test_the_brokers_are_told_a_client_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer's name, unless another is set: quotas go by it."""
    told: list[str] = []

    def wire(*_args: object, client_id: str, **_kwargs: object) -> FakeWire:
        told.append(client_id)
        return FakeWire()

    monkeypatch.setattr("sequitur.producer._client.Wire", wire)
    async with _producer(name="me") as producer:
        assert told == [producer.name]
    async with _producer(name="me", client_id="team-a"):
        assert told[1] == "team-a"


async def test_an_endless_iterable_ends_with_its_consumer(wire: FakeWire) -> None:
    """Closing the producer ends a `send_many` that never would, and keeps its ticket."""
    del wire

    begun = asyncio.Event()

    def endless() -> Iterator[bytes]:
        for _ in range(_LEFT_UNREAD):
            yield b"x"
            begun.set()

    producer = _producer()
    await producer.start()
    ticket = Ticket()
    sending = asyncio.create_task(producer.send_many("t", endless(), ticket=ticket))
    await begun.wait()
    await producer.close(timedelta(seconds=5))
    with pytest.raises(Exception, match="closed"):
        await sending
    result = await asyncio.wait_for(ticket, PATIENCE_S)
    assert result.accepted == result.persisted + result.not_persisted + result.possibly_persisted


@pytest.mark.promise("in-events-accepted-kafka")
async def test_it_says_why_it_takes_nothing(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is started, while nothing makes room, and once it is closed; else there is none."""
    monkeypatch.setattr("sequitur.producer._running._STUCK_AFTER_S", 0.01)
    producer = _producer(buffer_size=1_000)
    assert producer.blocked_reason() == "it is not started"
    await producer.start()
    await producer.send_and_wait("t", b"1")
    assert producer.blocked_reason() is None
    wire.reachable = wire.connected = False
    await producer.send("t", b"x" * 2_000)
    await asyncio.sleep(0.02)  # longer than it takes to be stuck
    assert "wait for their answer" in (producer.blocked_reason() or "")
    wire.reachable = wire.connected = True
    await producer.flush()
    assert producer.blocked_reason() is None
    await producer.close()
    assert producer.blocked_reason() == "it is closed"
