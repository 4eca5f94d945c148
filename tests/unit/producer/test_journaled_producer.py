"""The producer with a journal: what outlives the process, over a cluster in memory."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import (
    JournalError,
    JournalFailedError,
    JournalFullError,
    JournalLockedError,
    JournalVersionError,
    ProducerClosedError,
    RetriableError,
)
from sequitur.producer import (
    IdempotentProducer,
    NotPersisted,
    Persisted,
    PossiblyPersisted,
    ProducerSettings,
    Record,
    parse_event_id,
)
from sequitur.producer.journal.frames import SourcePosition
from sequitur.producer.journal.journal import Journal
from tests.support.fake_wire import DELAYED, DROPPED, LOST, FakeWire, Fault
from tests.support.golden import make_golden_journal
from tests.support.outcomes import InLog
from tests.support.producers import FAST, close_without_kafka, kill, let_pass, scripted, values_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.kafka.record_batch import StoredRecord
    from sequitur.producer._outcome import GivenUp


def _ids(wire: FakeWire, partition: int = 0) -> list[tuple[str, int]]:
    found = [parse_event_id(r.headers[-1][1] or b"") for r in wire.records["t", partition]]
    return [(event_id.producer, event_id.sequence) for event_id in found]


async def _die_with_events_on_their_way(
    wire: FakeWire, producer: IdempotentProducer, sent: bytes, *unsent: bytes
) -> None:
    """Kill a started producer that has sent one event without an answer, and journaled others."""
    await producer.send("t", sent)
    await wire.broken.wait()
    if unsent:
        wire.reachable = False
        for value in unsent:
            await producer.send("t", value)
        await (await producer.accept("t", [])).journaled
    await kill(producer)


async def test_name_identity_and_count_outlive_a_restart(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """The second life goes on with the next event, under the next epoch of its producer id."""
    for value in (b"1", b"2"):
        async with make() as producer:
            assert isinstance(await (await producer.send("t", value)), Persisted)
            assert producer.name == "me"
            counts = producer.statistics()
            assert (counts.accepted, counts.recovered, counts.persisted) == (1, 0, 1)
    assert _ids(wire) == [("me", 0), ("me", 1)]
    assert wire.ids == 1
    assert (wire.brokers["t", 0].epoch, wire.brokers["t", 0].cached[-1][0]) == (1, 0)


@pytest.mark.promise("in-journal-format-version")
async def test_a_journal_of_format_2_is_refused_and_left_as_it_is(
    wire: FakeWire, make: Callable[..., IdempotentProducer], tmp_path: Path
) -> None:
    make_golden_journal(tmp_path / "journal")
    (segment,) = (tmp_path / "journal").iterdir()
    before = segment.read_bytes()
    refused = rf"{segment.name} has journal format version 2; this version reads 3: let the older"
    with pytest.raises(JournalVersionError, match=refused):
        await make().start()
    assert segment.read_bytes() == before
    assert not wire.ids


@pytest.mark.parametrize("before", [[], [47]])
async def test_a_request_that_arrives_after_the_broker_was_asked_doubles_nothing(
    wire: FakeWire, make: Callable[..., IdempotentProducer], before: list[Fault]
) -> None:
    """What this life sent keeps its number, so the late one is the same batch; renewed or not."""
    wire.on_judged = wire.deliver
    wire.fault = scripted(*before, None, DELAYED, 45)
    async with asyncio.timeout(PATIENCE_S), make() as producer:
        await producer.send_and_wait("t", b"0")
        assert isinstance(await producer.send_and_wait("t", b"1"), Persisted)
        assert not wire.delayed
        assert producer.statistics().renewals == len(before)
    assert values_of(wire) == [b"0", b"1"]


@pytest.mark.promise("in-daemon-producer-killed")
@pytest.mark.parametrize("fault", [LOST, DROPPED])
async def test_what_was_on_its_way_is_sent_by_the_next_life(
    wire: FakeWire, make: Callable[..., IdempotentProducer], fault: Fault
) -> None:
    """Whether the broker had it or not: it is there once, and before anything new."""
    wire.fault = scripted(fault)
    producer = make()
    await producer.start()
    await _die_with_events_on_their_way(wire, producer, b"1", b"2")
    wire.reachable = True
    async with make() as producer:
        outcome = await (await producer.send("t", b"3"))
        counts = producer.statistics()
    assert values_of(wire) == [b"1", b"2", b"3"]
    assert outcome == InLog(0, 2)
    assert (counts.recovered, counts.accepted, counts.persisted) == (2, 1, 3)


async def test_events_are_taken_while_kafka_is_down_also_at_the_start(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """The journal knows who we are and how the topic is partitioned; that is enough."""
    wire.partition_count = 3
    async with make() as producer:
        await (await producer.send("t", b"0", key=b"key"))
    wire.reachable = wire.connected = False
    producer = make()
    async with asyncio.timeout(PATIENCE_S):
        await producer.start()
        ticket = await producer.accept("t", [Record(b"1", key=b"key"), Record(b"2", key=b"key")])
        await ticket.journaled
        await kill(producer)
    wire.reachable = True
    async with make() as producer:
        await producer.flush()
    (partition,) = [p for (_, p), records in wire.records.items() if records]
    assert values_of(wire, partition) == [b"0", b"1", b"2"]


@pytest.mark.promise("in-kafka-away-start")
async def test_a_start_during_an_outage_goes_on_once_kafka_is_back(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """Leaders are asked for until a broker answers, also where old batches come first."""
    wire.fault = scripted(LOST)
    producer = make()
    await producer.start()
    await _die_with_events_on_their_way(wire, producer, b"1")
    wire.reachable = wire.connected = wire.knows_leaders = False
    async with asyncio.timeout(PATIENCE_S), make() as producer:
        delivery = await producer.send("t", b"2")
        await (await producer.accept("t", [])).journaled
        wire.reachable = True
        assert await delivery == InLog(0, 1)
    assert values_of(wire) == [b"1", b"2"]


async def test_a_first_start_needs_kafka(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """Nobody has said yet who we are; and the journal is given back."""
    wire.reachable = False
    for _ in range(2):
        with pytest.raises(RetriableError):
            await make(delivery_timeout=timedelta(milliseconds=30)).start()


async def test_a_position_is_kept_with_its_events_and_only_with_them(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """What was journaled is found again together; what was not is neither sent nor covered."""
    producer = make()
    await producer.start()
    assert producer.recovered_position("file") is None
    await producer.note_position(SourcePosition("other", b"7"))
    ticket = await producer.accept("t", [Record(b"1"), Record(b"2")], SourcePosition("file", b"2"))
    await ticket.journaled
    await producer.accept("t", [Record(b"3")], SourcePosition("file", b"3"))
    await kill(producer)
    async with make() as producer:
        assert producer.recovered_position("file") == b"2"
        assert producer.recovered_position("other") == b"7"
        await producer.flush()
    assert values_of(wire) == [b"1", b"2"]


async def test_a_noted_position_is_behind_what_was_accepted_before(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """When it is durable, so are the events; Kafka need not have them."""
    producer = make()
    await producer.start()
    await producer.send("t", b"0")
    wire.reachable = wire.connected = False
    await producer.accept("t", [Record(b"1")])
    await producer.note_position(SourcePosition("dir", b"done"))
    await kill(producer)
    wire.reachable = True
    async with make() as producer:
        assert producer.recovered_position("dir") == b"done"
        await producer.flush()
    assert values_of(wire) == [b"0", b"1"]


async def test_events_of_one_call_are_in_one_round(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they fill many batches, of several partitions."""
    wire.partition_count = 3
    rounds: list[int] = []
    async with make(batch_size=300) as producer:
        await producer.send("t", b"0")
        await producer.flush()
        assert producer._journal is not None
        append = producer._journal.append

        def recorded(frames: Any, **how: Any) -> bool:
            count = sum(getattr(frame, "record_count", 0) for frame in frames)
            rounds.extend([count] if count else [])
            return append(frames, **how)

        monkeypatch.setattr(producer._journal, "append", recorded)
        records = [Record(b"x" * 50, key=b"%d" % number) for number in range(100)]
        await (await producer.accept("t", records, SourcePosition("file", b"100")))
    assert rounds == [100]


