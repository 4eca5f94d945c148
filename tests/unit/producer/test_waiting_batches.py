"""What cannot be sent yet is in the journal, and memory holds a window of it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.process import StampClock
from sequitur.errors import JournalClosedError, JournalError, JournalFullError
from sequitur.producer import IdempotentProducer, NotPersisted, Persisted, PossiblyPersisted, Record
from sequitur.producer.journal.disk import RealDisk
from sequitur.producer.journal.frames import SourcePosition, Waiting
from sequitur.producer.journal.report import inspect_journal
from tests.support.fake_wire import LOST, FakeWire
from tests.support.outcomes import InLog
from tests.support.producers import close_without_kafka, kill, scripted, values_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.kafka.record_batch import StoredRecord

_MIB = 1 << 20


@pytest.fixture
def make(make: Callable[..., IdempotentProducer]) -> Callable[..., IdempotentProducer]:
    """Such lives, for which nothing that waits is too old."""
    return partial(make, delivery_timeout=timedelta(hours=1))


async def _away(wire: FakeWire, producer: IdempotentProducer) -> None:
    await producer.start()
    await (await producer.send("t", b"first"))
    wire.reachable = wire.connected = False


@pytest.mark.promise("in-event-accepted-partition")
async def test_every_sent_event_outlives_a_kill_whatever_is_on_its_way(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """With the window full the next events are journaled all the same, one by one."""
    producer = make()
    await _away(wire, producer)
    values = [b"%d" % number for number in range(40)]
    for value in values:
        delivery = await producer.send("t", value)
        async with asyncio.timeout(PATIENCE_S):
            await delivery.journaled
    await kill(producer)
    wire.reachable = True
    async with make() as producer:
        assert producer.statistics().recovered == 40
        await (await producer.send("t", b"last"))
    assert values_of(wire) == [b"first", *values, b"last"]


@pytest.mark.promise("in-event-accepted-partition")
async def test_few_events_are_journaled_after_the_linger_though_nobody_waits(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many are gathered while no partition could send them; a slow source gains nothing by that."""
    monkeypatch.setattr("sequitur.producer.delivery.rounds._GATHER_S", 3600.0)
    producer = make()
    await _away(wire, producer)
    for number in range(40):  # more than have numbers ahead
        await (await producer.send("t", b"%d" % number)).journaled
    await producer.send("t", b"last")
    assert producer._running is not None
    async with asyncio.timeout(PATIENCE_S):
        while producer._running.accumulator.uncut_events:  # noqa: ASYNC110 - a timer does it
            await asyncio.sleep(0.001)
    await kill(producer)
    wire.reachable = True
    async with make() as producer:
        assert producer.statistics().recovered == 41
        await producer.flush()


