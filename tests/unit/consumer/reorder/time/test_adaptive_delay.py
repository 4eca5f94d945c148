"""The learned delay: the smallest that keeps its promise, lately, and no later than allowed."""

from __future__ import annotations

from typing import Any

import pytest

from sequitur.base.stored import load
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.learned_delay import (
    DelayPolicy,
    LatenessHistogram,
    LearnedDelays,
    StepLateness,
    bin_limit_ms,
    lateness_bin,
    learn,
)
from sequitur.errors import StateFormatError
from sequitur.kafka.partition import SourcePartition
from tests.support.values import replace

A = SourcePartition("readings", 0)
B = SourcePartition("readings", 1)
POLICY = DelayPolicy(late_target=0.01, min_ms=100, max_ms=60_000, half_life_ms=60_000)


def _behind(**rows_by_ms: int) -> dict[int, int]:
    """Rows by bin, given as ms100=5: five rows 100 ms behind."""
    return {lateness_bin(int(name[2:])): rows for name, rows in rows_by_ms.items()}


def _learn(
    histogram: LatenessHistogram, reached_ms: int, rows: int, *, backlog: bool = False, **late: int
) -> LatenessHistogram:
    step = StepLateness(rows=rows, behind=_behind(**late))
    return histogram.learn(
        step, reached_ms=reached_ms, half_life_ms=POLICY.half_life_ms, is_backlog=backlog
    )


@pytest.mark.parametrize(
    ("lateness_ms", "number", "limit_ms"),
    [
        (-5, 0, 0),
        (0, 0, 0),
        (1, 1, 1),
        (2, 9, 2),
        (1024, 81, 1024),
        (1025, 82, 1116),
        (1 << 31, 249, 1 << 31),
        (1 << 40, 249, 1 << 31),
    ],
)
def test_bins_are_log_spaced_and_bounded(lateness_ms: int, number: int, limit_ms: int) -> None:
    """Powers of two end a bin, and the last bin takes all that is beyond."""
    assert lateness_bin(lateness_ms) == number
    assert bin_limit_ms(number) == limit_ms


def test_delay_is_the_smallest_under_the_target() -> None:
    """Of 1,000 rows 10 may be late: the delay covers all but these."""
    histogram = _learn(LatenessHistogram(), 0, 1000, ms500=40, ms2000=6, ms4096=5)
    assert histogram.delay_ms(POLICY) == bin_limit_ms(lateness_bin(2000))
    histogram = _learn(LatenessHistogram(), 0, 1000, ms500=40, ms4096=10)
    assert histogram.delay_ms(POLICY) == bin_limit_ms(lateness_bin(500))


def test_delay_keeps_to_its_bounds() -> None:
    """Punctual rows wait for the shortest delay allowed, and no row for more than the longest."""
    assert _learn(LatenessHistogram(), 0, 1000).delay_ms(POLICY) == 100
    assert _learn(LatenessHistogram(), 0, 1000, ms5=900).delay_ms(POLICY) == 100
    assert _learn(LatenessHistogram(), 0, 1000, ms59999=900).delay_ms(POLICY) == 60_000


def test_rows_beyond_help_are_not_waited_for() -> None:
    """A clock an hour slow is late under any delay allowed: the others do not pay for it."""
    histogram = _learn(LatenessHistogram(), 0, 1000, ms500=100, ms3600000=300)
    assert histogram.delay_ms(POLICY) == bin_limit_ms(lateness_bin(500))


def test_an_old_spike_is_forgotten() -> None:
    """A tenth of the rows were 8 s late once: four half-lives later that is under the target."""
    histogram = _learn(LatenessHistogram(), 0, 1000, ms8192=100, ms200=500)
    assert histogram.delay_ms(POLICY) == 8192
    for half_life in range(1, 5):
        histogram = _learn(histogram, half_life * 60_000, 1000, ms200=500)
    assert histogram.delay_ms(POLICY) == bin_limit_ms(lateness_bin(200))


def test_a_backlog_lets_the_delay_grow_and_not_shrink() -> None:
    """Rows in their place within one large step say nothing about the time after the backlog."""
    live = _learn(LatenessHistogram(), 0, 1000, ms1000=100)
    before_ms = live.delay_ms(POLICY)
    punctual = _learn(live, 10_000, 1_000_000, backlog=True)
    assert punctual.delay_ms(POLICY) == before_ms
    later = _learn(live, 10_000, 1_000_000, backlog=True, ms8192=50)
    assert later.delay_ms(POLICY) == 8192


def _learned(**histograms: LatenessHistogram) -> LearnedDelays:
    return LearnedDelays({{"a": A, "b": B}[name]: found for name, found in histograms.items()})


def test_a_partition_not_known_yet_goes_by_all_together() -> None:
    """Fewer rows than the target needs say nothing: first the longest delay, then the others'."""
    assert LearnedDelays().delays_ms([A, B], POLICY) == {A: 60_000, B: 60_000}
    few = _learn(LatenessHistogram(), 0, 99)
    assert _learned(a=few).delays_ms([A, B], POLICY) == {A: 60_000, B: 60_000}
    many = _learn(LatenessHistogram(), 0, 1000, ms2048=500)
    assert _learned(a=many, b=few).delays_ms([A, B], POLICY) == {A: 2048, B: 2048}
    assert _learned(a=many, b=_learn(few, 0, 1)).delays_ms([A, B], POLICY) == {A: 2048, B: 100}


