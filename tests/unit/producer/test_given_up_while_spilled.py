"""What is in the journal alone is given up, refused or expires: nothing gets stuck, or is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from datetime import timedelta
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import JournalFailedError
from sequitur.producer import (
    IdempotentProducer,
    NotPersisted,
    Persisted,
    PossiblyPersisted,
    ProducerSettings,
    Record,
)
from sequitur.producer.batching.batch import InMemory
from sequitur.producer.delivery.recovery import Recovery
from sequitur.producer.delivery.settlement import Settlement
from sequitur.producer.journal.disk import RealDisk
from sequitur.producer.journal.frames import WaitingKey
from sequitur.producer.journal.journal import Journal
from tests.support.fake_wire import LOST, FakeWire
from tests.support.outcomes import InLog
from tests.support.producers import FAST, kill, values_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sequitur.kafka.record_batch import StoredRecord
    from sequitur.producer._outcome import GivenUp, Ticket
    from sequitur.producer.batching.batch import Batch
    from sequitur.producer.delivery.send_queues import SendQueue

_BUFFER = 1 << 20
_SPILLING: dict[str, Any] = {
    "buffer_size": _BUFFER,
    "batch_size": 16 << 10,
    "compression": "none",
    "delivery_timeout": timedelta(hours=1),
}


@pytest.fixture
def make(make: Callable[..., IdempotentProducer]) -> Callable[..., IdempotentProducer]:
    """Such lives, whose memory is small, and for which nothing that waits is too old."""
    return partial(make, **_SPILLING)


def _values(count: int) -> list[bytes]:
    return [b"%06d" % number + bytes(4_000) for number in range(count)]


async def _begin(wire: FakeWire, producer: IdempotentProducer) -> None:
    await producer.start()
    await (await producer.send("t", b"first"))
    wire.reachable = wire.connected = False


async def _accept_until_spilled(
    producer: IdempotentProducer, count: int = 300, **of_record: Any
) -> Ticket:
    ticket = await producer.accept("t", [Record(value, **of_record) for value in _values(count)])
    await ticket.journaled
    async with asyncio.timeout(PATIENCE_S):
        while producer.statistics().buffered_bytes * 4 > _BUFFER:  # noqa: ASYNC110 - a timer's doing
            await asyncio.sleep(0.01)
    return ticket


async def _begin_and_spill(wire: FakeWire, producer: IdempotentProducer, **more: Any) -> Ticket:
    await _begin(wire, producer)
    return await _accept_until_spilled(producer, **more)


def _queues(producer: IdempotentProducer) -> list[SendQueue]:
    assert producer._running is not None
    return list(producer._running._queues)


def _expire(producer: IdempotentProducer) -> None:
    assert producer._running is not None
    for queue in _queues(producer):
        producer._running._settlement.expire(queue, inf, 0.0)


def _stored(producer: IdempotentProducer) -> list[Batch]:
    assert producer._running is not None
    return [
        batch
        for batch in producer._running.accumulator.outstanding.batches
        if batch.in_memory is InMemory.AWAY
    ]


class _SlowReads:
    """Reads of the journal that wait until they may go on: of batches from an event on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, from_event: int = 0) -> None:
        self.entered = 0
        self.go_on = threading.Event()
        read = Journal.read

        def slow(journal: Journal, key: Any) -> bytes:
            first_event = key.first_event_sequence if isinstance(key, WaitingKey) else 0
            if first_event >= from_event:
                self.entered += 1
                assert self.go_on.wait(PATIENCE_S)
            return read(journal, key)

        monkeypatch.setattr(Journal, "read", slow)

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.entered < count:  # noqa: ASYNC110 - a thread's doing
                await asyncio.sleep(0.001)


def _no_file_can_be_read(monkeypatch: pytest.MonkeyPatch, code: int = errno.EMFILE) -> None:
    def fail(_disk: RealDisk, name: str, _offset: int, _length: int) -> bytes:
        raise OSError(code, os.strerror(code), name)

    monkeypatch.setattr(RealDisk, "read_part", fail)


