"""How far a step moves the frontier: by the delay, fixed or learned, and by what may be held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import LearnedDelays, learn
from sequitur.producer.settings import milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer import EventClock, ReorderSettings, Run, SourcePartition, StepLateness
    from sequitur.pipelines.kafka.outages import Outages


class Frontier:
    """Moves the frontier."""

    def __init__(self, settings: ReorderSettings, outages: Outages, *, is_bounded: bool) -> None:
        self._policy = settings.delay_policy
        self._delay_ms = milliseconds(settings.longest_delay)
        self._idle_timeout_ms = milliseconds(settings.idle_timeout)
        self._max_held_bytes = settings.max_held_bytes
        self._outages = outages
        self._is_bounded = is_bounded
        self._overruled: set[SourcePartition] = set()

    @property
    def is_learned(self) -> bool:
        """Whether delays are learned."""
        return self._policy is not None

    def learn(
        self,
        learned: LearnedDelays | None,
        before: EventClock,
        after: EventClock,
        lateness: Mapping[SourcePartition, StepLateness],
    ) -> LearnedDelays | None:
        """Return what delays come from, once a batch is staged; None as long as none was learned.

        Args:
            learned: What they came from before it.
            before: The clocks before it.
            after: The clocks after it.
            lateness: How late its rows were.
        """
        if self._policy is not None:
            return learn(learned or LearnedDelays(), before, after, lateness, policy=self._policy)
        return None if learned is None else learned.set_aside()

    def advance(
        self, clock: EventClock, learned: LearnedDelays | None, now_ms: int, runs: Sequence[Run]
    ) -> EventClock:
        """Move the frontier, so that runs hold no more bytes behind it than may be held.

        Args:
            clock: The clocks.
            learned: What delays come from, if they are learned.
            now_ms: Wall-clock time.
            runs: The runs that hold rows.
        """
        delay_ms: int | dict[SourcePartition, int] = self._delay_ms
        if self._policy is not None:
            delay_ms = (learned or LearnedDelays()).delays_ms(clock.partitions, self._policy)
        most = self._max_held_bytes
        after = clock.advance(
            now_ms=now_ms,
            delay_ms=delay_ms,
            idle_timeout_ms=self._idle_timeout_ms,
            is_bounded=self._is_bounded,
            fits=lambda frontier_ms: sum(run.held_bytes(frontier_ms) for run in runs) <= most,
        )
        overruled = {where for where, one in after.partitions.items() if one.was_overruled}
        if more := overruled - self._overruled:
            names = ", ".join(f"{where.topic}/{where.partition}" for where in sorted(more))
            self._outages.tell(
                f"more than max_held_bytes = {most} are held for the sake of partitions {names}: "
                "the frontier goes on without them, and what is behind it there is late"
            )
        self._overruled = overruled
        return after