async def test_a_journal_belongs_to_one_process(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """A second producer of the same directory does not start."""
    del wire
    async with make():
        with pytest.raises(JournalError, match="one process at a time"):
            await make().start()
    async with make():
        pass


@pytest.mark.promise("in-broker-state-producer")
async def test_a_broker_that_forgot_us_gets_only_what_the_log_does_not_hold(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """Its state expired between two lives: without a look into the log it would take all again."""
    wire.fault = scripted(LOST)
    producer = make()
    await producer.start()
    await _die_with_events_on_their_way(wire, producer, b"1", b"2")
    assert values_of(wire) == [b"1"]
    wire.brokers["t", 0].forget()
    wire.reachable = True
    async with make() as producer:
        await (await producer.send("t", b"3"))
    assert values_of(wire) == [b"1", b"2", b"3"]


async def test_a_broker_that_forgets_us_while_we_run_costs_nothing(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """The answer was lost, then what the broker knew of us: the log tells."""
    async with make() as producer:
        await (await producer.send("t", b"0"))
        wire.fault = scripted(LOST, 59)
        delivery = await producer.send("t", b"1")
        await wire.broken.wait()
        wire.brokers["t", 0].forget()
        assert await delivery == InLog(0, None)
        assert await (await producer.send("t", b"2")) == InLog(0, 2)
    assert values_of(wire) == [b"0", b"1", b"2"]


async def test_a_refused_batch_is_not_sent_by_the_next_life(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """It is told of only when the journal will not bring it back; what follows is renumbered."""
    wire.fault = lambda records: 44 if records[0].value == b"bad" else None
    producer = make()
    await producer.start()
    await (await producer.send("t", b"1"))
    assert await (await producer.send("t", b"bad")) == NotPersisted("POLICY_VIOLATION")
    wire.fault = scripted(DROPPED)
    await _die_with_events_on_their_way(wire, producer, b"2")
    wire.fault = scripted()
    async with make() as producer:
        await (await producer.send("t", b"3"))
    assert values_of(wire) == [b"1", b"2", b"3"]


@pytest.mark.promise("in-record-batch-refused")
async def test_a_bad_record_costs_no_other_after_a_kill(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """A batch that may be in the log is asked for, and halved when it is not there."""

    def refuse_bad(records: list[StoredRecord]) -> int | None:
        return 87 if any(record.value == b"bad" for record in records) else None

    sent = asyncio.Event()

    def drop(_records: list[StoredRecord]) -> Fault:
        sent.set()
        return DROPPED

    wire.fault = drop
    producer = make()
    await producer.start()
    records = [Record(b"bad" if number == 3 else b"%d" % number) for number in range(8)]
    ticket = await producer.accept("t", records)
    await ticket.journaled
    async with asyncio.timeout(PATIENCE_S):
        await sent.wait()
    await kill(producer)
    wire.fault = refuse_bad
    given_up: list[GivenUp] = []
    settings = ProducerSettings(**FAST, name="me", journal=producer._settings.journal)
    async with (
        IdempotentProducer("unused:1", settings, on_given_up=given_up.extend) as producer,
        asyncio.timeout(PATIENCE_S),
    ):
        await producer.flush()
    assert values_of(wire) == [b"%d" % number for number in range(8) if number != 3]
    assert [(event.value, type(event.outcome)) for event in given_up] == [(b"bad", NotPersisted)]


@pytest.mark.promise("in-start-cancelled-producer")
@pytest.mark.usefixtures("wire")
async def test_a_start_that_is_cancelled_lets_the_journal_go(
    make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that opens it cannot be stopped; what it opened is closed when `close` returns."""
    opening, may_open = threading.Event(), threading.Event()
    really_open = Journal.open

    def open_late(*arguments: Any, **options: Any) -> Journal:
        opening.set()
        assert may_open.wait(PATIENCE_S)
        return really_open(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("sequitur.producer._opening.Journal.open", open_late)
        producer = make()
        starting = asyncio.create_task(producer.start())
        assert await asyncio.to_thread(opening.wait, PATIENCE_S)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        closing = asyncio.create_task(producer.close())
        may_open.set()
        await closing
    async with make() as second, asyncio.timeout(PATIENCE_S):
        assert isinstance(await (await second.send("t", b"1")), Persisted)
    assert not producer._journal


@pytest.mark.promise("in-start-cancelled-producer")
@pytest.mark.usefixtures("wire")
async def test_a_producer_that_is_closed_while_it_starts_leaves_nothing_running(
    make: Callable[..., IdempotentProducer],
) -> None:
    """Its start ends by an error, and the journal is free."""
    producer = make()
    starting = asyncio.create_task(producer.start())
    await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(ProducerClosedError, match="while it started"):
        await starting
    async with make() as second:
        assert isinstance(await (await second.send("t", b"1")), Persisted)


@pytest.mark.promise("in-close-cancelled")
@pytest.mark.usefixtures("wire")
async def test_a_journal_is_let_go_although_closing_is_cancelled(
    make: Callable[..., IdempotentProducer],
) -> None:
    """Cancelled while it waits for a thread, as often as it waits again."""
    producer = make()
    await producer.start()
    await (await producer.send("t", b"1"))
    assert producer._running is not None
    rounds = producer._running.rounds
    threads, are_free = rounds._writer._threads, threading.Event()
    for _ in range(threads._max_workers):
        threads.submit(are_free.wait, PATIENCE_S)
    closing = asyncio.create_task(rounds.close())
    for _ in range(3):
        await asyncio.sleep(0.01)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(JournalLockedError):
        await make().start()
    are_free.set()
    await asyncio.to_thread(threads.shutdown)
    async with make() as second:
        assert isinstance(await (await second.send("t", b"2")), Persisted)


async def test_a_halved_batch_is_taken_over_as_its_halves(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """The journal holds the halves in place of the whole, in their order."""
    producer = make()
    await producer.start()
    await (await producer.send("t", b"0"))
    wire.fault = lambda records: 10 if len(records) > 1 else DROPPED
    await producer.accept("t", [Record(b"%d" % number) for number in range(1, 9)])
    await wire.broken.wait()
    await kill(producer)
    wire.fault = scripted()
    async with make() as producer:
        assert producer.statistics().recovered == 8
        await (await producer.send("t", b"9"))
    assert values_of(wire) == [b"%d" % number for number in range(10)]
    assert [number for _, number in _ids(wire)] == list(range(10))


async def test_closing_keeps_what_kafka_did_not_take(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """It is told as possibly persisted, since the next start will send it."""
    producer = make()
    await producer.start()
    await (await producer.send("t", b"0"))
    wire.reachable = wire.connected = False
    delivery = await producer.send("t", b"1")
    await close_without_kafka(producer)
    outcome = await delivery
    assert isinstance(outcome, PossiblyPersisted)
    assert "the journal keeps it" in outcome.reason
    wire.reachable = True
    async with make() as producer:
        await producer.flush()
    assert values_of(wire) == [b"0", b"1"]


async def test_what_expires_is_gone_from_the_journal(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told as not persisted, it must not be sent by the next life."""
    producer = make(delivery_timeout=timedelta(hours=1))
    await producer.start()
    await (await producer.send("t", b"0"))
    wire.reachable = wire.connected = False
    delivery = await producer.send("t", b"1")
    with monkeypatch.context() as patch:
        let_pass(timedelta(hours=1), patch)
        assert isinstance(await delivery, NotPersisted)
    await kill(producer)
    wire.reachable = True
    async with make() as producer:
        await (await producer.send("t", b"2"))
    assert values_of(wire) == [b"0", b"2"]


async def test_a_full_disk_is_told_to_who_runs_it(
    wire: FakeWire,
    make: Callable[..., IdempotentProducer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That senders wait for room on the disk is said once, and that there is some again, too."""
    monkeypatch.setattr("sequitur.producer.delivery.round_writer._FULL_WARNING_S", 0.0)
    said: list[tuple[str, str]] = []

    class Listener:
        def info(self, event: str, **fields: Any) -> None:
            said.append(("info", f"{event} {fields}"))

        def warning(self, event: str, **fields: Any) -> None:
            said.append(("warning", f"{event} {fields}"))

    monkeypatch.setattr("sequitur.producer.delivery.round_writer._log", Listener())
    async with make() as producer:
        await (await producer.send("t", b"0"))
        journal = producer._journal
        assert journal is not None
        append, failures = journal.append, iter([True] * 3)

        def full_at_first(frames: Any, **how: Any) -> bool:
            if next(failures, False):
                raise JournalFullError("no space left on the disk of journal")
            return append(frames, **how)

        monkeypatch.setattr(journal, "append", full_at_first)
        await (await producer.send("t", b"1"))
    assert values_of(wire) == [b"0", b"1"]
    assert [level for level, _ in said] == ["warning", "info"]
    assert "senders wait" in said[0][1]
    assert "no space left on the disk" in said[0][1]
    assert "room in the journal again" in said[1][1]


@pytest.mark.promise("in-journal-full-kafka")
async def test_a_full_journal_holds_senders_back(
    wire: FakeWire, make: Callable[..., IdempotentProducer], tmp_path: Path
) -> None:
    """It never grows beyond its limit, and goes on as soon as Kafka takes events."""
    limit = 1 << 20
    payload = bytes(range(256)) * 8
    async with make(journal_limit=limit, compression="none", batch_size=20_000) as producer:
        await producer.send("t", b"0")
        wire.reachable = wire.connected = False
        payloads = (payload for _ in range(2_000))
        sending = asyncio.create_task(producer.send_many("t", payloads))
        largest = 0

        def size() -> int:
            found = 0
            for file in (tmp_path / "journal").iterdir():
                with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                    found += file.stat().st_size
            return found

        for _ in range(20):
            await asyncio.sleep(0.01)
            largest = max(largest, size())
        assert not sending.done()
        wire.reachable = True
        ticket = await sending
        largest = max(largest, size())
        assert (await ticket).persisted == 2_000
        largest = max(largest, size())
    assert len(values_of(wire)) == 2_001
    assert limit // 8 < largest <= limit


@pytest.mark.promise("in-disk-fails-journal")
async def test_a_disk_that_fails_ends_the_producer(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits hears of it, nothing leaves that is not on disk, and no new event is taken."""
    producer = make()
    await producer.start()
    await (await producer.send("t", b"0"))
    assert producer._journal is not None

    def fail() -> bool:
        raise JournalFailedError("the disk is gone")

    monkeypatch.setattr(producer._journal, "sync", fail)
    ticket = await producer.accept("t", [Record(b"1")], SourcePosition("file", b"1"))
    with pytest.raises(JournalError, match="the disk is gone"):
        await ticket.journaled
    result = await ticket
    assert (result.possibly_persisted, result.not_persisted) == (1, 0)
    with pytest.raises(ProducerClosedError, match="the disk is gone"):
        await producer.send("t", b"2")
    with pytest.raises(JournalError):
        await ticket.journaled
    await producer.close()
    assert values_of(wire) == [b"0"]


async def test_an_async_journal_survives_a_kill_too(
    wire: FakeWire, make: Callable[..., IdempotentProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events leave once they are written; the disk is synced now and then."""
    async_settings: dict[str, Any] = {
        "durability": "journal-async",
        "journal_sync_interval": timedelta(hours=1),
    }
    producer = make(**async_settings)
    await producer.start()
    assert producer._journal is not None
    syncs: list[int] = []
    sync = producer._journal.sync

    def recorded() -> bool:
        syncs.append(1)
        return sync()

    monkeypatch.setattr(producer._journal, "sync", recorded)
    for number in range(10):
        await (await producer.send("t", b"%d" % number))
    wire.fault = scripted(DROPPED)
    await _die_with_events_on_their_way(wire, producer, b"10")
    assert len(syncs) <= 1
    async with make(**async_settings) as producer:
        await producer.flush()
    assert values_of(wire) == [b"%d" % number for number in range(11)]


@pytest.mark.promise("in-topic-gets-partitions")
async def test_partitions_that_are_gone_have_their_events_told(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """A topic recreated with fewer partitions: events of the lost ones get an outcome."""
    wire.partition_count = 2
    producer = make()
    await producer.start()
    await (await producer.send("t", b"0", partition=0))
    await (await producer.send("t", b"1", partition=1))
    wire.reachable = wire.connected = False
    await (await producer.accept("t", [Record(b"2", partition=1)])).journaled
    await kill(producer)
    wire.reachable, wire.partition_count = True, 1
    async with make(delivery_timeout=timedelta(seconds=30)) as producer:
        assert await (await producer.send("t", b"3", key=b"any")) == InLog(0, 1)
        await producer.flush()
        assert producer.statistics().possibly_persisted == 1


async def test_a_renewal_is_in_the_journal_before_anything_is_sent_under_it(
    wire: FakeWire, make: Callable[..., IdempotentProducer]
) -> None:
    """The next life goes on with what is left of it under its epoch, and then under a newer."""
    producer = make()
    await producer.start()
    wire.fault = scripted(None, 45, DROPPED)
    await (await producer.send("t", b"0"))
    await _die_with_events_on_their_way(wire, producer, b"1")
    async with make() as producer:
        await (await producer.send("t", b"2"))
        assert (wire.brokers["t", 0].producer_id, wire.brokers["t", 0].epoch) == (1, 2)
    assert values_of(wire) == [b"0", b"1", b"2"]
    assert all(before < after for before, after in pairwise(_ids(wire)))
