"""Events that are tried no more are handed over before anybody forgets them."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from sequitur.errors import ProducerClosedError
from sequitur.producer import (
    IdempotentProducer,
    NotPersisted,
    Persisted,
    PossiblyPersisted,
    ProducerSettings,
    Record,
)
from sequitur.producer._outcome import GivenUp
from sequitur.producer._unheard import Unheard
from sequitur.producer.journal.frames import SourcePosition
from sequitur.producer.journal.report import inspect_journal
from tests.support.fake_wire import DROPPED, FakeWire
from tests.support.outcomes import InLog
from tests.support.producers import FAST, make_producer, use
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence
    from pathlib import Path

_REFUSED = 44  # POLICY_VIOLATION


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> FakeWire:
    """A cluster that refuses whatever has `bad` in it."""
    wire = FakeWire(fault=lambda records: _REFUSED if records[0].value == b"bad" else None)
    use(wire, monkeypatch)
    return wire


def _producer(
    folder: Path, on_given_up: Callable[[Sequence[GivenUp]], None], **settings: Any
) -> IdempotentProducer:
    chosen = ProducerSettings(name="me", journal=folder / "journal", **(FAST | settings))
    return IdempotentProducer("unused:1", chosen, on_given_up=on_given_up)


def _unacked(folder: Path) -> int:
    return sum(len(found.unacked) for found in inspect_journal(folder / "journal").partitions)


@pytest.mark.promise("in-kafka-refuses-event")
async def test_a_refused_event_is_handed_over_while_the_journal_has_it(
    wire: FakeWire, tmp_path: Path
) -> None:
    given_up: list[GivenUp] = []
    unacked: list[int] = []

    def keep(events: Sequence[GivenUp]) -> None:
        given_up.extend(events)
        unacked.append(_unacked(tmp_path))

    async with _producer(tmp_path, keep) as producer:
        bad_id = f"me~{producer.generation}:0"
        outcome = await (
            await producer.send(
                "t",
                b"bad",
                b"key",
                headers=[("trace", b"1"), ("trace", None)],
                timestamp_ms=1_790_000_000_000,
            )
        )
        assert isinstance(outcome, NotPersisted)
        assert await (await producer.send("t", b"good")) == InLog(0, 0)
    assert given_up == [
        GivenUp(
            topic="t",
            partition=0,
            event_id=bad_id,
            key=b"key",
            value=b"bad",
            headers=(("trace", b"1"), ("trace", None)),
            timestamp_ms=1_790_000_000_000,
            outcome=outcome,
        )
    ]
    assert unacked == [1]
    assert _unacked(tmp_path) == 0
    assert [record.value for record in wire.records["t", 0]] == [b"good"]


async def test_an_event_that_is_too_large_is_handed_over_before_a_position_behind_it(
    wire: FakeWire, tmp_path: Path
) -> None:
    del wire
    given_up: list[GivenUp] = []
    positions: list[dict[str, str]] = []

    def keep(events: Sequence[GivenUp]) -> None:
        given_up.extend(events)
        positions.append(inspect_journal(tmp_path / "journal").positions)

    large = Record(b"x" * 5_000, b"key")
    async with _producer(tmp_path, keep, max_request_size=2_000) as producer:
        ticket = await producer.accept("t", [Record(b"1"), large], SourcePosition("file", b"end"))
        await ticket.journaled
        result = await ticket
    assert [(each.event_id, each.key, each.value) for each in given_up] == [
        (None, b"key", b"x" * 5_000)
    ]
    assert (result.persisted, result.not_persisted) == (1, 1)
    assert positions == [{}]
    assert inspect_journal(tmp_path / "journal").positions == {"file": "end"}


async def test_an_event_of_a_former_run_is_handed_over_too(wire: FakeWire, tmp_path: Path) -> None:
    """Nobody else has it any more."""
    given_up: list[GivenUp] = []
    wire.fault = lambda _records: DROPPED
    async with _producer(tmp_path, given_up.extend) as producer:
        bad_id = f"me~{producer.generation}:0"
        await producer.send("t", b"bad")
        await producer.close(timedelta(seconds=2))
    assert given_up == []  # it was not refused, and the journal has it
    wire.fault = lambda _records: _REFUSED
    async with _producer(tmp_path, given_up.extend) as producer:
        await producer.flush()
    assert [(each.event_id, each.value) for each in given_up] == [(bad_id, b"bad")]
    assert _unacked(tmp_path) == 0


async def test_events_that_cannot_be_kept_elsewhere_stay_in_the_journal(
    wire: FakeWire, tmp_path: Path
) -> None:
    """The producer ends, says why, and the next start tries again."""

    def keep(_events: Sequence[GivenUp]) -> None:
        raise OSError("no space left")

    producer = _producer(tmp_path, keep)
    await producer.start()
    delivery = await producer.send("t", b"bad")
    assert str(await asyncio.wait_for(producer.failure(), PATIENCE_S)) == "no space left"
    assert isinstance(await delivery, PossiblyPersisted)
    with pytest.raises(ProducerClosedError, match="no space left"):
        await producer.send("t", b"good")
    await producer.close()
    assert _unacked(tmp_path) == 1
    del wire


@pytest.mark.promise("in-topic-gets-partitions")
async def test_every_event_of_a_partition_that_is_gone_has_an_outcome_though_its_keeper_fails(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer ends with the first handover that fails; the others are not forgotten."""
    wire.partition_count = 2
    wire.fault = lambda records: 3 if records[0].value in (b"1", b"2") else None
    use(wire, monkeypatch)

    def keep(_events: Sequence[GivenUp]) -> None:
        raise OSError("the disk is full")

    producer = IdempotentProducer("unused:1", ProducerSettings(**FAST), on_given_up=keep)
    async with producer:
        await (await producer.send("t", b"0", partition=1))
        assert producer._running is not None
        queues = producer._running._queues
        sent = []
        for number in (1, 2):
            sent.append(await producer.send("t", b"%d" % number, partition=1))
            while sum(q.sequencer.pending for q in queues) < number:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
        wire.partition_count, wire.topic_generation = 1, 1
        outcomes = await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)
        assert not any(isinstance(outcome, Persisted) for outcome in outcomes)
        assert "the disk is full" in str(await producer.failure())


