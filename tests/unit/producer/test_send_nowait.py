"""`send_nowait`: what it refuses instead of waiting, and who hears of the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from sequitur.errors import (
    BufferFullError,
    JournalFailedError,
    NotAllPersistedError,
    ProducerClosedError,
    ProducerError,
    WrongThreadError,
)
from sequitur.producer import (
    IdempotentProducer,
    NotPersisted,
    Persisted,
    PossiblyPersisted,
    ProducerSettings,
    Record,
)
from sequitur.producer.batching.batch import InMemory
from tests.support.fake_wire import DROPPED, FakeWire
from tests.support.outcomes import InLog
from tests.support.producers import (
    FAST,
    close_without_kafka,
    let_pass,
    make_producer,
    use,
    values_of,
)
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sequitur.kafka.record_batch import StoredRecord
    from sequitur.producer import Outcome
    from sequitur.producer._outcome import GivenUp

_REFUSED = 44  # POLICY_VIOLATION
_TOO_LARGE = 10
_DENIED = 29
_WHY = NotPersisted("POLICY_VIOLATION")


def _refuse_bad(wire: FakeWire) -> None:
    wire.fault = lambda records: _REFUSED if (records[0].value or b"")[:3] == b"bad" else None


def _producer(**options: Any) -> IdempotentProducer:
    """Make one each of whose batches has one event."""
    return IdempotentProducer("unused:1", ProducerSettings(batch_size=1, **FAST), **options)


async def _open(producer: IdempotentProducer, *topics: str) -> None:
    for topic in topics or ("t",):
        await producer.partitions_for(topic)


async def test_on_delivery_is_called_once_with_each_outcome(wire: FakeWire) -> None:
    """By then the event has its place in the log, which is that of its call among all sends."""
    outcomes: list[Outcome] = []
    async with make_producer() as producer:
        await _open(producer)
        producer.send_nowait("t", b"0", on_delivery=outcomes.append)
        delivery = await producer.send("t", b"1")
        producer.send_nowait("t", b"2")
        for number in (3, 4):
            producer.send_nowait("t", b"%d" % number, on_delivery=outcomes.append)
        ticket = await producer.send_many("t", [b"5"])
        producer.send_nowait("t", b"6", timestamp_ms=7, on_delivery=outcomes.append)
        assert outcomes == []
        await producer.flush()
        assert outcomes == [InLog(0, offset) for offset in (0, 3, 4, 6)]
        assert isinstance(last := outcomes[-1], Persisted)
        assert (last.timestamp_ms, last.topic) == (7, "t")
        assert await delivery == InLog(0, 1)
        assert (await ticket).persisted == 1
    assert values_of(wire) == [b"%d" % number for number in range(7)]


def _cancelled(_told: object) -> None:
    """Ask a future for its result that was cancelled meanwhile."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    future.result()


class _Odd(BaseException):
    """Neither a mistake nor the end of the program."""


def _odd(_told: object) -> None:
    raise _Odd


@pytest.mark.promise("in-callback-raises")
async def test_what_on_delivery_raises_keeps_no_outcome_from_others(wire: FakeWire) -> None:
    del wire
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: raised.append(what))
    outcomes: list[Outcome] = []
    async with make_producer() as producer:
        await _open(producer)
        for raises in (lambda _: 1 / 0, _cancelled, _odd):
            for on_delivery in (outcomes.append, raises):
                producer.send_nowait("t", b"", on_delivery=on_delivery)
        producer.send_nowait("t", b"", on_delivery=outcomes.append)
    assert outcomes == [InLog(0, offset) for offset in (0, 2, 4, 6)]
    kinds = [type(what["exception"]) for what in raised]
    assert kinds == [ZeroDivisionError, asyncio.CancelledError, _Odd]


