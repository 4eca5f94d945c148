"""`cpu`: this machine's CPU readings, each delayed by the send delay, given to an intake."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final

from sequitur.producer.sources._intake import SourceStatistics, pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.producer._record import Record
    from sequitur.producer.sources._cpu import CpuSource
    from sequitur.producer.sources._intake import Intake, Pause

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
                await asyncio.wait_for(self._sampled.wait(), 1.0)
