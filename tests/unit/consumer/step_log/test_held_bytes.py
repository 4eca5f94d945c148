"""The bound on what is held, and the partitions that are overruled for it."""

from __future__ import annotations

from sequitur.consumer import EventClock, Run, SourcePartition

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
        fits=lambda frontier_ms: sum(run.held_bytes(frontier_ms) for run in runs) <= limit,
    )
    overruled = [where.partition for where, one in after.partitions.items() if one.was_overruled]
    return after.frontier_ms, overruled


def test_as_few_are_overruled_as_can_be() -> None:
    """Those furthest behind, until what is held behind the frontier is within the bound."""
    assert _advanced(300) == (10, [])
    assert _advanced(299) == (500, [0])
    assert _advanced(100) == (900, [0, 1])
    assert _advanced(99) == (1000, [0, 1, 2])


def test_run_that_is_out_holds_nothing() -> None:
    """And one with a row left all of its bytes: it stays on disk as a whole."""
    run = Run(0, rows=5, min_event_time_ms=100, max_event_time_ms=199, size_bytes=1000)
    assert [run.held_bytes(at) for at in (-1, 198, 199)] == [1000, 1000, 0]


def test_overruled_partition_is_heard_again() -> None:
    """Once what is held fits, it holds the frontier as any other; the clock remembers both."""
    held = _clock().advance(now_ms=0, delay_ms=0, idle_timeout_ms=10**9, fits=lambda _: False)
    assert held.frontier_ms == 1000
    assert all(one.was_overruled for one in held.partitions.values())
    assert EventClock.from_document(held.to_document()) == held
    again = held.advance(now_ms=0, delay_ms=0, idle_timeout_ms=10**9)
    assert not any(one.was_overruled for one in again.partitions.values())
    assert again.frontier_ms == 1000
