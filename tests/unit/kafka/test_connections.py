"""Connections to the brokers for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import RetriableError
from sequitur.kafka.connections import Connections, kept_connections
from sequitur.kafka.wire import Wire
from sequitur.producer import KafkaSettings

if TYPE_CHECKING:
    from pathlib import Path


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
        if not is_within_a_task:
            asyncio.get_running_loop().call_later(0.01, interrupt)
        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
            await asyncio.sleep(3600)

    async def left() -> int:
        return len(asyncio.all_tasks()) - 1

    ended: list[int] = []
    monkeypatch.setattr(Wire, "start", start)
    monkeypatch.setattr("sequitur.kafka.connections._kept", {})
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9")
    connections = kept_connections(kafka)
    with pytest.raises(KeyboardInterrupt):
        connections.run(work())
    assert connections.run(left()) == 0
    assert len(ended) == (not is_within_a_task)
    assert kept_connections(kafka) is not connections
    kept_connections(kafka).close()


def test_connections_of_a_thread_that_has_ended_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver may have threads that come and go: each left a loop and its connections open."""
    closed: list[Wire] = []

    async def start(_: Wire) -> None:
        """Work."""

    async def close(wire: Wire) -> None:
        closed.append(wire)

    monkeypatch.setattr(Wire, "start", start)
    monkeypatch.setattr(Wire, "close", close)
    kept: dict[object, Connections] = {}
    monkeypatch.setattr("sequitur.kafka.connections._kept", kept)
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:9")
    ended: list[Connections] = []
    own = kept_connections(kafka)
    for number in range(3):
        thread = threading.Thread(target=lambda: ended.append(kept_connections(kafka)))
        thread.start()
        thread.join()
        assert closed == [one.wire for one in ended[:number]], "but not those of this thread"
        assert [*kept.values()] == [own, ended[number]]
    assert kept_connections(kafka) is own
    for one in kept.values():
        one.close()


def test_connections_by_a_token_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each look at what is kept opened others, and closed none of them."""

    async def start(_: Wire) -> None:
        """Work."""

    (tmp_path / "token").write_text("token")
    kafka = KafkaSettings(
        bootstrap_servers="127.0.0.1:9",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_token_file=tmp_path / "token",
    )
    monkeypatch.setattr(Wire, "start", start)
    monkeypatch.setattr("sequitur.kafka.connections._kept", {})
    kept = kept_connections(kafka)
    assert kept_connections(kafka.model_copy()) is kept
    kept.close()
