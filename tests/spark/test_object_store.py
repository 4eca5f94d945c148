"""A job whose checkpoint is in an object store: as one on a path, but for where its state is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur._dead_letters import Selection, request_rows
from sequitur.pipelines._errors import CheckpointError
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.store.files import files_in
from sequitur.pipelines.store.object_path import ObjectPath
from sequitur.pipelines.store.storage import location_of, open_spark_folder, open_storage
from sequitur.pipelines.topology.replay_requests import replays_folder, write_request
from tests.spark import bolts
from tests.spark.conftest import event, time_of
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    from tests.spark.conftest import Job
    from tests.support.s3_server import S3Server

pytestmark = pytest.mark.spark
T0 = 1_700_000_000_000


@pytest.fixture
def far(job: Job, s3_folder: str) -> Job:
    """The job with its checkpoint on S3."""
    return job.with_settings(checkpoint=f"{s3_folder}/job")


def test_rows_held_on_s3_go_out_in_later_lives(far: Job, s3_server: S3Server) -> None:
    """In order, though the server refuses requests, and loses answers to some."""
    s3_server.fault(refused=2, of="/frontier/")
    far.produce([event(T0 + 10 * n, key=f"k{n}", partition=n % 4) for n in range(400)])
    first = far.run()
    assert 0 < first.totals.released < 400
    s3_server.fault(lost=2, of="/done/")
    far.produce([event(T0 + 10 * n, key=f"k{n}", partition=n % 4) for n in range(400, 500)])
    report = far.run(drain=True)
    assert (report.totals.read, report.totals.released) == (500, 500)
    assert s3_server.faults_left() == 0
    found = far.released()
    assert sorted(time_of(record) for record in found) == [T0 + 10 * n for n in range(500)]
    for partition in range(4):
        own = [time_of(record) for record in found if record.partition == partition]
        assert own == sorted(own)


def test_store_that_spark_has_no_jars_for_is_named(far: Job) -> None:
    """Before anything is written, in a sentence."""
    job = far.with_settings(checkpoint="gs://bucket/job")
    with pytest.raises(CheckpointError, match=r"gs://bucket/job: Spark, .* jars for that store"):
        job.run()


@pytest.fixture
def _environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs without a session know of the server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.mark.usefixtures("_environment")
def test_topology_runs_on_s3_and_takes_its_dead_letters_back(far: Job, s3_server: S3Server) -> None:
    """Its states, events that wait, and requests to replay are there, too."""
    job = far.running_topology(bolts.spread(), max_attempts=2)
    job.produce([event(T0 + n, key="k", **({"fails": 9} if n == 1 else {})) for n in range(20)])
    s3_server.fault(refused=3, of="/topology/")
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


@pytest.mark.usefixtures("_environment")
def test_checkpoint_on_s3_can_be_looked_into_and_moved(far: Job, s3_folder: str) -> None:
    """By its copy, object for object, the next life goes on: nothing in it says where it is."""
    far.produce([event(T0 + 10 * n, key=f"k{n}", partition=n % 4) for n in range(400)])
    held = far.run().totals.held
    assert held > 0
    found = inspect_checkpoint(far.settings.checkpoint)
    assert sum(run.held for run in found.runs) == held
    moved = far.with_settings(checkpoint=f"{s3_folder}/moved")
    old, new = (location_of(job.settings.checkpoint) for job in (far, moved))
    assert isinstance(old, ObjectPath)
    assert isinstance(new, ObjectPath)
    for key in old.sizes():
        one = ObjectPath(old.store, key)
        ObjectPath(old.store, new.key + key.removeprefix(old.key)).write_bytes(one.read_bytes())
        one.unlink()
    spark = far.spark
    old_part, new_part = (
        open_spark_folder(spark, open_storage(spark, job.settings.checkpoint))
        for job in (far, moved)
    )
    assert new_part.names("") == []
    jvm: Any = spark.sparkContext._jvm
    session: Any = spark._jsparkSession
    path = jvm.org.apache.hadoop.fs.Path(old_part.root)
    files = path.getFileSystem(session.sessionState().newHadoopConf())
    assert files.rename(path, jvm.org.apache.hadoop.fs.Path(new_part.root))
    report = moved.run(drain=True)
    assert (report.totals.read, report.totals.released) == (400, 400)
    assert sorted(time_of(r) for r in moved.released()) == [T0 + 10 * n for n in range(400)]
