"""A producer's journal is unlocked, and its outcomes are true, whatever ends a start or a close."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import ProducerClosedError
from sequitur.producer import NotPersisted, Persisted, PossiblyPersisted, Record
from sequitur.producer.journal import disk
from sequitur.producer.journal.frames import BatchFrame, Waiting
from sequitur.producer.journal.journal import Journal
from tests.support.fake_wire import FakeWire
from tests.support.producers import use, values_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sequitur.kafka.record_batch import StoredRecord
    from sequitur.producer import IdempotentProducer
    from sequitur.producer.journal.frames import Frame

    MakeProducer = Callable[..., IdempotentProducer]

_BAD = 87
"""The code by which a broker refuses a record, and with it the whole batch."""


class _SlowlyClosedWire(FakeWire):
    def __init__(self) -> None:
        super().__init__()
        self.is_closing = asyncio.Event()

    async def close(self) -> None:
        self.is_closing.set()
        await asyncio.sleep(0.2)
        await super().close()


async def _until_journal(producer: IdempotentProducer) -> None:
    while producer._journal is None:  # noqa: ASYNC110 - it has no event for that
        await asyncio.sleep(0.001)


async def _check_free(wire: FakeWire, make: MakeProducer) -> None:
    wire.reachable = True
    async with make() as second, asyncio.timeout(PATIENCE_S):
        assert isinstance(await (await second.send("t", b"again")), Persisted)


@pytest.mark.promise("in-start-cancelled-producer")
@pytest.mark.parametrize("fails_first", [True, False])
async def test_a_start_that_is_cancelled_while_it_is_undone_lets_the_journal_go(
    make: MakeProducer, monkeypatch: pytest.MonkeyPatch, *, fails_first: bool
) -> None:
    wire = _SlowlyClosedWire()
    use(wire, monkeypatch)
    wire.reachable = False
    producer = make(delivery_timeout=timedelta(milliseconds=100 if fails_first else 60_000))
    starting = asyncio.create_task(producer.start())
    await _until_journal(producer)
    if not fails_first:
        starting.cancel()
    await asyncio.wait_for(wire.is_closing.wait(), PATIENCE_S)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await producer.close()
    await _check_free(wire, make)


@pytest.mark.promise("in-start-cancelled-producer")
async def test_a_producer_that_is_closed_while_no_broker_answers_lets_the_journal_go(
    wire: FakeWire, make: MakeProducer
) -> None:
    wire.reachable = False
    producer = make(delivery_timeout=timedelta(seconds=2))
    starting = asyncio.create_task(producer.start())
    await _until_journal(producer)
    await producer.close()
    assert not starting.done()
    await _check_free(wire, make)
    with pytest.raises(ProducerClosedError, match="while it started"):
        await starting


@pytest.mark.promise("in-close-cancelled")
def test_an_event_loop_that_ends_during_close_lets_the_journal_go(
    make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are left to the journal."""
    wires: list[FakeWire] = []

    async def first() -> None:
        wires.append(FakeWire())
        use(wires[0], monkeypatch)
        producer = make()
        await producer.start()
        await (await producer.send("t", b"0"))
        wires[0].reachable = wires[0].connected = False
        await producer.send("t", b"1")
        closing = asyncio.create_task(producer.close(timedelta(seconds=PATIENCE_S)))
        await asyncio.sleep(0.05)
        assert not closing.done()
        raise SystemExit

    with pytest.raises(SystemExit):
        asyncio.run(first())

    async def second() -> None:
        wire = FakeWire()
        wire.records, wire.brokers, wire.ids = wires[0].records, wires[0].brokers, wires[0].ids
        use(wire, monkeypatch)
        await _check_free(wire, make)
        assert values_of(wire) == [b"0", b"1", b"again"]

    asyncio.run(second())


