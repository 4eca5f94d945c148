"""What a job does whose checkpoint is not as it left it.

On Spark tests/spark/test_checkpoint.py shows it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import TopologyBuilder
from sequitur.errors import CheckpointError, TopologyFileError
from tests.spark import bolts
from tests.support.deaths import dying_before
from tests.support.events import T0, event, time_of

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import Topology
    from tests.support.list_job import ListJob


@pytest.mark.promise("order-file-rows-held")
def test_file_of_held_rows_that_is_lost_is_refused_at_the_start(
    job: ListJob, tmp_path: Path
) -> None:
    """Also while another run is half out, so that counts alone would not tell."""
    for life in range(2):
        job.produce([event(T0 + 700 * life + 100 * n, partition=n % 4) for n in range(20)])
        job.run()
    lost = min(job.folder.glob("runs/*/*.parquet"))
    aside = shutil.move(lost, tmp_path / lost.name)
    with pytest.raises(CheckpointError, match=rf"{lost.name}, with \d+ rows .* is gone"):
        job.run()
    shutil.move(aside, lost)
    report = job.run(drain=True)
    assert report.totals.read == report.totals.released + report.totals.late == 40


@pytest.mark.promise("order-marks-gone-newest")
def test_step_whose_done_mark_is_lost_is_finished_again(job: ListJob) -> None:
    """Spark has committed its batch and will not repeat it; what is out is left out."""
    job.produce([event(T0 + 100 * n, partition=n % 4) for n in range(20)])
    out = job.run().totals.released
    assert 0 < out < 20
    done = sorted(job.folder.glob("done/0*"))
    done[-1].unlink()
    report = job.run(drain=True)
    assert (report.totals.read, report.totals.released, report.totals.held) == (20, 20, 0)
    assert sorted(map(time_of, job.released())) == [T0 + 100 * n for n in range(20)]
    assert "has no done mark" in job.told[-1]


@pytest.mark.promise("process-bolt-keeps-state")
def test_state_of_a_step_that_is_processed_and_not_done_is_checked(job: ListJob) -> None:
    """The parallelism of a bolt that keeps state has to stay, however the job has died."""
    job = job.with_settings(delay="0 s")
    job.produce([event(T0, key="k", partition=p) for p in range(4)])
    with dying_before("plans/"):
        job.running_topology(bolts.one_bolt(bolts.Forgetful(), tasks=2)).run()
    other = job.running_topology(bolts.one_bolt(bolts.Forgetful(), tasks=3))
    with pytest.raises(TopologyFileError, match="2 tasks of bolt 'only', which has 3"):
        other.run()


@pytest.mark.promise("process-output-added-topology")
def test_an_output_may_be_added_while_a_step_is_processed_and_not_done(
    job: ListJob,
) -> None:
    """Nothing of that step goes there. One that is taken away is asked back, until it is done."""

    def topology(*topics: str) -> Topology:
        builder = TopologyBuilder("outputs")
        builder.set_spout("events")
        for number, topic in enumerate(topics):
            builder.set_output(f"out {number}", topic).local_grouping("events")
        return builder.build()

    first, second = "first", "second"
    job = job.with_settings(delay="0 s")
    job.produce([event(T0, key="k", partition=p) for p in range(4)])
    with dying_before("plans/"):
        job.running_topology(topology(first)).run()
    with pytest.raises(TopologyFileError, match=f"{first!r}, but no output writes to it now"):
        job.running_topology(topology(second)).run()
    both = job.running_topology(topology(first, second))
    both.run(drain=True)
    assert [len(job.tester.records(topic)) for topic in (first, second)] == [4, 0]
