"""When a batch runs: its time, the watermark, and the ticks that are due.

All of it follows from what is written down before the batch begins, so a batch that is repeated has
the same ticks and the same watermark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sequitur.consumer.topology.api.tuple import SYSTEM_COMPONENT, TRANSACTION_FIELD, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping


TICK_STREAM: Final = "__tick"
TICK: Final = Stream(SYSTEM_COMPONENT, TICK_STREAM, ("interval_s",))
"""The stream of tick tuples, by Storm's names."""
BATCH_TICK: Final = Stream(SYSTEM_COMPONENT, TICK_STREAM, (TRANSACTION_FIELD, *TICK.fields))
"""Likewise in a transactional topology."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a batch runs."""

    number: int = 0
    now_ms: int = 0  # its time, epoch ms
    # every event up to this event time is done; None as long as none is known
    watermark_ms: int | None = None
    # the bolts that are given a tick, and their intervals in ms
    ticks: Mapping[str, int] = field(default_factory=dict)


def ticks_due(
    intervals_ms: Mapping[str, int], before_ms: int | None, now_ms: int
) -> dict[str, int]:
    """Return the bolts that get a tick, with their intervals: one tick each, however late it is.

    Ticks are due at multiples of the interval.
    """
    if before_ms is None:
        return {}
    return {
        bolt: interval_ms
        for bolt, interval_ms in intervals_ms.items()
        if now_ms // interval_ms > before_ms // interval_ms
    }


def next_tick_ms(intervals_ms: Mapping[str, int], before_ms: int | None) -> int | None:
    """Return when the next tick is due; None if no bolt has ticks, or before the first batch."""
    if before_ms is None or not intervals_ms:
        return None
    return min((before_ms // each + 1) * each for each in intervals_ms.values())


def watermark_after(
    before_ms: int | None, reached_ms: int | None, waiting_ms: int | None
) -> int | None:
    """Return the watermark after a batch: every event up to it is done. It never goes back."""
    if reached_ms is not None and waiting_ms is not None:
        reached_ms = min(reached_ms, waiting_ms - 1)
    known = [one for one in (before_ms, reached_ms) if one is not None]
    return max(known, default=None)
