"""Attempts at one thing, with growing pauses between them."""

from __future__ import annotations

import asyncio
from typing import Final

from sequitur.base.backoff import Backoff
from sequitur.errors import SendUnansweredError

_BACKOFF: Final = Backoff(initial_ms=5, maximum_ms=500, jitter=0)


class Attempts:
    """Attempts at one thing."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._failures = 0
        self._deadline_s = 0.0

    def succeed(self) -> None:
        """Take note of a success: patience begins anew."""
        self._failures = 0

    async def pause(self, why: str) -> None:
        """Wait before the next attempt."""
        now_s = asyncio.get_running_loop().time()
        if self._failures == 0:
            self._deadline_s = now_s + self._patience_s
        elif now_s > self._deadline_s:
            raise SendUnansweredError(why)
        self._failures += 1
        await asyncio.sleep(_BACKOFF.delay_ms(self._failures) / 1000)
