"""A step of the reorder job that is done, as those are told of it who show progress and metrics."""

from __future__ import annotations

from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.learned_delay import LearnedDelays, StepLateness
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StepDone, StepEntry, StepKind, Totals
from sequitur.kafka.partition import SourcePartition

A = SourcePartition("readings", 0)
B = SourcePartition("readings", 1)
T0 = 1_700_000_000_000


def done_step(*, learned: bool = False) -> tuple[StepEntry, StepDone]:
    clock = EventClock()
    for partition, behind in ((A, 0), (B, 12)):
        clock = clock.observe(
            partition,
            max_event_time_ms=T0,
            position=100,
            high_watermark=100 + behind,
            now_ms=0,
        )
    clock = clock.advance(now_ms=0, delay_ms={A: 500, B: 2000}, idle_timeout_ms=1000)
    lateness = StepLateness(rows=200, late=2)
    delays = LearnedDelays(late_target=0.05).learn(
        A, lateness, reached_ms=T0, half_life_ms=1000, is_backlog=False
    )
    entry = StepEntry(
        step=7,
        kind=StepKind.BATCH,
        batch_id=6,
        previous_frontier_ms=T0 - 5000,
        clock=clock,
        counts=Totals(read=200, late=3, quarantined={"event-time-missing": 4}),
        runs=(Run(7, 193, T0 - 3000, T0),),
        before=Totals(read=1000, released=950, late=10),
        logged_ms=T0,
        learned=delays if learned else None,
    )
    totals = Totals(
        read=1200, released=1100, late=13, quarantined={"event-time-missing": 4}, duplicates=5
    )
    return entry, StepDone(7, totals, seconds=0.75)
