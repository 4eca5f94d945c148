"""The wall clock, as Kafka's timestamps count it."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Return the time in epoch milliseconds."""
    return time.time_ns() // 1_000_000
