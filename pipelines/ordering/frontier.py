"""How far a step moves the frontier: by the delay, fixed or learned, and by what may be held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sequitur.base.units import milliseconds
from sequitur.consumer.reorder.clock import LONGEST_TICK_MS, Look
from sequitur.consumer.reorder.learned_delay import LearnedDelays, learn
from sequitur.consumer.reorder.sorted_run import least_frontier_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.base.retry import Outages
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.learned_delay import StepLateness
    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.kafka.partition import SourcePartition


_LOOKS_WITHIN_IDLE: Final = 4
_SHORTEST_TICK_MS: Final = 100


def tick_ms(settings: ReorderSettings) -> int:
    """Return the interval at which the job looks at its input beside batches."""
    wanted_ms = milliseconds(settings.idle_timeout) // _LOOKS_WITHIN_IDLE
    return min(LONGEST_TICK_MS, max(_SHORTEST_TICK_MS, wanted_ms))


class Frontier:
    """Moves the frontier by what the job sees of its input, in one life of the job."""

    def __init__(self, settings: ReorderSettings, outages: Outages, *, is_bounded: bool) -> None:
        self._policy = settings.delay_policy
        self._delay_ms = milliseconds(settings.longest_delay)
        self._idle_timeout_ms = milliseconds(settings.idle_timeout)
        self._max_held_bytes = settings.max_held_bytes
        self._outages = outages
        self._is_bounded = is_bounded
        self._longest_ms = 0  # nobody watched the time before the first look of a life
        self._watched_ms = 2 * tick_ms(settings)
        self._overruled: set[SourcePartition] = set()

    @property
    def is_learned(self) -> bool:
        return self._policy is not None

    def looked_at(
        self,
        clock: EventClock,
        positions: Mapping[SourcePartition, int],
        ends: Mapping[SourcePartition, int],
        now_ms: int,
        maxima: Mapping[SourcePartition, int | None] | None = None,
    ) -> EventClock:
        """Return the clocks once partitions were looked at, not advanced yet.

        A partition whose end is not known was not looked at, unless rows of it were read.
        """
        times = maxima or {}
        looks: dict[SourcePartition, Look] = {}
        for at, read in positions.items():
            known = clock.partitions.get(at)
            if at in ends:
                looks[at] = Look(read, ends[at], times.get(at))
            elif known is None or read > known.position:
                end = read if known is None else max(read, known.high_watermark)
                looks[at] = Look(read, end, times.get(at))
        longest_ms, self._longest_ms = self._longest_ms, self._watched_ms
        return clock.looked_at(
            looks, now_ms=now_ms, longest_ms=longest_ms, is_bounded=self._is_bounded
        )

    def learn(
        self,
        learned: LearnedDelays | None,
        before: EventClock,
        after: EventClock,
        lateness: Mapping[SourcePartition, StepLateness],
    ) -> LearnedDelays | None:
        """Return the learned delays once a batch is staged; None if nothing was learned."""
        if self._policy is not None:
            return learn(learned or LearnedDelays(), before, after, lateness, policy=self._policy)
        return None if learned is None else learned.set_aside()

    def advance(
        self, clock: EventClock, learned: LearnedDelays | None, now_ms: int, runs: Sequence[Run]
    ) -> EventClock:
        """Move the frontier so that runs hold no more bytes behind it than may be held."""
        delay_ms: int | dict[SourcePartition, int] = self._delay_ms
        if self._policy is not None:
            delay_ms = (learned or LearnedDelays()).delays_ms(clock.partitions, self._policy)
        most = self._max_held_bytes
        after = clock.advance(
            now_ms=now_ms,
            delay_ms=delay_ms,
            idle_timeout_ms=self._idle_timeout_ms,
            is_bounded=self._is_bounded,
            least_ms=least_frontier_ms(runs, most),
        )
        overruled = {where for where, one in after.partitions.items() if one.was_overruled}
        if more := overruled - self._overruled:
            names = ", ".join(f"{where.topic}/{where.partition}" for where in sorted(more))
            behind_s = (after.max_event_time_ms - after.frontier_ms) / 1000
            self._outages.tell(
                f"more than max_held_bytes = {most} are held for partitions {names}: the "
                f"frontier moves on without them, to {behind_s:g} s before the newest event, "
                "so that the rest fits. Older rows of these partitions are late"
            )
        # They are named once, until they have caught up: between two steps it may fit for a moment.
        self._overruled = {
            where
            for where in overruled | (self._overruled & after.partitions.keys())
            if after.partitions[where].reach_ms < after.frontier_ms
        }
        return after
