"""The event clock: minimum over live partitions, idle partitions, and never backwards."""

from __future__ import annotations

from typing import Any

import pytest

from sequitur.base.stored import load
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.clock import EventClock, Look, PartitionClock
from sequitur.errors import StateFormatError
from sequitur.kafka.partition import SourcePartition
from tests.support.values import replace

A = SourcePartition("readings", 0)
B = SourcePartition("readings", 1)
DELAY_MS = 10
IDLE_MS = 100


def _observe(
    clock: EventClock,
    partition: SourcePartition,
    time_ms: int | None,
    *,
    now_ms: int,
    behind: int = 0,
) -> EventClock:
    return clock.observe(
        partition, max_event_time_ms=time_ms, position=5, high_watermark=5 + behind, now_ms=now_ms
    )


def _advance(clock: EventClock, now_ms: int) -> EventClock:
    """Look once more, at nothing new, and move the frontier."""
    known = clock.partitions.items()
    looks = {where: Look(one.position, one.high_watermark) for where, one in known}
    clock = clock.looked_at(looks, now_ms=now_ms)
    return clock.advance(now_ms=now_ms, delay_ms=DELAY_MS, idle_timeout_ms=IDLE_MS)


def test_frontier_is_before_all_time_at_first() -> None:
    """With nothing seen nothing is released, not even an event at time 0."""
    assert _advance(EventClock(), 0).frontier_ms == BEFORE_ALL_TIME_MS


def test_frontier_follows_the_slowest_partition() -> None:
    """A partition read ahead of another does not make the other's rows late."""
    clock = _observe(_observe(EventClock(), A, 1000, now_ms=0), B, 400, now_ms=0)
    assert _advance(clock, 0).frontier_ms == 390


def test_frontier_waits_for_a_partition_not_seen_yet() -> None:
    """A live partition that has given nothing may still give anything."""
    clock = _observe(_observe(EventClock(), A, 1000, now_ms=0), B, None, now_ms=0)
    assert _advance(clock, IDLE_MS - 1).frontier_ms == BEFORE_ALL_TIME_MS


def test_partition_never_seen_is_idle_after_the_timeout() -> None:
    """An empty partition holds the others up for the time-out, and no longer."""
    clock = _observe(EventClock(), B, None, now_ms=0)
    clock = _observe(clock, A, 1000, now_ms=IDLE_MS)
    assert _advance(clock, IDLE_MS).frontier_ms == 990


def test_idle_needs_the_timeout() -> None:
    """A partition that gave something lately counts, though it has nothing more."""
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), B, 1000, now_ms=50)
    assert _advance(clock, IDLE_MS - 1).frontier_ms == 390
    assert _advance(clock, IDLE_MS).frontier_ms == 990


@pytest.mark.promise("order-partition-fall-silent")
def test_idle_needs_the_end_of_the_partition() -> None:
    """A partition that we have not got round to reading is not idle, however long it takes."""
    clock = _observe(EventClock(), A, 400, now_ms=0, behind=1)
    clock = _observe(clock, B, 1000, now_ms=10 * IDLE_MS)
    clock = _advance(clock, 10 * IDLE_MS)
    assert clock.frontier_ms == 390
    assert clock.partitions[A].to_read_first == 1


@pytest.mark.promise("order-rows-partition-unusable")
def test_partition_with_nothing_but_bad_rows_is_idle_though_more_keep_coming() -> None:
    """What was there when its silence began is read; what has come since says nothing new."""
    clock = EventClock()
    for now_ms in range(0, IDLE_MS + 1, 10):
        looks = {A: Look(now_ms, now_ms + 5, 1000 + now_ms), B: Look(now_ms, now_ms + 5)}
        clock = clock.looked_at(looks, now_ms=now_ms)
        clock = clock.advance(now_ms=now_ms, delay_ms=DELAY_MS, idle_timeout_ms=IDLE_MS)
        assert clock.partitions[B].was_idle == (now_ms == IDLE_MS)
    assert clock.frontier_ms == 1000 + IDLE_MS - DELAY_MS
    assert clock.partitions[B].to_read == 5
    # A usable row among them, and its silence begins anew, as does what has to be read first.
    woken = clock.looked_at({B: Look(200, 230, 900)}, now_ms=IDLE_MS + 10)
    assert (woken.partitions[B].silent_ms, woken.partitions[B].to_read_first) == (0, 30)


