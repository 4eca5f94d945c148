"""The bound on what is held, and the partitions that are overruled for it."""

from __future__ import annotations

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.sorted_run import Run, least_frontier_ms
from sequitur.kafka.partition import SourcePartition

_AT = {SourcePartition("t", number): at for number, at in enumerate((10, 500, 900, 1000))}


def _clock() -> EventClock:
    clock = EventClock()
    for where, at in _AT.items():
        clock = clock.observe(where, max_event_time_ms=at, position=1, high_watermark=2, now_ms=0)
    return clock


def _advanced(limit: int) -> tuple[int, list[int]]:
    runs = [
        Run(number, rows=1, min_event_time_ms=10, max_event_time_ms=at, size_bytes=100)
        for number, at in enumerate((10, 500, 900, 1000))
    ]
    after = _clock().advance(
        now_ms=0,
        delay_ms=0,
        idle_timeout_ms=10**9,
        least_ms=least_frontier_ms(runs, limit),
    )
    overruled = [where.partition for where, one in after.partitions.items() if one.was_overruled]
    return after.frontier_ms, overruled


@pytest.mark.promise("order-partition-far-behind")
def test_as_few_are_overruled_as_can_be() -> None:
    """Those furthest behind, until what is held behind the frontier is within the bound."""
    assert _advanced(300) == (10, [])
    assert _advanced(299) == (500, [0])
    assert _advanced(100) == (900, [0, 1])
    assert _advanced(99) == (1000, [0, 1, 2])


@pytest.mark.promise("order-partition-far-behind")
def test_frontier_goes_no_further_than_it_has_to() -> None:
    """A delay too large makes nothing late that is not older than what does not fit."""
    clock = EventClock()
    for number, at in enumerate((9_990, 10_000)):
        where = SourcePartition("t", number)
        clock = clock.observe(where, max_event_time_ms=at, position=1, high_watermark=2, now_ms=0)
    runs = [Run(n, 1, 1_000 * n - 5, 1_000 * n, size_bytes=100) for n in range(1, 11)]
    assert [least_frontier_ms(runs, limit) for limit in (1000, 999, 250, 99, 0)] == [
        -1, 1_000, 8_000, 10_000, 10_000
    ]  # fmt: skip
    least_ms = least_frontier_ms(runs, 250)
    held = clock.advance(now_ms=0, delay_ms=5_000, idle_timeout_ms=10**9, least_ms=least_ms)
    assert held.frontier_ms == 8_000
    assert all(one.was_overruled for one in held.partitions.values())
    # What a delay allows is not taken back for it.
    held = clock.advance(now_ms=0, delay_ms=1_000, idle_timeout_ms=10**9, least_ms=least_ms)
    assert held.frontier_ms == 8_990
    assert not any(one.was_overruled for one in held.partitions.values())


def test_run_that_is_out_holds_nothing() -> None:
    """And one with a row left all of its bytes: it stays on disk as a whole."""
    run = Run(0, rows=5, min_event_time_ms=100, max_event_time_ms=199, size_bytes=1000)
    assert [run.held_bytes(at) for at in (-1, 198, 199)] == [1000, 1000, 0]


@pytest.mark.promise("order-partition-far-behind")
def test_overruled_partition_is_heard_again() -> None:
    """Once what is held fits, it holds the frontier as any other; the clock remembers both."""
    held = _clock().advance(now_ms=0, delay_ms=0, idle_timeout_ms=10**9, least_ms=1000)
    assert held.frontier_ms == 1000
    assert [one.was_overruled for one in held.partitions.values()] == [True, True, True, False]
    assert load(EventClock, dump(held)) == held
    again = held.advance(now_ms=0, delay_ms=0, idle_timeout_ms=10**9)
    assert not any(one.was_overruled for one in again.partitions.values())
    assert again.frontier_ms == 1000
