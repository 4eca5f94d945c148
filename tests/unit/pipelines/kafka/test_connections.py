"""Connections to the brokers for code that is not asynchronous."""

from __future__ import annotations

import asyncio

import pytest

from sequitur.pipelines.kafka.connections import Connections
from sequitur.producer import KafkaSettings, RetriableError
from sequitur.producer.kafka.wire import Wire


def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task tries again; each time would leave a connection and an event loop."""
    closed: list[Wire] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def start(_: Wire) -> None:
        loops.append(asyncio.get_running_loop())
        raise RetriableError("no broker answered a metadata request")

    async def close(wire: Wire) -> None:
        closed.append(wire)

    monkeypatch.setattr(Wire, "start", start)
    monkeypatch.setattr(Wire, "close", close)
    with pytest.raises(RetriableError):
        Connections(KafkaSettings(bootstrap_servers="127.0.0.1:9"))
    assert len(closed) == 1
    assert [loop.is_closed() for loop in loops] == [True]
