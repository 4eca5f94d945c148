"""CPU readings reach the intake, kept back as long as asked for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import psutil

from sequitur.producer.sources.cpu import CpuFeed, CpuSource, CpuUsage
from tests.support.fake_intake import FakeIntake


async def test_samples_reach_the_intake_until_the_duration_is_over() -> None:
    sampler = CpuSource(rate_hz=100, duration=timedelta(milliseconds=60), hostname="here")
    intake = FakeIntake()
    await CpuFeed(sampler).run(intake, None)
    cpus = psutil.cpu_count() or 1
    assert len(intake.events) >= cpus
    assert len(intake.events) % cpus == 0
    for key, value in intake.events:
        usage = msgspec.json.decode(value or b"", type=CpuUsage)
        assert key == b"here|%d" % usage.cpu


async def test_a_stop_sends_what_is_kept_back() -> None:
    """A sample that was taken is sent, delay or not."""
    sampler = CpuSource(rate_hz=1_000)
    intake = FakeIntake()
    feed = CpuFeed(sampler, send_delay_s=3_600)
    run = asyncio.create_task(feed.run(intake, None))
    while not feed._held:  # noqa: ASYNC110 - the feed has no event for it
        await asyncio.sleep(0.001)
    assert intake.events == []
    intake.stopping.set()
    await run
    assert len(intake.events) > 0


async def test_the_delay_passes_before_an_event_is_sent() -> None:
    """Also after the sampling has ended by itself."""
    clock_s = 0.0
    waits: list[float] = []

    async def pause(stopping: asyncio.Event, seconds: float) -> None:
        nonlocal clock_s
        assert not stopping.is_set()
        waits.append(seconds)
        clock_s += seconds
        await asyncio.sleep(0)

    sampler = CpuSource(rate_hz=1_000, duration=timedelta(milliseconds=3))
    feed = CpuFeed(sampler, send_delay_s=7, pause=pause, now_s=lambda: clock_s)
    intake = FakeIntake()
    await feed.run(intake, None)
    assert len(intake.events) > 0
    assert sum(waits) >= 7
