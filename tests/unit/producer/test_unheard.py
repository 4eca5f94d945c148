"""Bad outcomes that nobody asks for are counted and told; those that somebody looks at are not."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest
import structlog

from sequitur.producer import NotPersisted
from sequitur.producer._outcome import Unheard
from tests.support.outcomes import InLog
from tests.support.producers import make_producer

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

    from tests.support.fake_wire import FakeWire

_REFUSED = 44  # POLICY_VIOLATION


def _told(lines: list[MutableMapping[str, Any]]) -> dict[tuple[str, str], int]:
    return {(x["topic"], x["reason"]): x["events"] for x in lines if "nobody asked" in x["event"]}


@pytest.mark.promise("in-event-surely-log")
async def test_what_nobody_looked_at_is_told_by_topic_and_reason(wire: FakeWire) -> None:
    """By single sends, by tickets, and of events that were refused at the call."""
    wire.fault = lambda records: _REFUSED if (records[0].value or b"")[:1] == b"b" else None
    with structlog.testing.capture_logs() as lines:
        async with asyncio.timeout(60), make_producer(batch_size=1) as producer:
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
async def test_what_somebody_looks_at_is_not_told(wire: FakeWire) -> None:
    wire.fault = lambda records: _REFUSED if records[0].value == b"bad" else None
    refused = NotPersisted("POLICY_VIOLATION")
    with structlog.testing.capture_logs() as lines:
        async with asyncio.timeout(60), make_producer(batch_size=1) as producer:
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
