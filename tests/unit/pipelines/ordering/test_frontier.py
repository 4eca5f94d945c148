"""How far a step moves the frontier: by which delay, and when too much is held."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sequitur.consumer import EventClock, LearnedDelays, ReorderSettings, Run, SourcePartition
from sequitur.consumer.time.adaptive_delay import StepLateness, lateness_bin
from sequitur.pipelines.ordering.frontier import Frontier

A, B = SourcePartition("readings", 0), SourcePartition("readings", 1)
IDLE_MS = 60_000


class _Outages:
    """What the user is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, message: str) -> None:
        self.told.append(message)


def _frontier(
    outages: _Outages | None = None, *, is_bounded: bool = False, **given: Any
) -> Frontier:
    settings = ReorderSettings.model_validate(
        {
            "input_topics": ["readings"],
            "output_topic": "ordered",
            "event_time": "json:at",
            "delay": "1 s",
            "idle_timeout": "1 min",
            "checkpoint": "/nowhere",
            **given,
        }
    )
    return Frontier(settings, cast("Any", outages or _Outages()), is_bounded=is_bounded)


def _clock(a_ms: int | None, b_ms: int | None) -> EventClock:
    clock = EventClock()
    for where, time_ms in ((A, a_ms), (B, b_ms)):
        clock = clock.observe(
            where, max_event_time_ms=time_ms, position=5, high_watermark=5, now_ms=0
        )
    return clock


def _run(size_bytes: int, max_event_time_ms: int) -> Run:
    return Run(0, 1, 0, max_event_time_ms, size_bytes=size_bytes)


def test_fixed_delay_is_taken_off_the_slowest_partition() -> None:
    """Nothing is learned from what steps see."""
    frontier = _frontier()
    clock = _clock(9_000, 5_000)
    assert not frontier.is_learned
    assert frontier.learn(None, EventClock(), clock, {A: StepLateness(rows=4)}) is None
    assert frontier.advance(clock, None, 0, []).frontier_ms == 4_000


def test_partition_is_idle_after_the_timeout_of_the_settings() -> None:
    """A millisecond before it, the frontier still waits for it."""
    clock = _clock(9_000, None).observe(
        A, max_event_time_ms=9_000, position=6, high_watermark=6, now_ms=IDLE_MS
    )
    assert _frontier().advance(clock, None, IDLE_MS - 1, []).frontier_ms == -1
    assert _frontier().advance(clock, None, IDLE_MS, []).frontier_ms == 8_000


@pytest.mark.parametrize(("is_bounded", "frontier_ms"), [(True, 8_000), (False, -1)])
def test_empty_partition_is_not_waited_for_in_a_bounded_run(
    is_bounded: bool, frontier_ms: int
) -> None:
    """Nothing of it can come."""
    frontier = _frontier(is_bounded=is_bounded)
    assert frontier.advance(_clock(9_000, None), None, 0, []).frontier_ms == frontier_ms


def test_learned_delay_is_that_of_each_partition() -> None:
    """As long as little is known, it is the longest that may be learned."""
    frontier = _frontier(delay="auto", delay_min="10 ms", delay_max="2 s", late_target=0.01)
    assert frontier.is_learned
    first = _clock(9_000, 5_000)
    moved = frontier.advance(first, None, 0, [])
    assert {where: one.delay_ms for where, one in moved.partitions.items()} == {A: 2_000, B: 2_000}
    rows = {A: StepLateness(rows=10_000), B: StepLateness(10_000, 0, {lateness_bin(512): 5_000})}
    before = EventClock()
    for where in (A, B):
        before = before.observe(
            where, max_event_time_ms=None, position=0, high_watermark=5, now_ms=0
        )
    learned = frontier.learn(None, before, first, rows)
    assert learned is not None
    assert learned.late_target == 0.01
    moved = frontier.advance(first, learned, 0, [])
    assert {where: one.delay_ms for where, one in moved.partitions.items()} == {A: 10, B: 512}
    again = frontier.learn(learned, before, first, rows)
    assert again is not None
    assert again.partitions[A].seen == 2 * learned.partitions[A].seen == 20_000


def test_what_was_learned_is_set_aside_by_a_fixed_delay() -> None:
    """It is kept for the day that the delay is learned again."""
    learned = LearnedDelays(late_target=0.01)
    assert _frontier().learn(learned, EventClock(), EventClock(), {}) == learned.set_aside()


def test_frontier_goes_on_without_the_partition_for_which_too_much_is_held() -> None:
    """The user is told when that begins, by name, and again once it has ended and begun anew."""
    outages = _Outages()
    frontier = _frontier(outages, max_held_bytes=100)
    clock = _clock(9_000, 5_000)
    fits, too_much = [_run(100, 7_000)], [_run(60, 7_000), _run(41, 7_500), _run(1, 4_000)]
    assert frontier.advance(clock, None, 0, fits).frontier_ms == 4_000
    assert outages.told == []
    for _ in range(2):
        moved = frontier.advance(clock, None, 0, too_much)
        assert moved.frontier_ms == 8_000
        assert [moved.partitions[where].was_overruled for where in (A, B)] == [False, True]
    message = (
        "more than max_held_bytes = 100 are held for the sake of partitions {}: "
        "the frontier goes on without them, and what is behind it there is late"
    )
    assert outages.told == [message.format("readings/1")]
    frontier.advance(clock, None, 0, fits)
    frontier.advance(clock, None, 0, [_run(101, 9_500)])
    assert outages.told == [
        message.format("readings/1"),
        message.format("readings/0, readings/1"),
    ]