@pytest.mark.promise("order-brokers-away-partition")
@pytest.mark.parametrize(("away_ms", "counted_ms"), [(20, 20), (40, 40), (45_000, 40)])
def test_outage_counts_as_silence_no_longer_than_two_ticks(away_ms: int, counted_ms: int) -> None:
    """While nobody looks, or looks fail, a producer may have what it cannot send."""
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), B, 1000, now_ms=0)
    looks = {A: Look(5, 5), B: Look(9, 9, 1000 + away_ms)}
    clock = clock.looked_at(looks, now_ms=away_ms, longest_ms=40)
    assert clock.partitions[A].silent_ms == counted_ms
    assert clock.partitions[B].silent_ms == 0
    clock = clock.advance(now_ms=away_ms, delay_ms=DELAY_MS, idle_timeout_ms=IDLE_MS)
    assert (clock.frontier_ms, clock.partitions[A].was_idle) == (390, False)


@pytest.mark.promise("order-brokers-away-partition")
def test_run_that_ends_counts_all_time_since_the_run_before_and_reads_what_came() -> None:
    """Its looks are hours apart: by ticks a partition that is gone would hold rows for months."""
    hour_ms = 3_600_000
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), B, 1000, now_ms=0)
    for read, is_idle in ((5, False), (8, True)):
        looks = {A: Look(read, 8), B: Look(9, 9, 2000)}
        later = clock.looked_at(looks, now_ms=hour_ms, longest_ms=40, is_bounded=True)
        assert later.partitions[A].silent_ms == hour_ms
        idle = later.idle(idle_timeout_ms=IDLE_MS, is_bounded=True)
        assert (A in idle) == is_idle


@pytest.mark.promise("order-brokers-lose-records")
def test_partition_whose_end_was_lost_becomes_idle() -> None:
    """An unclean election leaves it shorter than it was seen: what is gone is not waited for."""
    clock = _observe(_observe(EventClock(), A, 1000, now_ms=0), B, 400, now_ms=0, behind=10)
    for now_ms in range(0, IDLE_MS + 1, 10):
        clock = _observe(_observe(clock, A, 1000 + now_ms, now_ms=now_ms), B, None, now_ms=now_ms)
    assert clock.idle(idle_timeout_ms=IDLE_MS) == {B}
    assert clock.partitions[B].to_read_first == 0


def test_clock_tells_what_the_frontier_was_computed_from() -> None:
    """Who was idle, and the delay of each, can be read from the log of a step."""
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), B, 1000, now_ms=50)
    clock = _advance(clock, IDLE_MS)
    assert [clock.partitions[p].was_idle for p in (A, B)] == [True, False]
    assert [clock.partitions[p].delay_ms for p in (A, B)] == [DELAY_MS, DELAY_MS]
    clock = _advance(_observe(clock, A, 500, now_ms=IDLE_MS), IDLE_MS)
    assert not clock.partitions[A].was_idle


def test_last_look_is_that_at_any_partition() -> None:
    """A topic may not have been looked at for a while; before the first look there is none."""
    assert EventClock().seen_ms == 0
    clock = _observe(_observe(EventClock(), A, 400, now_ms=70), B, 1000, now_ms=50)
    assert clock.seen_ms == 70


def test_all_idle_releases_everything() -> None:
    """When nothing can come, the frontier is the greatest event time, without the delay."""
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), B, 1000, now_ms=0)
    assert _advance(clock, IDLE_MS).frontier_ms == 1000


def test_partition_that_wakes_up_does_not_turn_the_frontier_back() -> None:
    """It rejoins the minimum: the frontier stands still until it has caught up."""
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), B, 1000, now_ms=90)
    clock = _advance(clock, IDLE_MS)
    assert clock.frontier_ms == 990
    clock = _observe(_observe(clock, A, 500, now_ms=110), B, 2000, now_ms=110)
    clock = _advance(clock, 110)
    assert clock.frontier_ms == 990
    clock = _advance(_observe(clock, A, 1500, now_ms=120), 120)
    assert clock.frontier_ms == 1490


def test_row_without_a_usable_time_keeps_no_partition_live() -> None:
    """A partition that gives nothing but bad rows must not hold the others up."""
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), B, 1000, now_ms=90)
    clock = _observe(clock, A, None, now_ms=90)
    assert _advance(clock, IDLE_MS).frontier_ms == 990


def test_clock_of_a_partition_keeps_its_maximum() -> None:
    """An older event moves no clock back."""
    clock = _observe(_observe(EventClock(), A, 1000, now_ms=0), A, 7, now_ms=1)
    assert clock.partitions[A].max_event_time_ms == 1000
    assert (clock.partitions[A].seen_ms, clock.partitions[A].silent_ms) == (1, 0)


def test_frontier_does_not_become_negative() -> None:
    """Event times smaller than the delay leave the frontier before all time."""
    assert _advance(_observe(EventClock(), A, 3, now_ms=0), 0).frontier_ms == BEFORE_ALL_TIME_MS


