"""A learned delay; on Spark tests/spark/test_reorder_delay.py shows that it survives a restart."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.reorder.reasons import LATE_BY_HEADER
from tests.support.events import T0, Event, event, time_of

if TYPE_CHECKING:
    from tests.support.list_job import ListJob


_AUTO = {
    "delay": "auto",
    "late_target": 0.01,
    "delay_min": "50 ms",
    "delay_max": "20 s",
    "delay_half_life": "5 s",
}


def _disordered(*ways_ms: int, each: int, seed: int = 1) -> list[Event]:
    """Events 10 ms apart, `each` of them with a way of up to so long, in the order they arrive."""
    rng = random.Random(seed)
    arrivals: list[tuple[int, int]] = []
    for number, way_ms in enumerate(ways_ms):
        times = range(T0 + 10 * each * number, T0 + 10 * each * (number + 1), 10)
        arrivals += [(time_ms + rng.randrange(way_ms), time_ms) for time_ms in times]
    arrivals.sort()
    return [
        event(time_ms, partition=place % 2, n=time_ms)
        for place, (_, time_ms) in enumerate(arrivals)
    ]


@pytest.mark.promise("order-events-take-longer")
def test_learned_delay_follows_the_disorder_and_keeps_its_promise(job: ListJob) -> None:
    """It shrinks from the longest to what the rows need, grows with them, and few rows are late."""
    job = job.with_settings(**_AUTO)
    events = _disordered(200, 2000, each=2000)
    steps = []
    for start in range(0, 4000, 400):
        job.produce(events[start : start + 400])
        job.run()
        steps.append(job.steps[-1][0])
    delays = [max(clock.delay_ms for clock in entry.clock.partitions.values()) for entry in steps]
    assert len(delays) == 10
    # Nothing to be behind of yet; then what 1 % of the rows need; then with longer ways.
    assert delays[0] == 20_000
    assert 50 <= delays[4] <= 220
    assert 1000 <= delays[9] <= 2200
    frontiers = [entry.frontier_ms for entry in steps]
    assert sorted(frontiers) == frontiers
    report = job.run(drain=True)
    assert report.totals.read == report.totals.released + report.totals.late == 4000
    learned = job.steps[-1][0].learned
    assert learned is not None
    assert learned.late_target == 0.01
    rescued = sum(entry.rescued or 0 for entry, _ in job.steps)
    behind = sum(found.late for found in learned.partitions.values())
    assert behind == report.totals.late + rescued > 0
    released = [time_of(record) for record in job.released()]
    assert len(released) == report.totals.released
    assert all(record.header(LATE_BY_HEADER) for record in job.late())