@pytest.mark.promise("order-learned-delay-topic")
def test_silence_is_not_forgetting() -> None:
    """A feed that begins again after a day begins with the delay that it had."""
    histogram = LatenessHistogram()
    for minute in range(5):
        histogram = _learn(histogram, minute * 60_000, 1000, ms200=500)
    before_ms = histogram.delay_ms(POLICY)
    # What comes first has nothing to be late against; one step forgets half, and no more.
    histogram = _learn(histogram, 86_400_000, 100)
    assert histogram.delay_ms(POLICY) == before_ms > POLICY.min_ms
    assert sum(histogram.behind.values()) > 250


def test_late_rows_make_the_achieved_share() -> None:
    """Achieved is the share of rows behind the frontier, since the start and lately."""
    learned = LearnedDelays()
    for minute in range(11):
        learned = learned.learn(
            A,
            StepLateness(rows=1000, late=0 if minute else 10),
            reached_ms=60_000 * minute,
            half_life_ms=60_000,
            is_backlog=False,
        )
    assert learned.late_share == 10 / 11_000
    assert learned.recent_late_share < 0.0001
    assert LearnedDelays().late_share == LearnedDelays().recent_late_share == 0.0


def _clocks(position: int, end: int, reached_ms: int | None) -> EventClock:
    clock = EventClock()
    for partition in (A, B):
        clock = clock.observe(
            partition,
            max_event_time_ms=reached_ms,
            position=position,
            high_watermark=end,
            now_ms=0,
        )
    return clock


@pytest.mark.parametrize(("waiting", "rows"), [(0, 40), (40, 40), (41, 0)])
def test_a_step_that_leaves_more_than_it_has_read_is_in_a_backlog(waiting: int, rows: int) -> None:
    """Of a partition; and one that gave no rows has shown nothing."""
    before, after = _clocks(60, 100, 1_000), _clocks(100, 100 + waiting, 9_000)
    learned = learn(LearnedDelays(), before, after, {A: StepLateness(rows=40)}, policy=POLICY)
    assert learned.late_target == POLICY.late_target
    (found,) = learned.partitions.values()
    assert (found.seen, found.rows, found.reached_ms) == (40, rows, 9_000)


def test_a_partition_that_has_shown_no_time_forgets_nothing() -> None:
    """Its topic was made anew: what was learned of the former one is all that is known."""
    known = _learned(a=_learn(LatenessHistogram(), 9_000, 1000, ms200=500))
    clocks = _clocks(60, 60, None)
    learned = learn(known, clocks, clocks, {A: StepLateness(rows=0)}, policy=POLICY)
    assert learned.partitions == known.partitions


def test_what_was_learned_is_kept_beside_a_fixed_delay_and_promises_nothing() -> None:
    learned = replace(_learned(a=_learn(LatenessHistogram(), 0, 1000)), late_target=0.01)
    assert learned.set_aside() == replace(learned, late_target=0.0)


def test_the_frontier_waits_for_the_partition_with_the_longest_delay() -> None:
    clock = EventClock()
    for partition in (A, B):
        clock = clock.observe(
            partition, max_event_time_ms=10_000, position=1, high_watermark=2, now_ms=0
        )
    clock = clock.advance(now_ms=0, delay_ms={A: 500, B: 2000}, idle_timeout_ms=1000)
    assert clock.frontier_ms == 8000
    clock = clock.advance(now_ms=0, delay_ms={A: 500, B: 9000}, idle_timeout_ms=1000)
    assert clock.frontier_ms == 8000


@pytest.mark.parametrize("document", [{}, {"format": 2}])
def test_foreign_document_is_refused(document: dict[str, Any]) -> None:
    """What another format learned is not guessed at."""
    with pytest.raises(StateFormatError, match="this version reads 1"):
        load(LearnedDelays, document)


def test_what_is_known_of_partitions_adds_up() -> None:
    one = LatenessHistogram(70, 8, 3, 5.5, 1.25, {3: 2.5, 9: 1.0})
    two = LatenessHistogram(60, 4, 1, 2.5, 0.5, {3: 0.25, 11: 4.0})
    both = LatenessHistogram(70, 12, 4, 8.0, 1.75, {3: 2.75, 9: 1.0, 11: 4.0})
    assert one.plus(two) == two.plus(one) == both


def test_weights_decay_by_event_time() -> None:
    """By half at most, and from the first step on: nothing is forgotten of nothing."""
    before = LatenessHistogram(1_000, 8, 3, 5.0, 1.0, {3: 3.0})
    step = StepLateness(rows=4, late=2, behind={3: 1, 9: 2})
    after = before.learn(step, reached_ms=9_000, half_life_ms=100, is_backlog=False)
    assert after == LatenessHistogram(9_000, 12, 5, 6.5, 2.5, {3: 2.5, 9: 2.0})
    first = LatenessHistogram().learn(step, reached_ms=9_000, half_life_ms=100, is_backlog=False)
    assert first == LatenessHistogram(9_000, 4, 2, 4.0, 2.0, {3: 1.0, 9: 2.0})


def test_a_delay_that_just_covers_a_bin_waits_for_it() -> None:
    """Rows of the bin above it are beyond help."""
    policy = replace(POLICY, min_ms=1, max_ms=512)
    for number, delay_ms in ((lateness_bin(512), 512), (lateness_bin(513), 1)):
        assert LatenessHistogram(rows=100, behind={number: 50.0}).delay_ms(policy) == delay_ms