async def test_the_smallest_buffer_takes_events_one_by_one(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """With a journal half of the buffer is the senders': of one byte something is left."""
    async with make(buffer_size=1, delivery_timeout=timedelta(seconds=30)) as producer:
        for number in range(3):
            await producer.send_and_wait("t", b"%d" % number)
    assert values_of(wire) == [b"0", b"1", b"2"]


@pytest.mark.promise("in-event-accepted-partition")
async def test_events_that_trickle_in_wait_in_few_batches(
    wire: FakeWire, make: Callable[..., IdempotentProducer], tmp_path: Path
) -> None:
    """What cannot be sent grows in one batch, though each event is journaled at once."""
    producer = make()
    await _away(wire, producer)
    for number in range(100):
        await (await producer.send("t", b"%d" % number)).journaled
    (partition,) = inspect_journal(tmp_path / "journal").partitions
    assert len(partition.unacked) + len(partition.waiting) <= 20
    wire.reachable = True
    await producer.close()
    assert values_of(wire) == [b"first", *(b"%d" % number for number in range(100))]


@pytest.mark.promise("in-files-open-batches")
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
async def test_what_waits_is_read_back_once_a_file_can_be_opened(
    wire: FakeWire,
    make: Callable[..., IdempotentProducer],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    """Too many open files is nothing that stays so: the producer waits, and says why."""
    producer = make(buffer_size=_MIB, batch_size=64 << 10, compression="none")
    await _away(wire, producer)
    values = [b"%06d" % number + bytes(4_000) for number in range(600)]
    ticket = await producer.accept("t", [Record(value) for value in values])
    await ticket.journaled
    async with asyncio.timeout(PATIENCE_S):
        # Some have left the memory then.
        while producer.statistics().buffered_bytes * 2 > _MIB:  # noqa: ASYNC110 - a timer's doing
            await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    tries, enough = itertools.count(), asyncio.Event()

    def fail(_disk: RealDisk, name: str, _offset: int, _length: int) -> bytes:
        if next(tries) > 2:
            loop.call_soon_threadsafe(enough.set)
        raise OSError(code, os.strerror(code), name)

    told: list[str] = []
    log = SimpleNamespace(
        warning=lambda event, reason: told.append(f"{event}: {reason}"), info=told.append
    )
    monkeypatch.setattr("sequitur.producer.delivery.spill._log", log)
    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "read_part", fail)
        wire.reachable = True
        async with asyncio.timeout(PATIENCE_S):
            await enough.wait()
    async with asyncio.timeout(PATIENCE_S):
        assert (await ticket).persisted == len(values)
    await producer.close()
    assert values_of(wire) == [b"first", *values]
    assert told[0].startswith("batches wait until they can be read back: could not read in")
    assert os.strerror(code) in told[0]
    assert told[1:] == ["batches are read back again"]


@pytest.mark.promise("in-events-wait-memory")
async def test_memory_holds_a_window_of_what_waits(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """Sixteen times the buffer is accepted while Kafka is away, and drains in order."""
    wire.partition_count = 3
    settings: dict[str, Any] = {
        "buffer_size": _MIB,
        "journal_limit": 64 * _MIB,
        "batch_size": 64 << 10,
        "compression": "none",
    }
    producer = make(**settings)
    await _away(wire, producer)
    records = [Record(b"%06d" % n + bytes(4_000), key=b"%d" % (n % 50)) for n in range(4_000)]
    for start in range(0, len(records), 100):
        ticket = await producer.accept("t", records[start : start + 100])
    await ticket.journaled
    counts = producer.statistics()
    assert counts.accepted == 4_001
    assert counts.buffered_bytes <= 1.2 * _MIB
    assert producer._running is not None
    held = sum(len(batch.data) for batch in producer._running.accumulator.outstanding.batches)
    assert held <= 1.2 * _MIB
    await kill(producer)
    wire.reachable = True
    producer = make(**settings)
    await producer.start()
    assert producer.statistics().recovered >= 4_000
    largest = 0
    flushing = asyncio.create_task(producer.flush())
    while not flushing.done():
        await asyncio.sleep(0)
        assert producer._running is not None
        live = producer._running.accumulator.outstanding.batches
        largest = max(largest, sum(len(batch.data) for batch in live))
    assert largest <= 1.2 * _MIB
    await producer.close()
    found = {partition: values_of(wire, partition) for partition in range(3)}
    assert sum(map(len, found.values())) == 4_001
    for values in found.values():
        numbers = [value for value in values if value != b"first"]
        assert numbers == sorted(numbers, key=lambda value: value or b"")


@pytest.mark.promise("in-events-wait-open")
async def test_batches_of_many_partitions_leave_memory_before_they_are_full(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """Batches of forty partitions are five times the senders' memory, and seven times it waits."""
    wire.partition_count = 40
    settings: dict[str, Any] = {
        "buffer_size": 4 * _MIB,
        "journal_limit": 64 * _MIB,
        "compression": "none",
        "max_in_flight": 1,
    }
    producer = make(**settings)
    await _away(wire, producer)
    records = [Record(b"%06d" % n + bytes(4_000), partition=n % 40) for n in range(4_000)]
    for start in range(0, len(records), 100):
        ticket = await producer.accept("t", records[start : start + 100])
    await ticket.journaled
    assert producer.statistics().buffered_bytes <= 2.4 * _MIB
    wire.reachable = True
    await producer.flush()
    await producer.close()
    for partition in range(40):
        values = [value for value in values_of(wire, partition) if value != b"first"]
        assert values == [record.value for record in records[partition::40]]


@pytest.mark.promise("in-events-wait-longer")
async def test_what_waited_is_dated_when_it_is_numbered(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """A broker forgets a producer by its records' timestamps; those of a sender's stay."""
    day_ms = 24 * 3600 * 1000
    now_ms = int(time.time() * 1000)
    clock_ms = now_ms
    producer = make()
    producer._clock = StampClock(lambda: clock_ms)
    await producer.start()
    await (await producer.send("u", b"dated", timestamp_ms=now_ms - 9 * day_ms))
    await (await producer.send("t", b"first"))
    wire.reachable = wire.connected = False
    clock_ms = now_ms - 2 * day_ms
    for number in range(40):
        await (await producer.send("t", b"%d" % number)).journaled
    for _ in range(40):
        old_ms = now_ms - 9 * day_ms
        await (await producer.send("u", b"dated", timestamp_ms=old_ms)).journaled
    await kill(producer)
    wire.reachable = True
    async with make() as producer:
        await producer.flush()
    (waited,) = [r for r in wire.records["t", 0] if r.value == b"39"]
    assert now_ms - waited.timestamp_ms < day_ms
    assert {now_ms - r.timestamp_ms for r in wire.records["u", 0]} == {9 * day_ms}


@pytest.mark.promise("in-events-call-journal")
async def test_a_long_call_is_taken_whole_or_not_at_all(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """Events and position of a call over half of the journal's limit are journaled in parts."""
    settings: dict[str, Any] = {"journal_limit": 4 * _MIB, "compression": "none"}
    producer = make(**settings)
    await producer.start()
    await (await producer.send("t", b"first"))
    values = [b"%04d" % n + bytes(10_000) for n in range(250)]
    ticket = await producer.accept(
        "t", [Record(value) for value in values], SourcePosition("f", b"1")
    )
    async with asyncio.timeout(PATIENCE_S):
        await ticket.journaled
        assert (await ticket).persisted == 250
    await producer.close()
    assert values_of(wire) == [b"first", *values]
    async with make(**settings) as producer:
        assert producer.recovered_position("f") == b"1"


@pytest.mark.promise("in-events-call-journal")
async def test_a_kill_between_the_parts_of_a_call_leaves_nothing_of_it(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"journal_limit": 4 * _MIB, "compression": "none"}
    producer = make(**settings)
    await producer.start()
    await (await producer.send("t", b"first"))
    journal = producer._journal
    assert journal is not None
    append, third = journal.append, asyncio.Event()
    parts = iter(range(3))
    loop = asyncio.get_running_loop()

    def until_the_third(frames: Any, *, part: bool = False) -> None:
        if part and next(parts) == 2:
            loop.call_soon_threadsafe(third.set)
            raise JournalError("killed")
        append(frames, part=part)

    monkeypatch.setattr(journal, "append", until_the_third)
    values = [b"%04d" % n + bytes(10_000) for n in range(250)]
    await producer.accept("t", [Record(value) for value in values], SourcePosition("f", b"1"))
    await third.wait()
    await kill(producer)
    async with make(**settings) as producer:
        assert producer.recovered_position("f") is None
        await producer.flush()
    assert values_of(wire) == [b"first"]


@pytest.mark.promise("in-events-call-journal")
async def test_what_a_long_call_leaves_open_has_no_number_before_it_is_whole(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has its first events, and no room for the others: the next life sends it once."""
    settings: dict[str, Any] = {
        "journal_limit": 4 * _MIB,
        "batch_size": 64 << 10,
        "compression": "none",
    }
    producer = make(**settings)
    await _away(wire, producer)
    numbered = [b"%d" % n for n in range(15)]
    for value in numbered:
        await (await producer.send("t", value)).journaled
    values = [b"%04d" % n + bytes(10_000) for n in range(75)]
    ticket = await producer.accept("t", [Record(v) for v in values[:64]], SourcePosition("f", b"1"))
    await ticket.journaled
    journal = producer._journal
    assert journal is not None
    append, refused, drained = journal.append, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def full_for_events(frames: Any, *, part: bool = False) -> None:
        if any(isinstance(frame, Waiting) for frame in frames):
            loop.call_soon_threadsafe(refused.set)
            raise JournalFullError("no space left on the disk")
        append(frames, part=part)

    def last_whole_one(records: list[StoredRecord]) -> None:
        if any(record.value == values[59] for record in records):
            drained.set()

    wire.fault = last_whole_one
    monkeypatch.setattr(journal, "append", full_for_events)
    ticket = await producer.accept("t", [Record(v) for v in values[64:]], SourcePosition("f", b"2"))
    async with asyncio.timeout(PATIENCE_S):
        await refused.wait()
        wire.reachable = True
        await drained.wait()
        for _ in range(3):  # what waits is looked at before each
            refused.clear()
            await refused.wait()
        monkeypatch.setattr(journal, "append", append)
        await ticket.journaled
    await kill(producer)
    async with make(**settings) as producer:
        assert producer.recovered_position("f") == b"2"
        await producer.flush()
    assert values_of(wire) == [b"first", *numbered, *values]


async def test_what_waited_too_long_is_told_and_gone(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """What never had a number is `NotPersisted` after the time-out, and not sent by the next."""
    producer = make(delivery_timeout=timedelta(milliseconds=200))
    await _away(wire, producer)
    deliveries = [await producer.send("t", b"%d" % number) for number in range(40)]
    async with asyncio.timeout(PATIENCE_S):
        outcomes = [await delivery for delivery in deliveries]
    assert all(isinstance(outcome, NotPersisted) for outcome in outcomes)
    await kill(producer)
    wire.reachable = True
    async with make() as producer:
        assert await (await producer.send("t", b"last")) == InLog(0, 1)


async def test_closing_leaves_what_waits_to_the_next_start(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """It is told as possibly persisted, and the next life sends it."""
    producer = make()
    await _away(wire, producer)
    deliveries = []
    for number in range(40):
        deliveries.append(await producer.send("t", b"%d" % number))
        await deliveries[-1].journaled
    await close_without_kafka(producer)
    for delivery in deliveries:
        outcome = await delivery
        assert isinstance(outcome, PossiblyPersisted)
        assert "the journal keeps it" in outcome.reason
    wire.reachable = True
    async with make() as producer:
        await producer.flush()
    assert len(values_of(wire)) == 41


async def test_a_lane_whose_batches_were_refused_goes_on_with_what_waits(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """Renewals and halves go before what has no numbers, and it follows in order."""
    producer = make()
    await _away(wire, producer)
    for number in range(60):
        await (await producer.send("t", b"%d" % number)).journaled
    wire.fault = scripted(None, 45, None, 10, None, 44)
    wire.reachable = True
    async with asyncio.timeout(PATIENCE_S):
        await producer.flush()
    await producer.close()
    values = [int(value or b"") for value in values_of(wire)[1:]]
    assert values == sorted(set(values))
    assert len(values) >= 40


@pytest.mark.promise("in-events-wait-longer")
@pytest.mark.parametrize("restarts", [False, True])
async def test_old_records_are_looked_for_before_they_are_sent_again(
    wire: FakeWire, make: Callable[..., IdempotentProducer], restarts: bool
) -> None:
    """A broker forgets a producer by its records' timestamps, and would take a repeat."""
    day_ms = 24 * 3600 * 1000
    old_ms = int(time.time() * 1000) - 2 * day_ms
    slow: dict[str, Any] = {
        "retry_backoff": timedelta(milliseconds=300),
        "retry_backoff_max": timedelta(milliseconds=300),
    }
    producer = make(**slow)
    await producer.start()
    await (await producer.send("t", b"0", timestamp_ms=old_ms))
    wire.fault = scripted(LOST)
    await producer.send("t", b"1", timestamp_ms=old_ms)
    await wire.broken.wait()
    describe = wire.last_sequence

    async def known_for_the_last_time(*place: Any) -> int | None:
        last = await describe(*place)
        wire.brokers["t", 0].forget()
        return None if last is None else last - 1

    wire.last_sequence = known_for_the_last_time  # type: ignore[assignment, method-assign]
    if restarts:
        await kill(producer)
        producer = make(**slow)
        await producer.start()
    else:
        wire.brokers["t", 0].forget()
    assert isinstance(await (await producer.send("t", b"2")), Persisted)
    await producer.close()
    assert values_of(wire) == [b"0", b"1", b"2"]


@pytest.mark.promise("in-producer-closed-fails")
@pytest.mark.usefixtures("wire")
async def test_who_waits_for_a_full_disk_hears_of_the_end(
    make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`journaled` and `note_position` end with an error by name when the producer is closed."""
    producer = make()
    await producer.start()
    await (await producer.send("t", b"0"))
    journal = producer._journal
    assert journal is not None

    def full(*_: Any, **__: Any) -> None:
        raise JournalFullError("no space left on the disk of journal")

    monkeypatch.setattr(journal, "append", full)
    delivery = await producer.send("t", b"1")
    ticket = await producer.accept("t", [Record(b"2")], SourcePosition("f", b"2"))
    noting = asyncio.create_task(producer.note_position(SourcePosition("f", b"3")))
    waiting = asyncio.ensure_future(ticket.journaled)
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await producer.close(timedelta(milliseconds=200))
        for told in (noting, waiting, ticket.journaled):
            with pytest.raises(JournalClosedError, match=r"was closed before.*no space left"):
                await told
        await delivery.journaled  # it has its outcome
        assert isinstance(await delivery, NotPersisted)
