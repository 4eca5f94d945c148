"""What is told of a broker that cannot be reached."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from sequitur.base.retry import Backoff
from sequitur.errors import FatalError, RetriableError
from sequitur.producer.delivery.leaders import LeaderFinder
from tests.support.waiting import PATIENCE_S

_REFUSAL = "here:1 refused user 'alice' by PLAIN"
_AWAY = "here:1: no answer"
_HOUR_MS = 3_600_000.0


class _Wire:
    """A way to one broker, whose attempts to connect end as they are told to."""

    def __init__(self) -> None:
        self.attempts: asyncio.Queue[bool | Exception] = asyncio.Queue()
        self.connected = False

    def leader(self, _topic: str, _partition: int) -> int:
        return 1

    def is_connected(self, _node: int) -> bool:
        return self.connected

    async def connect(self, _node: int) -> bool:
        end = await self.attempts.get()
        if isinstance(end, Exception):
            raise end
        self.connected = end
        return end

    async def refresh(self) -> bool:
        return True


class _Asker:
    """Somebody who has an event for the broker.

    Args:
        wire: The way there.
        backoff_ms: Between two attempts.
    """

    def __init__(self, wire: _Wire, backoff_ms: float) -> None:
        self.changed = asyncio.Event()
        self.failures: asyncio.Queue[Exception] = asyncio.Queue()
        foreign: Any = wire
        self.leaders = LeaderFinder(
            foreign,
            Backoff(initial_ms=backoff_ms, maximum_ms=backoff_ms),
            Random(0),
            on_change=self.changed.set,
            on_failure=self.failures.put_nowait,
        )

    def ask(self) -> str:
        """The reason that an event reports if it expires now."""
        return str(self.leaders.leader("t", 0))

    async def ask_until(self, trouble: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.ask() != trouble:
                await self.changed.wait()
                self.changed.clear()


@pytest.mark.promise("in-broker-refuses-login")
async def test_why_a_broker_is_not_reached_is_told_before_the_next_attempt() -> None:
    """An event may expire while the next attempt is waited for."""
    wire = _Wire()
    asker = _Asker(wire, _HOUR_MS)
    wire.attempts.put_nowait(FatalError(_REFUSAL))
    await asker.ask_until(f"broker 1 cannot be reached: {_REFUSAL}")
    asker.leaders.stop()


@pytest.mark.promise("in-broker-refuses-login")
async def test_a_refusal_is_told_until_there_is_a_connection() -> None:
    """A broker that is away for a moment does not take it back, nor is that kept from the user."""
    wire = _Wire()
    asker = _Asker(wire, 0)
    told = f"broker 1 cannot be reached: {_AWAY}; before that: {_REFUSAL}"
    gone = f"broker 1 cannot be reached: the cluster no longer names it; before that: {_REFUSAL}"
    wire.attempts.put_nowait(FatalError(_REFUSAL))
    wire.attempts.put_nowait(RetriableError(_AWAY))
    await asker.ask_until(told)
    wire.attempts.put_nowait(False)
    await asker.ask_until(gone)
    wire.attempts.put_nowait(RetriableError(_AWAY))
    await asker.ask_until(told)
    wire.attempts.put_nowait(True)
    async with asyncio.timeout(PATIENCE_S):
        while not wire.connected:
            await asker.changed.wait()
            asker.changed.clear()
            asker.ask()
    wire.connected = False
    wire.attempts.put_nowait(RetriableError(_AWAY))
    await asker.ask_until(f"broker 1 cannot be reached: {_AWAY}")
    asker.leaders.stop()


@pytest.mark.promise("in-event-topic-name")
async def test_a_search_that_ends_by_a_defect_is_told() -> None:
    """It would be tried again with the next event for the broker, and end again, unheard."""
    wire = _Wire()
    asker = _Asker(wire, 1.0)
    wire.attempts.put_nowait(LookupError("ours"))
    asker.ask()
    async with asyncio.timeout(PATIENCE_S):
        assert repr(await asker.failures.get()) == "LookupError('ours')"
    asker.leaders.stop()
