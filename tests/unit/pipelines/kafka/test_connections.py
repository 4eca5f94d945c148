"""Connections to the brokers for code that is not asynchronous."""

from __future__ import annotations

import asyncio

import pytest

from sequitur.pipelines.kafka.connections import Connections, kept_connections
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


@pytest.mark.parametrize("is_within_a_task", [False, True])
def test_an_interrupt_ends_what_was_at_work(
    monkeypatch: pytest.MonkeyPatch, *, is_within_a_task: bool
) -> None:
    """It would go on with the next work, and its connections may have lost whoever reads them."""

    async def start(_: Wire) -> None:
        """Work."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def wait() -> None:
        await asyncio.sleep(0)
        if is_within_a_task:
            interrupt()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, interrupt)
        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
            await asyncio.sleep(3600)

    async def left() -> int:
        return len(asyncio.all_tasks()) - 1

    ended: list[int] = []
    monkeypatch.setattr(Wire, "start", start)
    monkeypatch.setattr("sequitur.pipelines.kafka.connections._kept", {})
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9")
    connections = kept_connections(kafka)
    with pytest.raises(KeyboardInterrupt):
        connections.run(work())
    assert connections.run(left()) == 0
    assert len(ended) == (not is_within_a_task)
    assert kept_connections(kafka) is not connections
    kept_connections(kafka).close()
