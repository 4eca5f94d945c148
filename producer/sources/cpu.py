"""`cpu`: this machine's CPU usage, sampled: the source of the demo.

A sample is the share of time that a cpu was not idle since the sample before, from the kernel's
counters. They count in ticks of 10 ms, so at 100 Hz a sample is one tick, busy or idle. When no
tick has passed the last value is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec
from pydantic import Field

from sequitur.base.units import Duration
from sequitur.producer._record import Record
from sequitur.producer.sources._source import CommonSettings, SourceKind, SourceStatistics, pause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from sequitur.producer.sources._lines import EventParser
    from sequitur.producer.sources._source import Intake, Pause


class CpuSettings(CommonSettings):
    """Settings of `cpu`."""

    title = "CPU"

    rate_hz: float = Field(
        default=100.0,
        gt=0,
        le=10_000,
        description="Samples a second. Each has an event for each CPU (cpu)",
    )
    duration: Duration | None = Field(
        default=None,
        description="Stop after this time. Default: run until a signal (cpu)",
    )
    send_delay: Duration = Field(
        default=timedelta(0), description="Delay each event by this before it is sent (cpu)"
    )


class CpuUsage(msgspec.Struct, frozen=True):
    """One sample of one cpu, as it goes over the wire as JSON."""

    hostname: str
    cpu: int  # which of its cpus, from 0
    usage: float  # per cent of the time since the last sample in which it was not idle
    occurred_at: int  # when the sample was taken, milliseconds since 1970


class UsageMeter:
    """Usage of each cpu between two readings of the counters; pure."""

    def __init__(self) -> None:
        self._last: list[tuple[float, float]] = []
        self._usages: list[float] = []

    def usages(self, readings: Sequence[tuple[float, float]]) -> list[float]:
        if len(self._last) != len(readings):
            # The first reading, or a cpu was plugged in: there is nothing to compare with.
            self._usages = [0.0] * len(readings)
        else:
            for cpu, (before, now) in enumerate(zip(self._last, readings, strict=True)):
                total, idle = now[0] - before[0], now[1] - before[1]
                if total > 0:
                    busy = 100.0 * (1.0 - idle / total)
                    self._usages[cpu] = round(min(max(busy, 0.0), 100.0), 2)
        self._last = list(readings)
        return self._usages


class CpuSource:
    """Samples all cpus at a steady rate."""

    def __init__(
        self, *, rate_hz: float, duration: timedelta | None = None, hostname: str | None = None
    ) -> None:
        self._interval_s = 1.0 / rate_hz
        self._duration_s = None if duration is None else duration.total_seconds()
        self._hostname = hostname or socket.gethostname()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def events(self) -> AsyncIterator[Record]:
        """Yield one event per CPU and sample; samples that would be late are skipped."""
        meter = UsageMeter()
        meter.usages(_readings())
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        tick = 0
        while not self._stopped.is_set():
            # The next tick that is still ahead, so that a busy machine does not get behind.
            tick = max(tick, int((loop.time() - start_s) / self._interval_s)) + 1
            due_s = tick * self._interval_s
            if self._duration_s is not None and due_s > self._duration_s:
                return
            await self._sleep_until(start_s + due_s)
            occurred_at = int(time.time() * 1000)
            for cpu, usage in enumerate(meter.usages(_readings())):
                yield self._record(cpu, usage, occurred_at)

    async def _sleep_until(self, at_s: float) -> None:
        wait_s = at_s - asyncio.get_running_loop().time()
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._stopped.wait()
            except TimeoutError:
                return

    def _record(self, cpu: int, usage: float, occurred_at: int) -> Record:
        sample = CpuUsage(self._hostname, cpu, usage, occurred_at)
        return Record(msgspec.json.encode(sample), key=f"{self._hostname}|{cpu}".encode())


def _readings() -> list[tuple[float, float]]:
    import psutil  # noqa: PLC0415 - only this source needs it

    # guest time is contained in user time already
    return [
        (sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0), times.idle)
        for times in psutil.cpu_times(percpu=True)
    ]


_MAX_HELD: Final = 100_000
_FULL_WAIT_S: Final = 0.1


class CpuFeed:
    """Gives the samples of a `CpuSource` to an intake.

    A moment that has passed cannot be sampled again, so there is no position. When the daemon
    stops, or the sampling ends by itself, delayed samples are sent before it returns.
    """

    name = "cpu"

    def __init__(
        self,
        sampler: CpuSource,
        *,
        send_delay_s: float = 0.0,
        pause: Pause = pause,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._sampler = sampler
        self._send_delay_s = send_delay_s
        self._pause = pause
        self._now_s = now_s
        self._held: deque[tuple[float, Record]] = deque()
        self._sampled = asyncio.Event()

    def statistics(self) -> SourceStatistics:
        """Return empty statistics: nothing can go wrong here."""
        return SourceStatistics()

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Sample until the duration is over, or the daemon stops."""
        del position
        now_s = self._now_s or asyncio.get_running_loop().time
        stopper = asyncio.ensure_future(self._stop_sampling(intake.stopping))
        sampling = asyncio.ensure_future(self._sample(intake.stopping, now_s))
        sampling.add_done_callback(lambda _: self._sampled.set())
        try:
            while self._held or not sampling.done():
                await self._send_due(intake, now_s)
            await sampling
        finally:
            for task in (stopper, sampling):
                task.cancel()
            await asyncio.gather(stopper, sampling, return_exceptions=True)

    async def _stop_sampling(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._sampler.stop()

    async def _sample(self, stopping: asyncio.Event, now_s: Callable[[], float]) -> None:
        async for record in self._sampler.events():
            self._held.append((now_s() + self._send_delay_s, record))
            self._sampled.set()
            while len(self._held) >= _MAX_HELD and not stopping.is_set():
                await self._pause(stopping, _FULL_WAIT_S)

    async def _send_due(self, intake: Intake, now_s: Callable[[], float]) -> None:
        due: list[Record] = []
        until = now_s()
        while self._held and (self._held[0][0] <= until or intake.stopping.is_set()):
            due.append(self._held.popleft()[1])
        if due:
            await intake.accept(due)
        elif self._held:
            await self._pause(intake.stopping, max(self._held[0][0] - until, 0.001))
        else:
            self._sampled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._sampled.wait()


def _make(settings: CpuSettings, parser: EventParser) -> CpuFeed:
    del parser
    sampler = CpuSource(rate_hz=settings.rate_hz, duration=settings.duration)
    return CpuFeed(sampler, send_delay_s=settings.send_delay.total_seconds())


SOURCE: Final = SourceKind(settings=CpuSettings, make=_make, gives_json=True)
