"""Events that are accepted together, as the sources of the daemon give them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import BrokerError
from sequitur.producer import NotPersisted, Record
from sequitur.producer.journal.frames import SourcePosition
from tests.support.outcomes import InLog
from tests.support.producers import make_producer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fake_wire import FakeWire

_RECORDS = [Record(b"%d" % number + b"x" * 100) for number in range(10)]


async def test_events_are_accepted_all_in_one_step(wire: FakeWire) -> None:
    """Once there is any room, no other event comes between them, and none waits."""
    async with make_producer(buffer_size=300) as producer:
        first, _other, second = await asyncio.gather(
            producer.accept("t", _RECORDS),
            producer.send("t", b"other"),
            producer.accept("t", _RECORDS, SourcePosition("source", b"20")),
        )
        results = [await ticket for ticket in (first, second)]
    assert [(found.accepted, found.persisted) for found in results] == [(10, 10), (10, 10)]
    values = [record.value for record in wire.records["t", 0]]
    expected = [record.value for record in _RECORDS]
    assert values[:10] == expected
    assert [value for value in values[10:] if value != b"other"] == expected


async def test_who_is_cancelled_while_waiting_for_room_has_given_nothing_away(
    wire: FakeWire,
) -> None:
    """Not one of the events is sent, and the next in the queue gets in."""
    async with make_producer(buffer_size=300) as producer:
        await producer.accept("t", _RECORDS)
        wire.reachable = wire.connected = False
        given_up = asyncio.create_task(producer.accept("t", [Record(b"given up")]))
        waiting = asyncio.create_task(producer.accept("t", [Record(b"waiting")]))
        await asyncio.sleep(0)
        given_up.cancel()
        wire.reachable = True
        assert (await (await waiting)).persisted == 1
    assert [record.value for record in wire.records["t", 0]][10:] == [b"waiting"]


async def test_each_event_has_its_own_delivery(wire: FakeWire) -> None:
    """One that is too large fails alone."""
    del wire
    async with make_producer(max_request_size=1000) as producer:
        records = [Record(b"1"), Record(b"x" * 2000), Record(b"2")]
        outcomes = [await delivery for delivery in await producer.accept_each("t", records)]
        assert await producer.accept_each("t", []) == []
    assert outcomes[0] == InLog(0, 0)
    assert isinstance(outcomes[1], NotPersisted)
    assert outcomes[2] == InLog(0, 1)


async def test_without_a_journal_events_are_safe_when_kafka_has_them(wire: FakeWire) -> None:
    """So that is what waiting for the journal waits for; and no position is ever found again."""
    async with make_producer() as producer:
        ticket = await producer.accept("t", _RECORDS, SourcePosition("source", b"1"))
        await ticket.journaled
        assert len(wire.records["t", 0]) == 10
        await producer.accept("t", _RECORDS)
        await producer.note_position(SourcePosition("source", b"2"))
        assert len(wire.records["t", 0]) == 20
        assert producer.recovered_position("source") is None


@pytest.mark.parametrize(
    ("source", "value", "words"),
    [
        ("orders", "12", r"position\.value is str, expected bytes"),
        ("orders", None, r"position\.value is NoneType, expected bytes"),
        (b"orders", b"12", r"position\.source is bytes, expected str"),
        ("\ud800", b"12", "surrogates not allowed"),
    ],
)
async def test_a_position_that_no_start_could_read_is_refused(
    wire: FakeWire, tmp_path: Path, source: Any, value: Any, words: str
) -> None:
    """Else the journal has what it takes for damage, and the next start refuses it."""
    position, journal = SourcePosition(source, value), tmp_path / "orders.journal"
    async with make_producer(journal=journal) as producer:
        with pytest.raises((TypeError, ValueError), match=words):
            await producer.accept("t", [Record(b"lost")], position)
        with pytest.raises((TypeError, ValueError), match=words):
            await producer.note_position(position)
        await (await producer.accept("t", _RECORDS[:1], SourcePosition("orders", b"1"))).journaled
    async with make_producer(journal=journal) as producer:
        assert producer.recovered_position("orders") == b"1"
    assert [record.value for record in wire.records["t", 0]] == [_RECORDS[0].value]


async def test_events_of_a_topic_that_is_not_there_are_not_accepted(wire: FakeWire) -> None:
    del wire
    async with make_producer(delivery_timeout=timedelta(milliseconds=30)) as producer:
        with pytest.raises(BrokerError):
            await producer.accept("missing", _RECORDS)
        with pytest.raises(BrokerError):
            await producer.accept_each("missing", _RECORDS)
        assert producer.statistics().accepted == 0
