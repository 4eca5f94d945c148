"""The wall clock, as Kafka's timestamps count it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SET_MS: Final = 60_000


def wall_clock_ms() -> int:
    """Return the time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class StampClock:
    """What time records get: the machine's, corrected once a broker has said that it is another.

    A correction lasts until the machine's clock is set again: that may have put it right.
    """

    def __init__(
        self,
        wall_ms: Callable[[], int] = wall_clock_ms,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_ms = wall_ms
        self._steady_s = steady_s
        self._ahead_ms = 0
        self._set_at_ms = 0.0

    @property
    def ahead_ms(self) -> int:
        """How far the machine's clock is ahead of the broker's, as far as is known."""
        return self._ahead_ms

    def now_ms(self) -> int:
        """Return the time, epoch milliseconds."""
        now_ms = self._wall_ms()
        if self._ahead_ms and abs(self._set_ms(now_ms) - self._set_at_ms) > _SET_MS:
            self._ahead_ms = 0
        return now_ms - self._ahead_ms

    def correct(self, broker_ms: int) -> None:
        """Take note of the time at a broker."""
        now_ms = self._wall_ms()
        self._ahead_ms = now_ms - broker_ms
        self._set_at_ms = self._set_ms(now_ms)

    def _set_ms(self, now_ms: int) -> float:
        """Return what changes only when the machine's clock is set."""
        return now_ms - self._steady_s() * 1000
