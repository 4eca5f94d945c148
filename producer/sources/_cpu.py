"""This machine's CPU usage, sampled: the source of the demo.

A sample is the share of time that a cpu was not idle since the sample before, from the kernel's
counters. They count in ticks of 10 ms, so at 100 Hz a sample is one tick, busy or idle. When no
tick has passed the last value is repeated.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

import msgspec
import psutil

from sequitur.producer._record import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import timedelta


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
        """Return the usage of each cpu in per cent."""
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
        """Take no more samples."""
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
                await asyncio.wait_for(self._stopped.wait(), wait_s)
            except TimeoutError:
                return

    def _record(self, cpu: int, usage: float, occurred_at: int) -> Record:
        sample = CpuUsage(self._hostname, cpu, usage, occurred_at)
        return Record(msgspec.json.encode(sample), key=f"{self._hostname}|{cpu}".encode())


def _readings() -> list[tuple[float, float]]:
    # guest time is contained in user time already
    return [
        (sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0), times.idle)
        for times in psutil.cpu_times(percpu=True)
    ]
