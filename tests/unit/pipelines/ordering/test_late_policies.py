"""What becomes of late rows, by policy; on Spark tests/spark/test_late_rows.py shows the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.errors import LateRowError
from tests.support.events import event, time_of
from tests.support.list_job import ListJob, job

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.list_job import Written

__all__ = ["job"]

T0 = 1_700_000_000_000


def _times(records: Iterable[Written], key: str) -> list[int]:
    return [time_of(record) - T0 for record in records if record.key == key.encode()]


def _at_frontier_4000(job: ListJob) -> None:
    job.produce([event(T0 + t, key="a", partition=0) for t in (1000, 3000, 4500)])
    job.produce([event(T0 + 4000, key="c", partition=1)])
    job.produce([event(T0 + 5000, key="other", partition=p) for p in range(4)])
    report = job.run()
    assert report.frontier_ms == T0 + 4000
    assert _times(job.released(), "a") == [1000, 3000]


@pytest.mark.promise("order-key-silent-longer")
def test_rows_beyond_the_horizon_are_late_whatever_their_key(job: ListJob) -> None:
    """Older than the TTL, a row is late: its key may have been forgotten."""
    job = job.with_settings(key_ttl="2 s")
    _at_frontier_4000(job)
    job.produce([event(T0 + t, key="b", partition=2) for t in (1999, 2000)])
    job.run()
    assert _times(job.released(), "b") == [2000]
    assert _times(job.late(), "b") == [1999]


def test_rescue_that_is_switched_on_late_knows_nothing_of_the_past(job: ListJob) -> None:
    """What went out before is not known by key: older rows are late, as they were without."""
    _at_frontier_4000(job.with_settings(rescue=False))
    job.produce([event(T0 + 3500, key="b", partition=2)])
    assert job.run().totals.late == 1
    job.produce([event(T0 + 8000, key="other", partition=p) for p in range(4)])
    assert job.run().frontier_ms == T0 + 7000
    job.produce([event(T0 + 6999, key="b", partition=2)])
    assert job.run().totals.late == 1
    assert _times(job.released(), "b") == [6999]


@pytest.mark.promise("order-event-arrives-later-delay")
def test_dropped_late_rows_are_counted(job: ListJob) -> None:
    """Under drop a late row is in no topic, and in the report."""
    job = job.with_settings(late_policy="drop", rescue=False)
    _at_frontier_4000(job)
    job.produce([event(T0 + 3999, key="a", partition=2)])
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released, report.totals.late) == (9, 8, 1)
    assert len(job.released()) == 8
    assert job.late() == []


@pytest.mark.promise("order-event-arrives-later-delay")
def test_late_row_fails_the_job_if_that_is_wanted(job: ListJob) -> None:
    """The error names the row and how late it is; nothing of its step is out; it can go on."""
    strict = job.with_settings(late_policy="fail")
    _at_frontier_4000(strict)
    released = len(job.released())
    job.produce([event(T0 + 9000, key="a", partition=p) for p in range(4)])
    job.produce([event(T0 + 3999, key="c", partition=2)])
    message = (
        f"topic '{job.topic}', partition 2, offset 2, key b'c': event time {T0 + 3999} is "
        f"1 ms behind the frontier, {T0 + 4000}; late rows in this batch: 1"
    )
    for _ in range(2):
        with pytest.raises(LateRowError, match=message):
            strict.run()
    assert len(job.released()) == released
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released, report.totals.late) == (13, 12, 1)
