"""The daemon tells whether it lives, whether it is ready, and what it counts."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from sequitur.errors import ProducerError
from sequitur.producer.daemon.health import (
    DaemonCollector,
    HealthServer,
    HealthSnapshot,
    Heartbeat,
    health_application,
)
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from aiohttp import web

_COUNTS = {"events_accepted": 5.0, "sent_bytes": 700.0, "journal_disk_bytes": 4096.0}


class _Daemon:
    """What the endpoints look at, to be changed by a test."""

    def __init__(self) -> None:
        self.unready: dict[str, str] = {}
        self.clock_s = 0.0
        self.heartbeat = Heartbeat(now_s=lambda: self.clock_s)

    def snapshot(self) -> HealthSnapshot:
        return HealthSnapshot(unready=self.unready, counts=_COUNTS)

    def application(self) -> web.Application:
        registry = CollectorRegistry()
        registry.register(DaemonCollector(self.snapshot))
        return health_application(self.snapshot, registry, self.heartbeat, stalled_after_s=10)

    def client(self) -> TestClient[web.Request, web.Application]:
        return TestClient(TestServer(self.application(), host="127.0.0.1"))


async def test_a_moving_loop_lives_also_when_idle() -> None:
    """The heartbeat comes back without anything to do."""
    clock_s = 0.0
    beaten_again = asyncio.Event()

    def now_s() -> float:
        nonlocal clock_s
        clock_s += 1
        if clock_s > 5:
            beaten_again.set()
        return clock_s

    async with Heartbeat(interval_s=0.001, now_s=now_s) as heartbeat:
        await beaten_again.wait()
        assert heartbeat.age_s == 1


async def test_a_loop_that_has_not_moved_does_not_live() -> None:
    """From the limit on, until it moves again."""
    daemon = _Daemon()
    async with daemon.client() as client:
        for clock_s, status in ((9.9, 200), (10.0, 503)):
            daemon.clock_s = clock_s
            async with client.get("/livez") as response:
                assert response.status == status
                assert await response.json() == {
                    "alive": status == 200,
                    "heartbeat_age_seconds": clock_s,
                }
        daemon.heartbeat.beat()
        async with client.get("/livez") as response:
            assert response.status == 200


async def test_ready_means_that_nothing_is_amiss() -> None:
    """Else it says what is; and to be not ready is no reason to be restarted."""
    daemon = _Daemon()
    async with daemon.client() as client:
        async with client.get("/readyz") as response:
            assert (response.status, await response.json()) == (200, {"ready": True, "unready": {}})
        daemon.unready = {"journal": "no space left on the disk"}
        async with client.get("/readyz") as response:
            assert response.status == 503
            assert (await response.json())["unready"] == daemon.unready
        async with client.get("/livez") as response:
            assert response.status == 200


async def test_metrics_follow_the_conventions() -> None:
    """Counters end with `_total`, sizes have their unit before it, each has a help text."""
    async with _Daemon().client() as client, client.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        text = await response.text()
    families = list(text_string_to_metric_families(text))
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert samples == {
        "sequitur_producer_events_accepted_total": 5.0,
        "sequitur_producer_sent_bytes_total": 700.0,
        "sequitur_producer_journal_disk_bytes": 4096.0,
        "sequitur_producer_ready": 1.0,
    }
    assert all(family.documentation for family in families)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in samples)


async def test_openmetrics_is_given_to_who_asks_for_it() -> None:
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with _Daemon().client() as client, client.get("/metrics", headers=headers) as response:
        assert response.content_type == "application/openmetrics-text"
        assert (await response.text()).endswith("# EOF\n")


def test_a_count_without_a_metric_is_a_mistake() -> None:
    """A misspelt name is not silently left out."""
    with pytest.raises(ValueError, match="no metrics: events_acepted"):
        HealthSnapshot(unready={}, counts={"events_acepted": 1})


async def test_the_server_takes_a_free_port_and_gives_it_back() -> None:
    application = _Daemon().application()
    async with HealthServer(application, "127.0.0.1", 0) as server:
        async with (
            ClientSession() as session,
            session.get(f"http://127.0.0.1:{server.port}/readyz") as response,
        ):
            assert response.status == 200
        with pytest.raises(ProducerError, match=f"127.0.0.1:{server.port}"):
            async with HealthServer(_Daemon().application(), "127.0.0.1", server.port):
                pass


@pytest.mark.promise("in-clients-open-connections")
async def test_probes_that_say_nothing_take_few_files() -> None:
    """Beyond the limit it is 503 at once; who does not ask in time is closed."""
    application = _Daemon().application()
    async with (
        HealthServer(application, "127.0.0.1", 0, connections=2, silence_s=0.2) as server,
        asyncio.timeout(PATIENCE_S),
    ):
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
        async with ClientSession(f"http://127.0.0.1:{server.port}") as session:
            for _ in range(2):
                async with session.get("/livez") as response:
                    assert response.status == 200
