"""A transactional topology on a real broker, with a database."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.spark import transactional_bolts as bolts
from tests.support.events import T0, event
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.broker_job import BrokerJob


def test_each_step_is_a_transaction(job: BrokerJob, tmp_path: Path) -> None:
    """Ids count from 1 over restarts; each batch is one write, and goes out once."""
    job = job.running_topology(bolts.global_count(tmp_path))
    for batch, events in enumerate((40, 2, 7), 1):
        job.produce(event(T0 + 10_000 * batch + n, key=f"k{n}") for n in range(events))
        job.run(drain=True)
    found = bolts.written(job)
    assert [one["number"] for one in found] == list(range(1, len(found) + 1))
    assert found[-1]["count"] == 49
    assert job.processed()["outputs"] == len(found)
    for earlier, later in itertools.pairwise(found):
        assert later["before"] == earlier["count"]
    assert bolts.count_in(tmp_path) == (49, found[-1]["before"], len(found))


@pytest.mark.promise("state-batch-keeps-failing")
def test_job_stops_while_a_batch_keeps_failing(job: BrokerJob, tmp_path: Path) -> None:
    """Between two tries; the next start goes on with the batch."""
    job = job.with_settings(idle_timeout="500 ms")
    job = job.running_topology(bolts.global_count(tmp_path), retry_maximum="100 ms")
    (tmp_path / "fails").touch()
    job.produce(event(T0 + n, key=f"k{n}") for n in range(30))
    with job.running():
        wait_until((tmp_path / "has-failed").exists)
    assert job.released() == []
    (tmp_path / "fails").unlink()
    job.run(drain=True)
    assert bolts.written(job)[-1]["count"] == 30
    assert bolts.count_in(tmp_path)[0] == 30
