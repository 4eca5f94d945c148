"""What the frontier waits for: the partitions that hold it where it is, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.kafka.partition import SourcePartition


@dataclass(frozen=True, slots=True)
class Awaited:
    """A partition that the frontier waits for.

    Attributes:
        partition: Which.
        event_time_ms: Greatest event time it has given; None before the first.
        to_read: Its records that have to be read before it can be idle.
        idle_at_ms: When the frontier goes on without it, wall-clock time, if it gives nothing and
            is read to its end; None where that is not known.
    """

    partition: SourcePartition
    event_time_ms: int | None
    to_read: int
    idle_at_ms: int | None

    def text(self, now_ms: int) -> str:
        """Return it as a sentence.

        Args:
            now_ms: Wall-clock time.
        """
        name = f"partition {self.partition.partition} of {self.partition.topic!r}"
        state = "has given nothing"
        if self.event_time_ms is not None:
            state = f"stands at {utc_text(self.event_time_ms)}"
        if self.to_read:
            return f"{name} {state}, {self.to_read:,} to read"
        if self.idle_at_ms is None:
            return f"{name} {state}"
        left_s = max(0, self.idle_at_ms - now_ms) / 1000
        return f"{name} {state}, idle in {left_s:,.0f} s"


def awaited(clock: EventClock) -> tuple[Awaited, ...]:
    """Return the partitions that hold the frontier back; empty if none does."""
    live = {
        where: one
        for where, one in clock.partitions.items()
        if not one.was_idle and not one.was_overruled
    }
    silent = [where for where, one in live.items() if one.max_event_time_ms is None]
    reached = {
        where: one.max_event_time_ms - one.delay_ms
        for where, one in live.items()
        if one.max_event_time_ms is not None
    }
    least = min(reached.values(), default=None)
    holding = silent or [where for where, time_ms in reached.items() if time_ms == least]
    return tuple(
        Awaited(
            where, live[where].max_event_time_ms, live[where].to_read_first, live[where].idle_at_ms
        )
        for where in sorted(holding)
    )


def utc_text(time_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    except (OverflowError, ValueError):  # beyond the year 9999
        return f"{time_ms:,} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")