@pytest.mark.promise("in-callback-raises")
def test_the_end_of_the_program_keeps_no_outcome_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Ctrl-C in `on_delivery` goes up out of the loop, as asyncio has it; the loop may go on."""
    use(FakeWire(), monkeypatch)
    outcomes: list[Outcome] = []
    loop = asyncio.new_event_loop()

    def stop(_outcome: Outcome) -> None:
        raise KeyboardInterrupt

    async def send() -> IdempotentProducer:
        producer = make_producer()
        await producer.start()
        await _open(producer)
        for on_delivery in (outcomes.append, stop, outcomes.append):
            producer.send_nowait("t", b"", on_delivery=on_delivery)
        return producer

    producer = loop.run_until_complete(send())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(producer.flush())
    loop.run_until_complete(producer.close())
    loop.close()
    assert outcomes == [InLog(0, 0), InLog(0, 2)]


@pytest.mark.promise("in-callback-raises")
@pytest.mark.parametrize("raises", [_cancelled, _odd])
async def test_whatever_on_failure_raises_the_producer_goes_on(
    wire: FakeWire, raises: Callable[[object], None]
) -> None:
    """What it did not take counts as untold."""
    _refuse_bad(wire)
    producer = _producer(on_failure=raises)
    await producer.start()
    await _open(producer)
    producer.send_nowait("t", b"bad")
    assert isinstance(await producer.send_and_wait("t", b"good"), Persisted)
    with pytest.raises(NotAllPersistedError, match="events 1 are not"):
        await producer.close()


@pytest.mark.promise("in-callback-raises")
@pytest.mark.parametrize("raises", [_cancelled, _odd])
@pytest.mark.parametrize("value", [b"bad", b"x" * 5_000])  # refused by the broker, and at the call
async def test_whatever_on_given_up_raises_ends_the_producer_by_name(
    wire: FakeWire, raises: Callable[[object], None], value: bytes
) -> None:
    """As any error of it does: an event would wait for ever for a task that was cancelled."""
    _refuse_bad(wire)
    settings = ProducerSettings(max_request_size=2_000, **FAST)
    producer = IdempotentProducer("unused:1", settings, on_given_up=raises)
    await producer.start()
    await _open(producer)
    with contextlib.suppress(ProducerError):
        producer.send_nowait("t", value, on_delivery=lambda _: None)
    assert "on_given_up raised" in str(await asyncio.wait_for(producer.failure(), PATIENCE_S))
    await producer.close()


async def test_where_send_would_wait_it_raises(wire: FakeWire) -> None:
    """Nothing of it is accepted, and `send` takes the event once there is room."""
    async with make_producer(buffer_size=200) as producer:
        with pytest.raises(BufferFullError, match=r"event for t .*partitions are not known yet"):
            producer.send_nowait("t", b"")
        await _open(producer)
        wire.reachable = wire.connected = False
        while producer.statistics().buffered_bytes < 200:
            producer.send_nowait("t", b"x" * 50)
        accepted = producer.statistics().accepted
        with pytest.raises(BufferFullError, match="the buffer is full"):
            producer.send_nowait("t", b"y")
        waiting = asyncio.create_task(producer.send("t", b"y"))
        await asyncio.sleep(0)
        wire.reachable = wire.connected = True
        with pytest.raises(BufferFullError, match="the buffer is full"):
            producer.send_nowait("t", b"z")
        assert await (await waiting) == InLog(0, accepted)
        producer.send_nowait("t", b"z")
    assert values_of(wire)[accepted:] == [b"y", b"z"]
    with pytest.raises(ProducerClosedError):
        producer.send_nowait("t", b"")


@pytest.mark.promise("in-right-write-topic")
async def test_a_barred_topic_takes_events_as_send_does(wire: FakeWire) -> None:
    """Until barred topics have a quarter of the buffer; then the reason is named."""
    refused = asyncio.Queue[bytes | None]()

    def refuse(records: list[StoredRecord]) -> int | None:
        if (records[0].value or b"")[:1] != b"t":
            return None
        refused.put_nowait(records[0].value)
        return _DENIED

    value = b"t" * 100
    settings = ProducerSettings(batch_size=1, buffer_size=4_000, **FAST)
    async with IdempotentProducer("unused:1", settings) as producer:
        await _open(producer, "u")
        await producer.send_and_wait("t", b"first")
        wire.fault = refuse
        producer.send_nowait("t", value)
        for _ in range(2):  # by the second the first has been answered
            await refused.get()
        sent, why = 1, ""
        while not why:
            try:
                producer.send_nowait("t", value)
                sent += 1
            except BufferFullError as error:
                why = str(error)
        assert "the right WRITE is missing" in why
        assert 4 <= sent <= 10
        waiting = asyncio.create_task(producer.send("t", value))
        await asyncio.sleep(0)
        assert not waiting.done()
        producer.send_nowait("u", b"")
        wire.fault = lambda _records: None
        await waiting
    assert values_of(wire) == [b"first", *[value] * (sent + 1)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("t", "text"), TypeError),
        (("t", b"", 5), TypeError),
        ((b"t", b""), TypeError),
        (("no topic", b""), ValueError),
        ((["t"], b""), TypeError),
    ],
)
async def test_a_wrong_argument_is_an_error_at_the_call(
    wire: FakeWire, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    del wire
    async with make_producer() as producer:
        await _open(producer)
        with pytest.raises(error):
            producer.send_nowait(*arguments)
        assert producer.statistics().accepted == 0


async def test_another_thread_is_told_how_to_call_it(wire: FakeWire) -> None:
    async with make_producer() as producer:
        await _open(producer)
        loop = asyncio.get_running_loop()
        with pytest.raises(WrongThreadError, match=r"loop\.call_soon_threadsafe"):
            await asyncio.to_thread(producer.send_nowait, "t", b"wrong")
        given = threading.Thread(
            target=loop.call_soon_threadsafe, args=(producer.send_nowait, "t", b"right")
        )
        given.start()
        await asyncio.to_thread(given.join)
        await asyncio.sleep(0)
    assert values_of(wire) == [b"right"]


@pytest.mark.promise("in-nowait-nobody-told")
async def test_what_nobody_is_told_of_is_logged_and_raised_at_the_end(wire: FakeWire) -> None:
    """By topic and reason; the others are in the log."""
    _refuse_bad(wire)
    outcomes: list[Outcome] = []
    producer = _producer()
    await producer.start()
    await _open(producer, "t", "u")
    with structlog.testing.capture_logs() as lines:
        for topic, value in (("t", b"bad"), ("t", b"good"), ("u", b"bad"), ("t", b"bad2")):
            producer.send_nowait(topic, value)
        producer.send_nowait("t", b"bad", on_delivery=outcomes.append)
        producer.send_nowait("t", b"", partition=9)
        await producer.flush()
        assert producer.statistics().unheard == 4
        for _ in range(2):  # who calls it again hears it again
            with pytest.raises(NotAllPersistedError, match="of 5 events 4 are not persisted") as at:
                await producer.close()
    assert outcomes == [_WHY]
    assert at.value.result.persisted == 1
    assert [failure.index for failure in at.value.result.failures] == [0, 2, 3, 4]
    told = {(line["topic"], line["reason"]): line["events"] for line in lines if "events" in line}
    assert told == {
        ("t", "POLICY_VIOLATION"): 2,
        ("u", "POLICY_VIOLATION"): 1,
        ("t", "partition 9: topic t has 0 to 0"): 1,
    }


@pytest.mark.promise("in-nowait-nobody-told")
async def test_on_failure_is_given_what_ends_badly(wire: FakeWire) -> None:
    _refuse_bad(wire)
    failed: list[GivenUp] = []
    async with _producer(on_failure=failed.extend) as producer:
        await _open(producer)
        producer.send_nowait("t", b"bad", b"key", headers=[("trace", b"1")])
        producer.send_nowait("t", b"good")
        await (await producer.send("t", b"bad"))
        producer.send_nowait("t", b"", partition=9)
        await producer.flush()
        assert producer.statistics().unheard == 0
    assert [(one.value, one.key, one.headers, one.outcome) for one in failed] == [
        (b"bad", b"key", (("trace", b"1"),), _WHY),
        (b"", None, (), NotPersisted("partition 9: topic t has 0 to 0")),
    ]


@pytest.mark.promise("in-nowait-nobody-told")
async def test_what_on_failure_does_not_take_counts_as_untold(wire: FakeWire) -> None:
    _refuse_bad(wire)

    def refuse(events: Sequence[GivenUp]) -> None:
        raise OSError(len(events))

    producer = _producer(on_failure=refuse)
    await producer.start()
    await _open(producer)
    producer.send_nowait("t", b"bad")
    with pytest.raises(NotAllPersistedError, match="of 1 events 1 are not"):
        await producer.close()


@pytest.mark.promise("in-nowait-nobody-told")
async def test_what_is_given_up_is_told_once(wire: FakeWire) -> None:
    """By `on_given_up`; the rest, not answered at the end, by `on_failure`, or by an error."""
    _refuse_bad(wire)
    given_up: list[GivenUp] = []
    failed: list[GivenUp] = []
    options = {"on_given_up": given_up.extend}
    async with _producer(**options, on_failure=failed.extend) as producer:
        await _open(producer)
        producer.send_nowait("t", b"bad")
        producer.send_nowait("t", b"", partition=9)
    assert ([one.value for one in given_up], failed) == ([b"", b"bad"], [])
    producer = _producer(**options)
    await producer.start()
    await _open(producer)
    producer.send_nowait("t", b"bad")
    await producer.flush()
    wire.fault = lambda _records: DROPPED
    producer.send_nowait("t", b"lost")
    with pytest.raises(NotAllPersistedError, match=r"of 2 events 1 are not .* 1 only possibly"):
        await producer.close(timedelta(milliseconds=50))
    assert [one.value for one in given_up] == [b"", b"bad", b"bad"]


async def test_an_error_in_a_with_block_counts_more(wire: FakeWire) -> None:
    _refuse_bad(wire)

    async def use_it() -> None:
        async with _producer() as producer:
            await _open(producer)
            producer.send_nowait("t", b"bad")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use_it()


@pytest.mark.promise("in-nowait-nobody-told")
@pytest.mark.parametrize("is_readable", [True, False])
async def test_what_only_the_journal_has_is_read_for_on_failure(
    wire: FakeWire,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., IdempotentProducer],
    *,
    is_readable: bool,
) -> None:
    """And counted where it cannot be read now."""
    failed: list[GivenUp] = []
    producer = make(batch_size=1)
    producer._on_send_failure = failed.extend
    await producer.start()
    await _open(producer)
    wire.reachable = wire.connected = False
    producer.send_nowait("t", b"value")
    running = producer._running
    assert running is not None
    await running.rounds.kept(running.rounds.next_cut)
    (batch,) = running.accumulator.outstanding.batches
    batch.unload()
    if not is_readable:
        monkeypatch.setattr(running.rounds.spill, "read_now", lambda _batch: False)
    running._settlement.complete(batch, PossiblyPersisted("late"))
    assert [one.value for one in failed] == ([b"value"] if is_readable else [])
    assert producer.statistics().unheard == (0 if is_readable else 1)
    assert batch.in_memory is (InMemory.READ_BACK if is_readable else InMemory.AWAY)


@pytest.mark.promise("in-nowait-journal-keeps")
@pytest.mark.parametrize("has_hearer", [True, False])
async def test_what_the_journal_sends_again_nobody_else_is_given(
    wire: FakeWire, make: Callable[..., IdempotentProducer], *, has_hearer: bool
) -> None:
    """Whoever is given an event stores it, or sends it again: it would be in the log twice."""
    failed: list[GivenUp] = []
    producer = make()
    if has_hearer:
        producer._on_send_failure = failed.extend
    await producer.start()
    await _open(producer)
    wire.reachable = wire.connected = False
    producer.send_nowait("t", b"value")
    with structlog.testing.capture_logs() as lines:
        await close_without_kafka(producer)
    (told,) = (line for line in lines if "events" in line)
    assert (told["topic"], told["events"]) == ("t", 1)
    assert "the journal keeps it for the next start" in told["reason"]
    assert producer.statistics().possibly_persisted == 1
    wire.reachable = True
    async with make() as producer:
        for event in failed:
            producer.send_nowait("t", event.value)
        await producer.flush()
    assert values_of(wire) == [b"value"]


@pytest.mark.promise("in-nowait-journal-keeps")
async def test_what_could_not_be_stored_stays_with_the_journal_alone(
    wire: FakeWire, tmp_path: Path
) -> None:
    """`on_given_up` raised, so that the next start tries the event again."""
    wire.fault = lambda _records: _REFUSED
    failed: list[GivenUp] = []

    def refuse(events: Sequence[GivenUp]) -> None:
        raise OSError(len(events))

    settings = ProducerSettings(name="me", journal=tmp_path / "journal", **FAST)
    producer = IdempotentProducer(
        "unused:1", settings, on_given_up=refuse, on_failure=failed.extend
    )
    await producer.start()
    await _open(producer)
    producer.send_nowait("t", b"value")
    assert isinstance(await producer.failure(), OSError)
    await producer.close()
    assert failed == []
    wire.fault = lambda _records: None
    async with IdempotentProducer("unused:1", settings) as producer:
        await producer.flush()
    assert values_of(wire) == [b"value"]


@pytest.mark.promise("in-nowait-journal-keeps")
async def test_what_is_late_is_given_once_it_is_refused(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `delivery_timeout` it is sent still: only then nobody sends it any more."""
    failed: list[GivenUp] = []
    was_given = asyncio.Event()

    def keep(events: Sequence[GivenUp]) -> None:
        failed.extend(events)
        was_given.set()

    def drop(_records: list[StoredRecord]) -> str:
        wire.reachable = False
        return DROPPED

    wire.fault = drop
    producer = make()
    producer._on_send_failure = keep
    async with producer:
        await _open(producer)
        producer.send_nowait("t", b"value")
        await wire.broken.wait()
        # For good: what was set to a time meanwhile would wait for it by the former clock.
        let_pass(2 * producer._settings.delivery_timeout, monkeypatch)
        while not producer.statistics().possibly_persisted:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)
        assert failed == []
        wire.fault = lambda _records: _REFUSED
        wire.reachable = True
        await was_given.wait()
    assert [one.value for one in failed] == [b"value"]


