"""The daemon's health: is it alive, is it ready, and its metrics.

| path | 200 when |
|---|---|
| `/livez` | the event loop runs, also when there is nothing to do; restart the process if not |
| `/readyz` | events are accepted, into Kafka or into the journal; else 503 says why not |
| `/metrics` | always: Prometheus' text, or OpenMetrics if requested |

The names of metrics end with their unit, and counters with `_total`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from sequitur.errors import ProducerError
from sequitur.producer.sources._http_site import SERVER_LOG, LimitedSite, default_limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from typing import Self

    from prometheus_client import CollectorRegistry, Metric

BEAT_INTERVAL_S: Final = 0.5
STALLED_AFTER_S: Final = 10.0
"""After so long without a heartbeat the event loop has stalled."""

_CONNECTIONS: Final = 64
"""More than probes and scrapers have open."""
_SILENCE_S: Final = 10.0
"""How long a connection may be without a request."""

COUNTERS: Final = {
    "events_accepted": "Events that the daemon accepted and gave an event id",
    "events_recovered": "Events that the journal held from an earlier run",
    "events_persisted": "Events that are in the log of all in-sync replicas",
    "events_not_persisted": "Events that are not in the log and never will be",
    "events_possibly_persisted": "Events that may be in the log",
    "events_refused": "Events put into the dead-letter file",
    "batches_sent": "Attempts to send a batch",
    "batches_retried": "Attempts to send a batch that were not the first",
    "batches_split": "Batches that a broker refused as too large",
    "sent_bytes": "Bytes of batches sent, compressed",
    "identity_renewals": "How often a partition changed to another producer id or epoch",
    "journal_syncs": "Syncs of the journal to disk",
    "source_files_finished": "Files read to their end",
    "source_files_lost": "Files gone before they were read to their end",
    "source_files_passed_over": "Files not read: compressed, binary, or rotated out of order",
    "source_left_behind_bytes": "Bytes that were written to a file after the daemon had left it "
    "or finished it",
    "source_files_unreadable": "Files that could not be opened",
    "source_hole_bytes": "Bytes of NULs before a line, which the daemon skipped",
    "backlog_quota_held": "Calls that waited because the topic was over its backlog quota",
    "backlog_quota_refused": "Calls that were refused because the topic was over its backlog "
    "quota. Repeat them once the backlog is smaller",
    "http_requests_without_room": "HTTP requests answered 503",
}
GAUGES: Final = {
    "buffered_bytes": "Bytes of unacknowledged events",
    "batches_in_flight": "Batches that wait for their answer",
    "backlog_quota_ratio": "The topic's backlog as a share of its quota, shown from 0.5 on",
    "journal_disk_bytes": "Bytes of the journal's segments",
    "journal_unacked_batches": "Batches in the journal without an ack",
}


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The daemon at one moment."""

    unready: Mapping[str, str]  # what is not ready, and why, in a sentence each; empty when all is
    # by names of `COUNTERS` and `GAUGES`; what is missing is not exposed
    counts: Mapping[str, float]

    def __post_init__(self) -> None:
        unknown = self.counts.keys() - COUNTERS.keys() - GAUGES.keys()
        if unknown:
            raise ValueError(f"no metrics: {', '.join(sorted(unknown))}")


class DaemonCollector:
    """Exposes a snapshot as metrics: one snapshot a scrape, so that its counts fit together."""

    def __init__(
        self, snapshot: Callable[[], HealthSnapshot], *, prefix: str = "sequitur_producer"
    ) -> None:
        self._snapshot = snapshot
        self._prefix = prefix

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that a registry does not ask for a snapshot."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        for name, text in COUNTERS.items():
            if name in snapshot.counts:
                full = f"{self._prefix}_{name}"
                yield CounterMetricFamily(full, text, value=snapshot.counts[name])
        for name, text in GAUGES.items():
            if name in snapshot.counts:
                full = f"{self._prefix}_{name}"
                yield GaugeMetricFamily(full, text, value=snapshot.counts[name])
        ready = 0 if snapshot.unready else 1
        yield GaugeMetricFamily(
            f"{self._prefix}_ready", "Whether the daemon takes events", value=ready
        )


class Heartbeat:
    """A task that only runs again and again: its age tells whether the event loop runs."""

    def __init__(
        self, *, interval_s: float = BEAT_INTERVAL_S, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._now_s = now_s
        self._beaten_s = now_s()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.beat()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def age_s(self) -> float:
        """Seconds since the event loop last ran this task."""
        return self._now_s() - self._beaten_s

    def beat(self) -> None:
        self._beaten_s = self._now_s()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self.beat()


def health_application(
    snapshot: Callable[[], HealthSnapshot],
    registry: CollectorRegistry,
    heartbeat: Heartbeat,
    *,
    stalled_after_s: float = STALLED_AFTER_S,
) -> web.Application:
    """Return the web application, without a server."""

    async def livez(_: web.Request) -> web.Response:
        age_s = heartbeat.age_s
        alive = age_s < stalled_after_s
        return _respond(alive, {"alive": alive, "heartbeat_age_seconds": round(age_s, 3)})

    async def readyz(_: web.Request) -> web.Response:
        unready = snapshot().unready
        return _respond(not unready, {"ready": not unready, "unready": unready})

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    application = web.Application()
    for path, handler in (("/livez", livez), ("/readyz", readyz), ("/metrics", metrics)):
        application.router.add_get(path, handler)
    return application


class HealthServer:
    """Serves a health application while it is entered."""

    def __init__(
        self,
        application: web.Application,
        host: str,
        port: int,
        *,
        connections: int = _CONNECTIONS,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self.host = host
        self.port = port
        self._connections = min(connections, max(1, default_limit() // 2))
        self._silence_s = silence_s
        self._site: LimitedSite | None = None
        application.middlewares.append(self._note_request)
        self._runner = web.AppRunner(
            application, access_log=None, logger=SERVER_LOG, keepalive_timeout=silence_s
        )

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            self._site = LimitedSite(
                self._runner,
                self.host,
                self.port,
                limit=self._connections,
                head_timeout_s=self._silence_s,
            )
            await self._site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ProducerError(
                f"health: cannot listen on {self.host}:{self.port}: {error}"
            ) from error
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _note_request(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Note that a request's head has come, and handle it."""
        if self._site is not None:
            self._site.begun(request.transport)
        return await handler(request)


def _respond(healthy: bool, answer: Mapping[str, object]) -> web.Response:
    body = msgspec.json.encode(answer)
    return web.Response(status=200 if healthy else 503, body=body, content_type="application/json")
