"""A producer belongs to the event loop in which it was started: others are told so at once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import ProducerClosedError, WrongThreadError
from sequitur.producer import IdempotentProducer, Persisted, Record
from sequitur.producer.journal.frames import SourcePosition
from tests.support.producers import make_producer, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.support.fake_wire import FakeWire

_NOT_ENOUGH_REPLICAS = 19
_AT_ONCE_S = 20.0
"""Ends a hang; a call that is refused takes no time at all."""


async def _iterable(producer: IdempotentProducer) -> Any:
    async def events() -> Any:
        yield b"x"

    return await producer.send_many("t", events())


_CALLS: dict[str, Callable[[IdempotentProducer], Coroutine[Any, Any, Any]]] = {
    "send": lambda one: one.send("t", b"x"),
    "send, unknown topic": lambda one: one.send("other", b"x"),
    "send_and_wait": lambda one: one.send_and_wait("t", b"x"),
    "send_many": lambda one: one.send_many("t", [b"x"]),
    "send_many of an async iterable": _iterable,
    "accept": lambda one: one.accept("t", [Record(b"x")]),
    "accept_each": lambda one: one.accept_each("t", [Record(b"x")]),
    "note_position": lambda one: one.note_position(SourcePosition("file", b"1")),
    "partitions_for": lambda one: one.partitions_for("other"),
    "wait_for_quota": lambda one: one.wait_for_quota("t"),
    "wait_for_topic": lambda one: one.wait_for_topic("t"),
    "failure": lambda one: one.failure(),
    "flush": lambda one: one.flush(),
    "close": lambda one: one.close(),
    "leaving the context": lambda one: one.__aexit__(None, None, None),
}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def _in(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(call, loop).result(_AT_ONCE_S)


def _elsewhere(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a call in another loop, of this thread."""

    async def bounded() -> Any:
        return await asyncio.wait_for(call(), _AT_ONCE_S)

    return asyncio.run(bounded())


@pytest.fixture
def started(loop: asyncio.AbstractEventLoop, wire: FakeWire) -> Iterator[IdempotentProducer]:
    """A producer of that loop, which has sent an event."""
    del wire

    async def start() -> IdempotentProducer:
        producer = make_producer()
        await producer.start()
        await producer.send_and_wait("t", b"own")
        return producer

    producer = _in(loop, start())
    yield producer
    _in(loop, producer.close())


@pytest.mark.promise("in-producer-another-loop")
@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS.keys())
def test_another_loop_is_told_at_once(
    started: IdempotentProducer,
    loop: asyncio.AbstractEventLoop,
    wire: FakeWire,
    call: Callable[[IdempotentProducer], Coroutine[Any, Any, Any]],
) -> None:
    """Nothing is done; its own loop goes on with it."""
    with pytest.raises(WrongThreadError, match="event loop in which it was started: from another"):
        _elsewhere(lambda: call(started))
    assert started.statistics().accepted == 1
    assert started.blocked_reason() is None
    assert isinstance(_in(loop, started.send_and_wait("t", b"again")), Persisted)
    assert values_of(wire) == [b"own", b"again"]


@pytest.mark.promise("in-producer-another-loop")
def test_thread_without_a_loop_is_told(started: IdempotentProducer) -> None:
    with pytest.raises(WrongThreadError, match=r"loop\.call_soon_threadsafe"):
        started.send_nowait("t", b"x")
    assert started.statistics().accepted == 1


@pytest.mark.promise("in-producer-another-loop")
def test_outcome_belongs_to_the_loop(
    started: IdempotentProducer, loop: asyncio.AbstractEventLoop, wire: FakeWire
) -> None:
    """Who awaits it, or that the journal has it, elsewhere gets an error, and never hangs."""
    wire.fault = lambda _records: _NOT_ENOUGH_REPLICAS
    delivery = _in(loop, started.send("t", b"x"))
    ticket = _in(loop, started.send_many("t", [b"y"]))
    for one in (delivery, ticket):
        with pytest.raises(RuntimeError, match="attached to a different loop"):
            _elsewhere(one.result_or_raise)
        with pytest.raises(WrongThreadError, match="event loop in which it was started"):
            _elsewhere(partial(_journaled, one))
    wire.fault = lambda _records: None
    assert isinstance(_in(loop, delivery.result_or_raise()), Persisted)


async def _journaled(one: Any) -> None:
    await one.journaled


@pytest.mark.promise("in-producer-another-loop")
@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS.keys())
def test_producer_whose_loop_is_closed_says_so(
    wire: FakeWire, call: Callable[[IdempotentProducer], Coroutine[Any, Any, Any]]
) -> None:
    """As of a second `asyncio.run`."""
    del wire
    producer = make_producer()
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(producer.start())
        loop.run_until_complete(producer.flush())
    finally:
        _end(loop)
    with pytest.raises(WrongThreadError, match="in which it was started, which is closed: from"):
        _elsewhere(lambda: call(producer))
    with pytest.raises(WrongThreadError, match="which is closed"):
        producer.send_nowait("t", b"x")


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what runs, and close: as `asyncio.run` does at its end."""
    for task in (tasks := asyncio.all_tasks(loop)):
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


def test_producer_may_be_used_by_one_run_of_its_loop_after_the_other(wire: FakeWire) -> None:
    """While the loop stands still, its thread may send without a wait."""
    loop = asyncio.new_event_loop()
    producer = make_producer()
    try:
        loop.run_until_complete(producer.start())
        loop.run_until_complete(producer.send_and_wait("t", b"1"))
        producer.send_nowait("t", b"2")
        loop.run_until_complete(producer.flush())
        with ThreadPoolExecutor() as threads:
            late = threads.submit(producer.send_nowait, "t", b"3").exception(_AT_ONCE_S)
        loop.run_until_complete(producer.close())
    finally:
        loop.close()
    assert isinstance(late, WrongThreadError)
    assert values_of(wire) == [b"1", b"2"]


@pytest.mark.promise("in-producer-another-loop")
def test_thread_that_began_the_loop_is_another_once_the_loop_runs_elsewhere(wire: FakeWire) -> None:
    """As of a program that starts its producer, and then has the loop run in the background."""
    loop = asyncio.new_event_loop()
    producer = make_producer()
    loop.run_until_complete(producer.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert isinstance(_in(loop, producer.send_and_wait("t", b"1")), Persisted)
        with pytest.raises(WrongThreadError, match="in which it was started: from another thread"):
            producer.send_nowait("t", b"2")
        _in(loop, producer.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert values_of(wire) == [b"1"]


def test_producer_that_is_closed_or_not_started_belongs_to_no_loop(wire: FakeWire) -> None:
    """To close it once more does nothing, wherever that is."""
    del wire

    async def live(producer: IdempotentProducer) -> None:
        await producer.start()
        await producer.close()

    for producer in (make_producer(), make_producer()):
        asyncio.run(live(producer))
        _elsewhere(producer.close)
        with pytest.raises(ProducerClosedError, match="is closed"):
            _elsewhere(partial(producer.send, "t", b"x"))
    unstarted = make_producer()
    _elsewhere(unstarted.flush)
    _elsewhere(unstarted.close)