@pytest.mark.promise("in-nowait-nobody-told")
async def test_what_a_failed_journal_may_keep_is_given_to_on_failure(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be gone; its outcome says that it is not known."""
    failed: list[GivenUp] = []
    producer = make()
    producer._on_send_failure = failed.extend
    await producer.start()
    await _open(producer)
    wire.reachable = wire.connected = False
    journal = producer._journal

    def fail(*_arguments: Any) -> None:
        raise JournalFailedError("the disk is gone")

    monkeypatch.setattr(journal, "append", fail)
    monkeypatch.setattr(journal, "sync", fail)
    producer.send_nowait("t", b"value")
    await producer.failure()
    await producer.close()
    assert [one.value for one in failed] == [b"value"]
    assert isinstance(failed[0].outcome, PossiblyPersisted)


@given(
    kinds=st.lists(st.sampled_from(["call", "none", "send", "many", "dated"]), max_size=30),
    most=st.integers(1, 8),
)
def test_halves_give_each_event_its_own_outcome(kinds: list[str], most: int) -> None:
    """However calls, deliveries and tickets alternate in the batch that is cut."""

    async def run() -> None:
        with pytest.MonkeyPatch.context() as patched:
            wire = FakeWire(fault=lambda records: _TOO_LARGE if len(records) > most else None)
            use(wire, patched)
            called: dict[int, Outcome] = {}
            deliveries: dict[int, Any] = {}
            async with make_producer() as producer:
                await _open(producer)
                for number, kind in enumerate(kinds):
                    value = b"%d" % number
                    if kind == "send":
                        deliveries[number] = await producer.send("t", value)
                    elif kind == "many":
                        await producer.send_many("t", [Record(value)])
                    else:
                        call = None if kind == "none" else partial(called.__setitem__, number)
                        dated_ms = number if kind == "dated" else None
                        producer.send_nowait("t", value, timestamp_ms=dated_ms, on_delivery=call)
                await producer.flush()
            assert values_of(wire) == [b"%d" % number for number in range(len(kinds))]
            outcomes = called | {number: await one for number, one in deliveries.items()}
            assert outcomes == {
                number: InLog(0, number)
                for number, kind in enumerate(kinds)
                if kind not in {"none", "many"}
            }

    asyncio.run(run())