@pytest.mark.promise("in-close-cancelled")
@pytest.mark.parametrize("fails", ["the folder", "close"])
async def test_a_journal_is_let_go_although_its_disk_fails_at_close(
    wire: FakeWire, make: MakeProducer, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make()
    await producer.start()
    await (await producer.send("t", b"0"))
    with monkeypatch.context() as patch:
        if fails == "close":
            really = disk._RealFile.close

            def close(file: disk._RealFile) -> None:
                really(file)
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

            patch.setattr(disk._RealFile, "close", close)
        else:
            (tmp_path / "journal").rename(tmp_path / "away")
        await producer.close()
    if fails != "close":
        (tmp_path / "away").rename(tmp_path / "journal")
    await _check_free(wire, make)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let the disk be full while the list has something, and see that it was."""
    is_full: list[int] = []
    refused = 0
    append = disk._RealFile.append

    def append_or_fail(file: disk._RealFile, buffers: Any) -> None:
        nonlocal refused
        if is_full:
            refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(file, buffers)

    monkeypatch.setattr(disk._RealFile, "append", append_or_fail)
    yield is_full
    is_full.clear()
    assert refused


@pytest.mark.promise("in-not-persisted")
async def test_an_event_whose_mark_found_no_room_may_be_in_the_log_later(
    wire: FakeWire, make: MakeProducer, full_disk: list[int]
) -> None:
    """It expires while the disk is full: the next start sends it all the same."""
    producer = make(delivery_timeout=timedelta(milliseconds=500))
    await producer.start()
    await (await producer.send("t", b"0"))
    wire.reachable = wire.connected = False
    delivery = await producer.send("t", b"1")
    await (await producer.accept("t", [])).journaled
    full_disk.append(1)
    outcome = await asyncio.wait_for(delivery, PATIENCE_S)
    await producer.close()
    full_disk.clear()
    await _check_free(wire, make)
    assert values_of(wire) == [b"0", b"1", b"again"]
    assert isinstance(outcome, PossiblyPersisted)
    assert "the journal may keep it" in outcome.reason


@pytest.mark.promise("in-not-persisted")
async def test_halves_that_the_journal_does_not_have_may_be_in_the_log_later(
    wire: FakeWire, make: MakeProducer, full_disk: list[int]
) -> None:
    """The journal has no room for the halves: it has the batch whole."""
    refused = asyncio.Event()

    def refuse(records: list[StoredRecord]) -> int | None:
        if any(record.value == b"bad" for record in records):
            refused.set()
            full_disk.append(1)
            return _BAD
        return None

    wire.fault = refuse
    producer = make()
    await producer.start()
    await (await producer.send("t", b"0"))
    values = b"1", b"bad", b"2"
    deliveries = await producer.accept_each("t", [Record(value) for value in values])
    await refused.wait()
    await producer.close(timedelta(milliseconds=1))
    outcomes = dict(zip(values, await asyncio.gather(*deliveries), strict=True))
    full_disk.clear()
    wire.fault = lambda records: _BAD if any(one.value == b"bad" for one in records) else None
    async with make() as second:
        await second.flush()
    assert values_of(wire) == [b"0", b"1", b"2"]
    for value in (b"1", b"2"):
        assert not isinstance(outcomes[value], NotPersisted)


async def test_a_round_that_waits_for_room_ends_when_there_is_some_and_it_is_cancelled(
    make: MakeProducer, wire: FakeWire, full_disk: list[int]
) -> None:
    """In one turn of the event loop."""
    producer = make()
    await producer.start()
    await (await producer.send("t", b"0"))
    full_disk.append(1)
    await producer.send("t", b"1")
    assert producer._running is not None
    writer, rounds = producer._running.rounds._writer, producer._running._running[0]
    while not (writer.full_reason and writer._freed._waiters):  # noqa: ASYNC110 - likewise
        await asyncio.sleep(0.001)
    writer.note_freed()
    rounds.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(rounds), PATIENCE_S)
    assert rounds.done()
    full_disk.clear()
    await producer.close(timedelta(milliseconds=1))
    assert values_of(wire) == [b"0"]


@pytest.mark.promise("in-not-persisted")
async def test_a_thread_that_is_late_appends_nothing_behind_the_last_marks(
    wire: FakeWire, make: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch expires while it is appended, and the producer closes."""
    producer = make(delivery_timeout=timedelta(milliseconds=50), compression="none")
    await producer.start()
    await (await producer.send("t", b"0"))
    wire.reachable = wire.connected = False
    is_late, syncs = threading.Event(), threading.Event()
    append, sync = Journal.append, disk._RealFile.sync

    def append_late(journal: Journal, frames: Sequence[Frame], *, part: bool = False) -> bool:
        if any(isinstance(frame, Waiting | BatchFrame) for frame in frames):
            is_late.set()
            syncs.wait(0.3)
        return append(journal, frames, part=part)

    def sync_slowly(file: disk._RealFile) -> None:
        if is_late.is_set():
            syncs.set()
            time.sleep(0.1)
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append_late)
        patch.setattr(disk._RealFile, "sync", sync_slowly)
        delivery = await producer.send("t", bytes(40_000))
        assert await asyncio.to_thread(is_late.wait, PATIENCE_S)
        await asyncio.sleep(0.1)
        await producer.close(timedelta(milliseconds=1))
        outcome = await delivery
    await _check_free(wire, make)
    expected = [b"again"] if isinstance(outcome, NotPersisted) else [bytes(40_000), b"again"]
    assert [value for value in values_of(wire) if value != b"0"] == expected
