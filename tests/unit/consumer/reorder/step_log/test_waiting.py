"""What the frontier waits for, and what it does not wait for when a run is bounded."""

from __future__ import annotations

import time

import pytest

from sequitur.base.stored import dump, load
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.awaited import Awaited, awaited, utc_text
from sequitur.consumer.reorder.clock import EventClock, Look
from sequitur.kafka.partition import SourcePartition

IDLE_MS = 30_000
DELAY_MS = 1_000
_T0 = 1_700_000_000_000
A, B, C = (SourcePartition("cpu", number) for number in (0, 1, 3))


def _clock(
    *, is_bounded: bool = False, now_ms: int = 9_000, **seen: tuple[int | None, int]
) -> EventClock:
    """A clock of partitions: what each gave at 0 ms, and how many records are to be read of it."""
    clock = EventClock()
    for name, (time_ms, to_read) in seen.items():
        where, first = {"a": A, "b": B, "c": C}[name], Look(5, 5 + to_read)
        for look, at_ms in ((first._replace(max_event_time_ms=time_ms), 0), (first, now_ms)):
            clock = clock.looked_at({where: look}, now_ms=at_ms, longest_ms=IDLE_MS)
    return clock.advance(
        now_ms=now_ms, delay_ms=DELAY_MS, idle_timeout_ms=IDLE_MS, is_bounded=is_bounded
    )


@pytest.mark.promise("order-nothing-released")
@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        (_clock(a=(_T0, 0), c=(None, 0)), ["partition 3 of 'cpu' has given nothing, idle in 21 s"]),
        (
            _clock(a=(_T0, 0), b=(None, 1_200), c=(None, 0)),
            [
                "partition 1 of 'cpu' has given nothing, 1,200 to read",
                "partition 3 of 'cpu' has given nothing, idle in 21 s",
            ],
        ),
        (
            _clock(a=(_T0 + 5_000, 0), b=(_T0, 0)),
            ["partition 1 of 'cpu' stands at 2023-11-14 22:13:20Z, idle in 21 s"],
        ),
        (
            _clock(a=(_T0 + 5_000, 0), b=(_T0, 7)),
            ["partition 1 of 'cpu' stands at 2023-11-14 22:13:20Z, 7 to read"],
        ),
        (_clock(a=(_T0, 0), c=(None, 0), now_ms=IDLE_MS), []),
        (EventClock(), []),
    ],
)
def test_who_holds_the_frontier_is_named(clock: EventClock, expected: list[str]) -> None:
    """Those that have given nothing, else the one that is furthest behind; and until when."""
    assert [one.text(9_000) for one in awaited(clock)] == expected
    read_back = load(EventClock, dump(clock))
    assert awaited(read_back) == awaited(clock)


@pytest.mark.parametrize(
    ("time_ms", "expected"),
    [
        (None, "partition 0 of 'cpu' has given nothing"),
        (_T0, "partition 0 of 'cpu' stands at 2023-11-14 22:13:20Z"),
        (10**15, "partition 0 of 'cpu' stands at 1,000,000,000,000,000 ms"),
    ],
)
def test_what_is_not_known_is_not_said(time_ms: int | None, expected: str) -> None:
    """Neither when it goes idle, nor a date that no calendar has."""
    assert Awaited(A, time_ms, 0, idle_at_ms=None).text(9_000) == expected


def test_the_partition_with_the_longest_delay_may_hold_the_frontier() -> None:
    """It has given newer events than the other, which are waited for longer."""
    clock = _clock(a=(_T0 + 5_000, 0), b=(_T0, 0)).advance(
        now_ms=9_000, delay_ms={A: 7_000, B: DELAY_MS}, idle_timeout_ms=IDLE_MS
    )
    assert [one.partition for one in awaited(clock)] == [A]


def test_times_are_told_in_utc_wherever_the_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "UTC-9")
        time.tzset()
        told = utc_text(_T0)
    time.tzset()
    assert told == "2023-11-14 22:13:20Z"


def test_partition_that_was_overruled_holds_nothing() -> None:
    """Where too much is held for the sake of one, the next that is waited for is named."""
    clock = _clock(a=(_T0 + 5_000, 0), b=(_T0, 0)).advance(
        now_ms=9_000,
        delay_ms=DELAY_MS,
        idle_timeout_ms=IDLE_MS,
        least_ms=_T0 + 1,
    )
    assert [one.partition for one in awaited(clock)] == [A]


@pytest.mark.promise("order-nothing-released")
def test_empty_partitions_hold_nothing_back_in_a_bounded_run() -> None:
    """Nothing can come of them in that run; without a bound they are waited for."""
    for clock, reached in (
        (_clock(a=(_T0, 0), c=(None, 0)), BEFORE_ALL_TIME_MS),
        (_clock(a=(_T0, 0), c=(None, 0), is_bounded=True), _T0 - DELAY_MS),
        # Not read yet: its rows may be of any time.
        (_clock(a=(_T0, 0), c=(None, 1), is_bounded=True), BEFORE_ALL_TIME_MS),
        # One that has given something may give more in the next run, and would be late then.
        (_clock(a=(_T0 + 9_000, 0), b=(_T0, 0), is_bounded=True), _T0 - DELAY_MS),
        (_clock(a=(None, 0), c=(None, 0), is_bounded=True), BEFORE_ALL_TIME_MS),
    ):
        assert clock.frontier_ms == reached