def _told(lines: list[MutableMapping[str, Any]]) -> dict[tuple[str, str], int]:
    return {(x["topic"], x["reason"]): x["events"] for x in lines if "nobody asked" in x["event"]}


@pytest.mark.promise("in-event-surely-log")
async def test_what_nobody_looked_at_is_told_by_topic_and_reason(wire: FakeWire) -> None:
    """By single sends, by tickets, and of events that were refused at the call."""
    wire.fault = lambda records: _REFUSED if (records[0].value or b"")[:1] == b"b" else None
    with structlog.testing.capture_logs() as lines:
        async with asyncio.timeout(PATIENCE_S), make_producer(batch_size=1) as producer:
            for topic in ("t", "u"):
                for _ in range(3):
                    await producer.send(topic, b"bad")
            await producer.send("t", b"", partition=9)
            await producer.send_many("t", [b"bad", b"good", b"bad"])
            await producer.flush()
            await producer.send_and_wait("t", b"good")
            gc.collect()
            assert producer.statistics().unheard == 9
            assert producer.statistics().not_persisted == 8
    assert _told(lines) == {
        ("t", "POLICY_VIOLATION"): 5,
        ("u", "POLICY_VIOLATION"): 3,
        ("t", "partition 9: topic t has 0 to 0"): 1,
    }


@pytest.mark.promise("in-event-surely-log")
@in_virtual_time
async def test_what_on_given_up_was_not_given_is_told(wire: FakeWire) -> None:
    """An event that was in no queue, since its topic is missing, is not given to it."""
    wire.fault = lambda records: _REFUSED if records[0].value == b"bad" else None
    given: list[GivenUp] = []
    with structlog.testing.capture_logs() as lines:
        settings = ProducerSettings(**(FAST | {"batch_size": 1}))
        async with IdempotentProducer("unused:1", settings, on_given_up=given.extend) as producer:
            await producer.send("t", b"bad")
            await producer.send("t", b"", partition=9)
            await producer.send("missing", b"lost")
            await producer.send_many("missing", [b"lost", b"lost"])
            await asyncio.sleep(0.1)  # the loop still holds the ticket
            await producer.flush()
            gc.collect()
            assert [each.topic for each in given] == ["t", "t"]
            assert producer.statistics().unheard == 3
    assert _told(lines) == {("missing", "topic missing is not there, for 5 s"): 3}


@pytest.mark.promise("in-event-surely-log")
async def test_what_somebody_looks_at_is_not_told(wire: FakeWire) -> None:
    wire.fault = lambda records: _REFUSED if records[0].value == b"bad" else None
    refused = NotPersisted("POLICY_VIOLATION")
    with structlog.testing.capture_logs() as lines:
        async with asyncio.timeout(PATIENCE_S), make_producer(batch_size=1) as producer:
            assert await (await producer.send("t", b"bad")) == refused
            later = [await producer.send("t", b"bad") for _ in range(4)]
            good = await producer.send("t", b"good")
            await producer.flush()
            assert await later[0] == refused
            assert later[1].result() == refused
            assert list(await asyncio.gather(later[2], good)) == [refused, InLog(0, 0)]
            done, _ = await asyncio.wait({later[3]})
            assert [each.result() for each in done] == [refused]
            ticket = await producer.send_many("t", [b"bad"])
            assert (await ticket).not_persisted == 1
            del later, good, done, ticket
            gc.collect()
            assert producer.statistics().unheard == 0
    assert _told(lines) == {}


@in_virtual_time
async def test_it_is_told_once_in_a_while() -> None:
    """All reasons of the time together; many different ones are not each told."""
    told = Unheard(asyncio.get_running_loop(), every_s=0.05)
    with structlog.testing.capture_logs() as lines:
        for number in range(150):
            told.note("t", f"reason {number}")
        assert lines == []
        await asyncio.sleep(0.2)
    assert len(lines) == 101
    assert lines[-1]["events"] == 50
    assert told.count == 150
