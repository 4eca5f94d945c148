"""The reorder job with a learned delay, on real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.events import T0, event

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = [pytest.mark.spark, pytest.mark.test_all]

_AUTO = {
    "delay": "auto",
    "late_target": 0.01,
    "delay_min": "50 ms",
    "delay_max": "20 s",
    "delay_half_life": "5 s",
}


@pytest.mark.promise("order-events-take-longer")
def test_learned_delay_survives_a_restart(job: Job) -> None:
    """The next life begins with what this one learned, also when a fixed delay came between."""
    job = job.with_settings(**_AUTO)
    for start in range(0, 2000, 1000):
        times = range(T0 + 10 * start, T0 + 10 * start + 10_000, 10)
        job.produce([event(at ^ 128, partition=n % 2, n=n) for n, at in enumerate(times)])
        job.run()
    entry = job.steps[-1][0]
    assert entry.learned is not None
    job.produce([event(T0 + 20_000, partition=p) for p in range(2)])
    again = job.with_settings(delay="1 s")
    assert "late_target" not in again.run().as_json()
    assert again.steps[-1][0].learned == entry.learned.set_aside()
    job.produce([event(T0 + 20_010, partition=p) for p in range(2)])
    later = job.with_settings(**_AUTO)
    assert later.run().as_json()["late_target"] == 0.01
    learned = later.steps[-1][0].learned
    assert learned is not None
    assert learned.together.seen == entry.learned.together.seen + 2
    assert job.late() == []