def test_wall_clock_set_back_makes_nobody_idle() -> None:
    """Idleness is never concluded from a negative silence."""
    clock = _observe(_observe(EventClock(), A, 400, now_ms=1000), B, 500, now_ms=1000)
    assert _advance(clock, 0).frontier_ms == 390


@pytest.mark.promise("order-machine-clock-ahead")
def test_wall_clock_that_was_ahead_keeps_nobody_live() -> None:
    """It is set back by an hour: who is silent is idle after the time-out all the same."""
    partition, hour_ms = SourcePartition("in", 0), 3_600_000
    clock = EventClock()
    for now_ms, seen_ms in ((2 * hour_ms, 5_000), (hour_ms, None), (hour_ms + 2_000, None)):
        clock = clock.observe(
            partition, max_event_time_ms=seen_ms, position=1, high_watermark=1, now_ms=now_ms
        )
    assert clock.idle(idle_timeout_ms=2_001) == frozenset()
    assert clock.idle(idle_timeout_ms=2_000) == {partition}


def test_drain_reaches_the_greatest_event_time() -> None:
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), B, 1000, now_ms=0, behind=9)
    assert clock.drain().frontier_ms == 1000
    assert EventClock().drain().frontier_ms == BEFORE_ALL_TIME_MS


def test_topic_that_is_forgotten_leaves_the_frontier_where_it_is() -> None:
    """Its partitions hold nothing back any more, and begin as new ones."""
    other = SourcePartition("other", 0)
    clock = _observe(_observe(EventClock(), A, 400, now_ms=0), other, 1000, now_ms=0).drain()
    left = clock.without({"other"})
    assert (set(left.partitions), left.frontier_ms) == ({A}, 1000)


@pytest.mark.parametrize("document", [{}, {"format": 1}, {"format": 3}, {"format": "2"}])
def test_foreign_document_is_refused(document: dict[str, Any]) -> None:
    """A clock of another format is not guessed at."""
    with pytest.raises(StateFormatError, match="this version reads 2"):
        load(EventClock, document)


def test_rows_that_are_gone_are_passed_over() -> None:
    """A partition goes on at the first row that is there; one that is gone is forgotten."""
    gone, new, whole = (SourcePartition("readings", number) for number in (2, 3, 4))
    clock = EventClock()
    for partition in (A, B, gone):
        clock = _observe(clock, partition, 1000, now_ms=0, behind=2)
    found = clock.passed_over({A: 9, B: 2, new: 4, whole: 0}, now_ms=50)
    assert found.partitions == {
        A: replace(clock.partitions[A], position=9, high_watermark=9),
        B: clock.partitions[B],
        new: PartitionClock(None, 50, position=4, high_watermark=4, silent_end=4),
        whole: PartitionClock(None, 50, position=0, high_watermark=0),
    }
    assert found.frontier_ms == clock.frontier_ms


def test_clock_tells_when_a_partition_will_be_idle_and_that_none_was_overruled() -> None:
    """The time-out after its last event, also of one that is idle already."""
    clock = _observe(_observe(EventClock(), A, 400, now_ms=3), B, 1000, now_ms=50)
    clock = _advance(clock, IDLE_MS)
    assert [clock.partitions[p].idle_at_ms for p in (A, B)] == [3 + IDLE_MS, 50 + IDLE_MS]
    assert [clock.partitions[p].was_overruled for p in (A, B)] == [False, False]


def test_each_partition_may_have_a_delay_of_its_own() -> None:
    """The one whose time less its delay is smallest decides."""
    clock = _observe(_observe(EventClock(), A, 1000, now_ms=0), B, 900, now_ms=0)
    clock = clock.advance(now_ms=0, delay_ms={A: 300, B: 10}, idle_timeout_ms=IDLE_MS)
    assert clock.frontier_ms == 700
    assert [clock.partitions[p].delay_ms for p in (A, B)] == [300, 10]


def test_partition_that_gave_nothing_is_idle_only_by_silence_unless_the_run_is_bounded() -> None:
    clock = _observe(EventClock(), A, None, now_ms=0)
    assert clock.idle(idle_timeout_ms=IDLE_MS) == frozenset()
    assert clock.idle(idle_timeout_ms=IDLE_MS, is_bounded=True) == {A}


def test_document_of_another_format_is_refused_by_its_number() -> None:
    """The user is told which is found, and which is read."""
    with pytest.raises(StateFormatError) as refused:
        load(EventClock, {"format": 77})
    assert str(refused.value) == "clock of format 77, this version reads 2"
