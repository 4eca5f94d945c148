"""Small cases with a known answer, through the whole job: ties, lone keys and broken clocks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer import LATE, REASON_HEADER, TOO_FAR_FUTURE
from tests.support.events import event, time_of

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
_HOUR_MS = 3_600_000


@pytest.fixture
def one(job: Job) -> Job:
    """The job with all output in one partition, and no rescue: its order is that of everything."""
    return job.with_settings(output_partitions=1, rescue=False)


def test_equal_times_across_keys_come_out_by_source(one: Job) -> None:
    """Rows of one moment keep their source's order, whatever their keys; none replaces another."""
    events = [event(T0 + n // 8, key=f"k{n % 5}", partition=n % 4, n=n) for n in range(40)]
    one.produce(events)
    report = one.run(drain=True)
    assert report.totals.released == 40
    order = sorted(range(40), key=lambda n: (T0 + n // 8, n % 4, n))
    assert [events[n].value for n in order] == [record.value for record in one.released()]


def test_single_event_key_comes_out_in_its_place(one: Job) -> None:
    """A key with one event is neither forgotten nor first nor last: it is where its time is."""
    one.produce([event(T0 + 10 * n, key="busy", partition=0) for n in range(100)])
    one.produce([event(T0 + 505, key="lone", partition=1)])
    one.run(drain=True)
    released = one.released()
    assert [record.key for record in released].index(b"lone") == 51
    assert sorted(time_of(record) for record in released) == [time_of(r) for r in released]


def test_far_future_row_moves_no_clock(one: Job) -> None:
    """One clock in the far future goes aside alone: nothing after it is late, nothing early."""
    one.produce([event(T0 + n, partition=n % 4) for n in range(100)])
    one.produce([event(int(time.time() * 1000) + _HOUR_MS, key="wrong", partition=0)])
    first = one.run()
    assert first.frontier_ms == T0 + 96 - 1000
    one.produce([event(T0 + 100 + n, partition=n % 4) for n in range(100)])
    report = one.run(drain=True)
    assert (report.totals.released, report.totals.late) == (200, 0)
    (aside,) = one.quarantined()
    assert (aside.key, aside.header(REASON_HEADER)) == (b"wrong", TOO_FAR_FUTURE.encode())


@pytest.mark.parametrize("rescue", [True, False])
def test_key_with_a_clock_an_hour_slow(one: Job, rescue: bool) -> None:
    """Its rows keep their own order under rescue, else are late; no other key is held up by it."""
    one = one.with_settings(rescue=rescue, max_offsets_per_trigger=100)
    times = [T0 + 100 * n for n in range(100)]
    for part in range(4):
        rows = times[25 * part : 25 * (part + 1)]
        one.produce([event(t, key="right", partition=n % 4) for n, t in enumerate(rows)])
        one.produce([event(t - _HOUR_MS, key="slow", partition=0) for t in rows])
        one.run()
    report = one.run(drain=True)
    released = one.released()
    right = [time_of(record) for record in released if record.key == b"right"]
    slow = [time_of(record) for record in released if record.key == b"slow"]
    assert times == right
    # Those of the first batch were there before the frontier was.
    assert slow == [t - _HOUR_MS for t in (times if rescue else times[:25])]
    late = one.late()
    assert report.totals.late == len(late) == (0 if rescue else 75)
    assert {record.key for record in late} <= {b"slow"}
    assert {record.header(REASON_HEADER) for record in late} <= {LATE.encode()}


def test_partitions_read_at_very_different_speeds_are_not_late(one: Job) -> None:
    """A backlog of 1,200 rows beside ones of a few: a merged reader would call none late."""
    one = one.with_settings(max_offsets_per_trigger=120)
    one.produce([event(T0 + 10 * n, partition=0) for n in range(1200)])
    one.produce([event(T0 + 1000 * n, partition=1) for n in range(12)])
    one.produce([event(T0 + 12_000, partition=p) for p in (2, 3)])
    report = one.run(drain=True)
    assert (report.totals.released, report.totals.late) == (1214, 0)
    times = [time_of(record) for record in one.released()]
    assert sorted(times) == times
    assert len(one.steps) > 8
