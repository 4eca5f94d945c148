"""How far a step moves the frontier: by which delay, and when too much is held."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.learned_delay import LearnedDelays, StepLateness, lateness_bin
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.frontier import Frontier, tick_ms
from tests.support.values import replace

A, B = SourcePartition("readings", 0), SourcePartition("readings", 1)


class _Outages:
    """What the user is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, message: str) -> None:
        self.told.append(message)


def _frontier(
    outages: _Outages | None = None, *, is_bounded: bool = False, **given: Any
) -> Frontier:
    return Frontier(_settings(**given), cast("Any", outages or _Outages()), is_bounded=is_bounded)


def _settings(**given: Any) -> ReorderSettings:
    return ReorderSettings.model_validate(
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


@pytest.mark.promise("order-brokers-away-partition")
def test_partition_is_idle_after_the_timeout_of_the_settings() -> None:
    """A look before it, the frontier still waits for it; time without a job, or looks, is none."""
    frontier, clock = _frontier(idle_timeout="4 s"), _clock(9_000, None)
    reached = {}
    for now_ms in (60_000, 61_000, 62_000, 107_000, 107_001):
        clock = frontier.looked_at(clock, {A: 5, B: 5}, {A: 5, B: 5}, now_ms, {A: 9_000})
        reached[now_ms] = frontier.advance(clock, None, now_ms, []).frontier_ms
    assert tick_ms(_settings(idle_timeout="4 s")) == 1_000
    assert tick_ms(_settings(idle_timeout="1.001 s")) == 250
    assert reached == {60_000: -1, 61_000: -1, 62_000: -1, 107_000: 8_000, 107_001: 8_000}
    assert clock.partitions[B].silent_ms == 1_000 + 1_000 + 2_000 + 1


@pytest.mark.parametrize(("is_bounded", "frontier_ms"), [(True, 8_000), (False, -1)])
def test_empty_partition_is_not_waited_for_in_a_bounded_run(
    is_bounded: bool, frontier_ms: int
) -> None:
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
    for runs in (too_much, fits, too_much):
        moved = frontier.advance(clock, None, 0, runs)
        clock = replace(clock, frontier_ms=moved.frontier_ms)
    assert moved.frontier_ms == 7_000
    message = (
        "more than max_held_bytes = 100 are held for partitions {}: the frontier moves on without "
        "them, to {:g} s before the newest event, so that the rest fits. Older rows of these "
        "partitions are late"
    )
    assert outages.told == [message.format("readings/1", 2)]
    clock = frontier.looked_at(clock, {B: 9}, {B: 9}, 0, {B: 8_500})
    frontier.advance(clock, None, 0, fits)  # it has caught up
    moved = frontier.advance(clock, None, 0, [_run(101, 9_000)])
    assert [moved.partitions[where].was_overruled for where in (A, B)] == [True, True]
    assert outages.told == [
        message.format("readings/1", 2),
        message.format("readings/0, readings/1", 0),
    ]


@pytest.mark.promise("order-broker-hangs", "order-brokers-away-partition")
def test_partition_whose_leader_does_not_answer_is_not_looked_at() -> None:
    """It is not idle for that, so the frontier waits; what was read of it before counts."""
    frontier, clock = _frontier(idle_timeout="1 s"), _clock(9_000, None)
    for now_ms in range(0, 60_000, 1_000):
        clock = frontier.looked_at(clock, {A: 5, B: 5}, {A: 5}, now_ms)
        clock = frontier.advance(clock, None, now_ms, ())
    assert clock.partitions[A].was_idle
    assert not clock.partitions[B].was_idle
    assert clock.frontier_ms == -1
    clock = frontier.looked_at(clock, {A: 5, B: 7}, {A: 5}, 60_000, {B: 9_500})
    assert (clock.partitions[B].position, clock.partitions[B].high_watermark) == (7, 7)
    assert frontier.advance(clock, None, 60_000, ()).frontier_ms == 8_500
    new = SourcePartition("readings", 2)
    clock = frontier.looked_at(clock, {new: 0}, {}, 60_000)
    assert not frontier.advance(clock, None, 60_000, ()).partitions[new].was_idle


def test_what_is_known_of_the_end_stays_where_it_was_not_asked() -> None:
    """Some rows were read up to 7; the partition had 9."""
    clock = EventClock().observe(A, max_event_time_ms=9_000, position=5, high_watermark=9, now_ms=0)
    clock = _frontier().looked_at(clock, {A: 7}, {}, 1_000, {A: 9_500})
    assert (clock.partitions[A].position, clock.partitions[A].high_watermark) == (7, 9)


def test_a_partition_is_named_until_it_has_caught_up() -> None:
    """It is not named anew while the frontier goes on without it."""
    outages = _Outages()
    frontier, clock = _frontier(outages, max_held_bytes=100), _clock(9_000, 5_000)
    for reached_ms in (7_000, 8_000):
        moved = frontier.advance(clock, None, 0, [_run(101, reached_ms)])
        assert moved.frontier_ms == reached_ms
        clock = replace(clock, frontier_ms=reached_ms)
    assert len(outages.told) == 1


def test_a_partition_that_was_idle_is_named_when_too_much_is_held_for_it() -> None:
    """It is behind the frontier, as one that was named is."""
    outages = _Outages()
    frontier = _frontier(outages, max_held_bytes=100, idle_timeout="1 s")
    clock = _clock(9_000, 5_000)
    for now_ms in range(0, 10_000, 500):
        clock = frontier.looked_at(clock, {A: 5, B: 5}, {A: 5, B: 5}, now_ms)
        clock = frontier.advance(clock, None, now_ms, ())
    assert clock.frontier_ms == 9_000
    assert clock.partitions[B].was_idle
    clock = frontier.looked_at(clock, {A: 6, B: 6}, {A: 6, B: 6}, now_ms, {A: 20_000, B: 5_500})
    clock = frontier.advance(clock, None, now_ms, [_run(101, 15_000)])
    assert clock.partitions[B].was_overruled
    (told,) = outages.told
    assert "held for partitions readings/1: the frontier" in told


@pytest.mark.parametrize(("is_bounded", "silent_ms"), [(True, 100_000), (False, 0)])
def test_time_before_the_first_look_is_silence_in_a_bounded_run(
    is_bounded: bool, silent_ms: int
) -> None:
    clock = _frontier(is_bounded=is_bounded).looked_at(_clock(9_000, None), {B: 5}, {B: 5}, 100_000)
    assert clock.partitions[B].silent_ms == silent_ms
