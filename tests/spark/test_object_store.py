"""A job whose checkpoint is in an object store: as one on a path, but for where its state is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import CheckpointError
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.store.hadoop_folder import open_spark_folder, open_storage
from sequitur.pipelines.store.object_path import ObjectPath
from sequitur.pipelines.store.storage import storage_at
from tests.spark.far_checkpoints import T0, hold_rows_for_a_later_life, take_dead_letters_back
from tests.support.events import event, time_of
from tests.support.far_files import sizes_in
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    from tests.spark.conftest import Job
    from tests.support.s3_server import S3Server

pytestmark = pytest.mark.spark


@pytest.fixture
def far(job: Job, s3_folder: str) -> Job:
    return job.with_settings(checkpoint=f"{s3_folder}/job")


@pytest.fixture
def _environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs without a session know of the server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.mark.promise("order-checkpoint-object-store")
@pytest.mark.usefixtures("_environment")
def test_rows_held_on_s3_go_out_in_later_lives(far: Job, s3_server: S3Server) -> None:
    """In order, and are shown until then, though requests are refused, and answers lost."""
    hold_rows_for_a_later_life(far, s3_server)


def test_store_that_spark_has_no_jars_for_is_named(far: Job) -> None:
    job = far.with_settings(checkpoint="gs://bucket/job")
    with pytest.raises(CheckpointError, match=r"gs://bucket/job: Spark, .* jars for that store"):
        job.run()


@pytest.mark.promise("order-checkpoint-object-store")
@pytest.mark.usefixtures("_environment")
def test_topology_runs_on_s3_and_takes_its_dead_letters_back(far: Job, s3_server: S3Server) -> None:
    """Its states, events that wait, and requests to replay are there, too."""
    take_dead_letters_back(far, s3_server)


@pytest.mark.promise("order-checkpoint-object-store")
@pytest.mark.usefixtures("_environment")
def test_checkpoint_on_s3_can_be_looked_into_and_moved(far: Job, s3_folder: str) -> None:
    """By its copy, object for object, the next life goes on: nothing in it says where it is."""
    far.produce([event(T0 + 10 * n, key=f"k{n}", partition=n % 4) for n in range(400)])
    held = far.run().totals.held
    assert held > 0
    found = inspect_checkpoint(far.settings.checkpoint)
    assert sum(run.held for run in found.runs) == held
    moved = far.with_settings(checkpoint=f"{s3_folder}/moved")
    old, new = (storage_at(job.settings.checkpoint).location("") for job in (far, moved))
    assert isinstance(old, ObjectPath)
    assert isinstance(new, ObjectPath)
    for key in sizes_in(old):
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
