"""A topology behind the reorder stage, as long as nothing dies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.spark import bolts
from tests.support.events import T0, by_partition, event, time_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.topology import Topology
    from tests.support.broker_job import BrokerJob

_BOTH = pytest.mark.parametrize("make", [bolts.chain, bolts.spread])
_SPREAD = pytest.mark.parametrize(
    "make", [pytest.param(bolts.chain, marks=pytest.mark.test_all), bolts.spread]
)


def _balanced(job: BrokerJob) -> dict[str, int]:
    """Counts of the events, of which none is unaccounted for."""
    counts = job.processed()
    assert counts["taken"] + counts["replayed"] == (
        counts["acked"] + counts["dead"] + counts["pending"]
    )
    return counts


@pytest.mark.promise("process-event-fails-later")
@_BOTH
def test_each_event_is_processed_once_in_order(
    job: BrokerJob, make: Callable[[], Topology]
) -> None:
    """Events shuffled on the way in come out of the bolts once, each key's in event-time order."""
    job = job.running_topology(make())
    times = [T0 + (7 * number) % 1000 for number in range(1000)]
    job.produce(event(time_ms, key=f"k{time_ms % 13}") for time_ms in times)
    job.run(drain=True)
    found = job.released()
    assert sorted(map(time_of, found)) == sorted(times)
    for records in by_partition(found).values():
        ordered = [time_of(record) for record in records]
        assert ordered == sorted(ordered)
    assert _balanced(job)["acked"] == 1000
    assert {json.loads(record.value or b"")["attempt"] for record in found} == {1}


@pytest.mark.promise("process-events-wait")
@_SPREAD
def test_no_new_events_are_read_while_too_many_wait(
    job: BrokerJob, make: Callable[[], Topology]
) -> None:
    """With max_pending events waiting, these are settled before the next batch is begun."""
    job = job.with_settings(max_offsets_per_trigger=10).running_topology(
        make(), max_pending=2, retry_delay="200 ms", max_attempts=3
    )
    job.produce([event(T0 + n, key="k", partition=0, fails=9 if n < 2 else 0) for n in range(6)])
    job.produce([event(T0 + 100_000 + n, key="k", partition=0) for n in range(40)])
    job.run(drain=True)
    assert _balanced(job)["dead"] == 2
    assert len(job.released()) == 44
    waits = [(done.processed or {})["pending"] for entry, done in job.steps if entry.counts.read]
    assert max(waits) <= 2 + 10
