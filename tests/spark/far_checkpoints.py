"""What a job does whose checkpoint is reached over the network alone, on S3 as in HDFS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.cli.dead_letters import Selection, request_rows
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.store.storage import files_in
from sequitur.pipelines.topology.replays import replays_folder, write_request
from tests.spark import bolts
from tests.support.events import T0, event, time_of

if TYPE_CHECKING:
    from tests.spark.conftest import Job
    from tests.support.hdfs_cluster import HdfsCluster
    from tests.support.s3_server import S3Server


def hold_rows_for_a_later_life(far: Job, server: S3Server | HdfsCluster) -> None:
    """Rows that a life holds are shown, and go out in order in the next, whatever is refused."""
    server.fault(refused=2, lost=1, of="/frontier/")
    far.produce([event(T0 + 10 * n, key=f"k{n}", partition=n % 4) for n in range(400)])
    first = far.run()
    assert 0 < first.totals.released < 400
    shown = inspect_checkpoint(far.settings.checkpoint)
    assert sum(run.held for run in shown.runs) == first.totals.held
    server.fault(lost=2, of="/done/")
    far.produce([event(T0 + 10 * n, key=f"k{n}", partition=n % 4) for n in range(400, 500)])
    report = far.run(drain=True)
    assert (report.totals.read, report.totals.released) == (500, 500)
    assert server.faults_left() == 0
    found = far.released()
    assert sorted(time_of(record) for record in found) == [T0 + 10 * n for n in range(500)]
    for partition in range(4):
        own = [time_of(record) for record in found if record.partition == partition]
        assert own == sorted(own)


def take_dead_letters_back(far: Job, server: S3Server | HdfsCluster) -> None:
    """A topology's dead letter is requested again, taken in once, and acked."""
    job = far.running_topology(bolts.spread(), max_attempts=2)
    job.produce([event(T0 + n, key="k", **({"fails": 9} if n == 1 else {})) for n in range(20)])
    server.fault(refused=2, lost=2, of="/topology/")
    job.run(drain=True)
    counts = job.processed()
    assert (counts["taken"], counts["acked"], counts["dead"], counts["pending"]) == (20, 19, 1, 0)
    folder = replays_folder(job.settings)
    write_request(folder, request_rows(list(Selection().of(job.dead_letters()))))
    later = job.running_topology(bolts.forgiving(bolts.spread), max_attempts=1)
    later.run(drain=True)
    assert later.processed()["replayed"] == 1
    assert sorted(time_of(record) - T0 for record in later.released()) == [*range(20)]
    # The request goes once a step behind it begins, and is not taken in again.
    later.produce([event(T0 + 30)])
    later.run(drain=True)
    assert later.processed()["replayed"] == 1
    assert files_in(folder) == []