@pytest.mark.promise("in-batch-given-found")
async def test_what_is_given_up_while_it_is_read_back_leaves_its_reader_free(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has forgotten it when its reader gets there; the next outage is read back."""
    wire.partition_count = 6
    producer = make()
    ticket = await _begin_and_spill(wire, producer)
    with monkeypatch.context() as patch:
        reads = _SlowReads(patch)
        wire.reachable = True
        await reads.begun(4)
        wire.reachable = wire.connected = False
        _expire(producer)
        async with asyncio.timeout(PATIENCE_S):
            result = await ticket
        assert result.not_persisted
        reads.go_on.set()
    ticket = await _accept_until_spilled(producer)
    wire.reachable = True
    async with asyncio.timeout(PATIENCE_S):
        assert (await ticket).persisted == 300
    await producer.close()


@pytest.mark.promise("in-batch-given-found")
async def test_what_expires_while_it_is_looked_up_holds_up_no_partition(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a former life left is given up meanwhile, and new events go on."""
    producer = make()
    await _begin(wire, producer)
    ticket = await producer.accept("t", [Record(value) for value in _values(200)])
    await ticket.journaled
    (queue,) = _queues(producer)
    assert queue.first_waiting is not None
    reads = _SlowReads(monkeypatch, queue.first_waiting.first_event)
    await kill(producer)
    wire.brokers.clear()
    wire.records.clear()
    wire.names.clear()
    wire.cluster_id, wire.reachable = "another", True  # so that the log is searched
    producer = make(accept_new_cluster=True)
    await producer.start()
    await reads.begun(1)
    _expire(producer)
    reads.go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        assert isinstance(await (await producer.send("t", b"new")), Persisted)
    await producer.close()


@pytest.mark.promise("in-events-bear-timestamps")
async def test_dated_events_whose_bytes_have_left_memory_are_sent_again(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """How old they are is known without their bytes."""
    producer = make()
    ticket = await _begin_and_spill(wire, producer, timestamp_ms=int(time.time() * 1000))
    sent = 0

    def lose_each_fourth(_records: list[StoredRecord]) -> str | None:
        nonlocal sent
        sent += 1
        return LOST if sent % 4 == 0 else None

    wire.fault = lose_each_fourth
    wire.reachable = True
    async with asyncio.timeout(PATIENCE_S):
        assert (await ticket).persisted == 300
    await producer.close()
    assert values_of(wire) == [b"first", *_values(300)]


class _Keeper:
    """Keeps what is given up."""

    def __init__(self, folder: Path) -> None:
        self.events: list[GivenUp] = []
        chosen = ProducerSettings(
            name="me", journal=folder / "journal", **(FAST | _SPILLING | {"close_timeout": _SOON})
        )
        self.producer = IdempotentProducer("unused:1", chosen, on_given_up=self.keep)

    def keep(self, events: Sequence[GivenUp]) -> None:
        self.events += events

    @property
    def values(self) -> list[bytes | None]:
        return [event.value for event in self.events]


_SOON = timedelta(seconds=1)


@pytest.mark.promise("in-time-batch-bytes")
async def test_what_cannot_be_read_when_its_time_is_over_stays_where_it_is(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent in order, or given up once a file can be opened; the next start has nothing."""
    keeper = _Keeper(tmp_path)
    producer = keeper.producer
    ticket = await _begin_and_spill(wire, producer)
    with monkeypatch.context() as patch:
        _no_file_can_be_read(patch)
        _expire(producer)
        assert producer.blocked_reason() is None
        given_up = len(keeper.events)
        assert given_up < 300
    wire.reachable = True
    async with asyncio.timeout(PATIENCE_S):
        result = await ticket
    assert (result.persisted, result.not_persisted) == (300 - given_up, given_up)
    await producer.close()
    async with _Keeper(tmp_path).producer as again:
        assert again.statistics().recovered == 0
    (_first, *persisted) = values_of(wire)
    assert persisted == sorted(persisted, key=lambda value: value or b"")
    assert sorted([*persisted, *keeper.values], key=lambda value: value or b"") == _values(300)


@pytest.mark.promise("in-time-batch-bytes")
async def test_it_is_given_up_whole_once_a_file_can_be_opened(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event is handed over once, in order."""
    keeper = _Keeper(tmp_path)
    producer = keeper.producer
    ticket = await _begin_and_spill(wire, producer)
    with monkeypatch.context() as patch:
        _no_file_can_be_read(patch)
        _expire(producer)
    _expire(producer)
    async with asyncio.timeout(PATIENCE_S):
        assert (await ticket).not_persisted == 300
    assert sorted(keeper.values, key=lambda value: value or b"") == _values(300)
    await producer.close()


@pytest.mark.promise("in-disk-fails-journal")
async def test_what_a_disk_fails_to_give_back_ends_the_producer_and_is_kept(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not as with files that cannot be opened now: the next start sends it, in order."""
    keeper = _Keeper(tmp_path)
    producer = keeper.producer
    ticket = await _begin_and_spill(wire, producer)
    with monkeypatch.context() as patch:
        _no_file_can_be_read(patch, errno.EIO)
        core = producer._running
        assert core is not None
        core.sender._delivery_timeout_s = -1.0  # the sweep finds that the time of all is over
        async with asyncio.timeout(PATIENCE_S):
            assert os.strerror(errno.EIO) in str(await producer.failure())
            result = await ticket
        await producer.close()
    given_up = len(keeper.events)
    assert result.possibly_persisted == 300
    assert "the journal keeps it" in result.failures[-1].outcome.reason
    wire.reachable = True
    async with _Keeper(tmp_path).producer as again:
        await again.flush()
    persisted = values_of(wire)[1:]
    assert len(persisted) == 300 - given_up
    assert persisted == sorted(persisted, key=lambda value: value or b"")


@pytest.mark.promise("in-defect-ours-ends")
async def test_what_was_given_up_just_before_the_producer_failed_has_an_outcome(
    wire: FakeWire, tmp_path: Path
) -> None:
    """The journal was not told of it yet, so the next start may send it."""
    given: list[bytes | None] = []

    def keep_one(events: Sequence[GivenUp]) -> None:
        if given:
            raise OSError("no room for another")
        given.extend(event.value for event in events)

    chosen = ProducerSettings(name="me", journal=tmp_path / "journal", **(FAST | _SPILLING))
    producer = IdempotentProducer("unused:1", chosen, on_given_up=keep_one)
    await _begin(wire, producer)
    ticket = await producer.accept("t", [Record(value) for value in _values(100)])
    await ticket.journaled
    with pytest.raises(OSError, match="no room for another"):
        _expire(producer)
    assert given
    async with asyncio.timeout(PATIENCE_S):
        assert "no room" in str(await producer.failure())
        result = await ticket
    assert result.possibly_persisted == 100
    assert all("the journal" in failure.outcome.reason for failure in result.failures)
    await producer.close()
    wire.reachable = True
    async with IdempotentProducer("unused:1", chosen) as again:
        await again.flush()
    (_first, *persisted) = values_of(wire)
    assert sorted([*given, *persisted], key=lambda value: value or b"") == _values(100)


@pytest.mark.promise("in-time-batch-bytes")
@pytest.mark.parametrize("is_readable", [True, False])
async def test_events_that_nobody_awaits_are_given_to_their_hearer_from_the_journal(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    """Before the journal forgets them. What a disk fails to give back, the next start sends."""
    heard: list[GivenUp] = []
    chosen = ProducerSettings(name="me", journal=tmp_path / "journal", **(FAST | _SPILLING))
    producer = IdempotentProducer("unused:1", chosen, on_failure=heard.extend)
    await _begin(wire, producer)
    assert producer._running is not None
    async with asyncio.timeout(PATIENCE_S):
        for value in _values(150):
            while producer._running.free_route("t") is None:  # noqa: ASYNC110 - a timer's doing
                await asyncio.sleep(0.01)
            producer.send_nowait("t", value)
        while not _stored(producer):  # noqa: ASYNC110 - a timer's doing
            await asyncio.sleep(0.01)
    with monkeypatch.context() as patch:
        if is_readable:
            _expire(producer)
        else:
            _no_file_can_be_read(patch, errno.EIO)
            with pytest.raises(JournalFailedError):
                _expire(producer)
        await producer.close()
    assert (len(heard) == 150) is is_readable
    wire.reachable = True
    async with IdempotentProducer("unused:1", chosen) as again:
        await again.flush()
    (_first, *persisted) = values_of(wire)
    values = [event.value for event in heard]
    assert sorted([*values, *persisted], key=lambda value: value or b"") == _values(150)


@pytest.mark.promise("in-time-batch-bytes")
async def test_what_was_for_a_partition_that_is_gone_is_given_up_once_it_can_be_read(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the journal has it; who closes before is told so."""
    wire.partition_count = 2
    keeper = _Keeper(tmp_path)
    producer = keeper.producer
    ticket = await _begin_and_spill(wire, producer, partition=1)
    core = producer._running
    assert core is not None
    with monkeypatch.context() as patch:
        _no_file_can_be_read(patch)
        wire.partition_count, wire.topic_generation = 1, 1
        core._routes.follow()
        unread = len(core._settlement._unread)
        assert unread
    core._settlement.fail_unread()
    async with asyncio.timeout(PATIENCE_S):
        assert (await ticket).persisted == 0
    assert sorted(keeper.values, key=lambda value: value or b"") == _values(300)
    await producer.close()


@pytest.mark.promise("in-time-batch-bytes")
async def test_closing_tells_of_what_could_not_be_read_to_be_given_up(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.partition_count = 2
    keeper = _Keeper(tmp_path)
    producer = keeper.producer
    ticket = await _begin_and_spill(wire, producer, partition=1)
    _no_file_can_be_read(monkeypatch)
    wire.partition_count, wire.topic_generation = 1, 1
    assert producer._running is not None
    producer._running._routes.follow()
    given_up = len(keeper.events)
    await producer.close()
    result = await ticket
    assert result.possibly_persisted >= 300 - given_up > 0
    assert any("the journal keeps it" in failure.outcome.reason for failure in result.failures)


@pytest.mark.promise("in-broker-refuses-batch")
@pytest.mark.parametrize("code", [10, 44])
async def test_the_answers_of_a_request_are_taken_though_one_batch_of_it_cannot_be_read(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A batch that is too large, or refused, has the bytes that were sent."""
    wire.partition_count = 2
    keeper = _Keeper(tmp_path)
    producer = keeper.producer
    await producer.start()
    for number in range(2):
        await (await producer.send("t", b"first", partition=number))
    answer, may_answer = wire._answer, asyncio.Event()

    async def answer_later(answers: Any, *, broken: bool) -> Any:
        await may_answer.wait()
        return await answer(answers, broken=broken)

    monkeypatch.setattr(wire, "_answer", answer_later)

    def refuse(records: list[StoredRecord]) -> int | None:
        is_bad = (records[0].value or b"").startswith(b"bad")
        return code if is_bad and (code == 44 or len(records) > 1) else None

    wire.fault = refuse
    bad, good = [b"bad 1", b"bad 2"], [b"good 1", b"good 2"]
    ticket = await producer.accept(
        "t",
        [Record(value, partition=0) for value in bad]
        + [Record(value, partition=1) for value in good],
    )
    await ticket.journaled
    async with asyncio.timeout(PATIENCE_S):
        while sum(len(queue.sequencer.slots) for queue in _queues(producer)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    core = producer._running
    assert core is not None
    assert core.rounds.spill is not None
    for queue in _queues(producer):
        for slot in queue.sequencer:
            core.rounds.spill._drop_bytes(slot.batch)
    with monkeypatch.context() as patch:
        _no_file_can_be_read(patch)
        may_answer.set()
        async with asyncio.timeout(PATIENCE_S):
            result = await ticket
    await producer.close()
    refused = bad if code == 44 else []
    assert (result.persisted, result.not_persisted) == (4 - len(refused), len(refused))
    assert keeper.values == refused
    assert values_of(wire, 1) == [b"first", *good]


@pytest.mark.promise("in-defect-ours-ends")
@pytest.mark.parametrize(
    ("where", "method"),
    [(Settlement, "expire"), (Settlement, "persisted"), (Recovery, "is_old"), (Journal, "read")],
)
async def test_a_defect_in_any_task_fails_the_producer_by_name(
    wire: FakeWire,
    make: Callable[..., IdempotentProducer],
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    method: str,
) -> None:
    """No task dies unheard: each event is told, and what is in the journal is there still."""
    producer = make(delivery_timeout=timedelta(seconds=60))
    ticket = await _begin_and_spill(wire, producer)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(where, method, fail)
        lost = iter([LOST])
        wire.fault = (lambda _records: next(lost, None)) if method == "is_old" else wire.fault
        wire.reachable = method != "expire"
        async with asyncio.timeout(PATIENCE_S):
            assert str(await producer.failure()) == "a defect"
            result = await ticket
        assert "a defect" in result.failures[0].outcome.reason
        await producer.close()
    wire.fault, wire.reachable = lambda _records: None, True
    async with make() as producer:
        await producer.flush()
    assert values_of(wire) == [b"first", *_values(300)]


@pytest.mark.promise("in-defect-ours-ends")
async def test_answers_beside_one_that_cannot_be_taken_count(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer fails for it, once all answers of the request are taken."""
    wire.partition_count = 2
    producer = IdempotentProducer("unused:1", ProducerSettings(**FAST))
    await producer.start()
    for number in range(2):
        await (await producer.send("t", b"first", partition=number))
    persisted = Settlement.persisted

    def fail_for_the_first(settlement: Settlement, batch: Batch, *at: int | None) -> None:
        if batch.partition == 0:
            raise RuntimeError("a defect")
        persisted(settlement, batch, *at)

    monkeypatch.setattr(Settlement, "persisted", fail_for_the_first)
    records = [Record(b"x", partition=number) for number in range(2)]
    deliveries = await producer.accept_each("t", records)
    async with asyncio.timeout(PATIENCE_S):
        assert str(await producer.failure()) == "a defect"
        assert await deliveries[1] == InLog(1, 1)
        assert isinstance(await deliveries[0], PossiblyPersisted)
    await producer.close()


@pytest.mark.promise("in-defect-ours-ends")
async def test_the_first_failure_is_the_one_that_is_told(wire: FakeWire, tmp_path: Path) -> None:
    wire.fault = lambda records: 44 if records[0].value == b"bad" else None
    chosen = ProducerSettings(name="me", journal=tmp_path / "journal", **FAST)
    tries = 0

    def keep(_events: Sequence[GivenUp]) -> None:
        nonlocal tries
        tries += 1
        raise OSError(f"the {tries}. try failed")

    producer = IdempotentProducer("unused:1", chosen, on_given_up=keep)
    await producer.start()
    delivery = await producer.send("t", b"bad")
    assert str(await asyncio.wait_for(producer.failure(), PATIENCE_S)) == "the 1. try failed"
    outcome = await delivery
    assert isinstance(outcome, NotPersisted | PossiblyPersisted)
    await producer.close()
