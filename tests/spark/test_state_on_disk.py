"""The job's state: plain Parquet and JSON, on a disk that may be full, or in an object store."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import CheckpointError, ReorderError
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.store.hadoop_folder import open_spark_folder, open_storage
from sequitur.pipelines.store.object_path import ObjectPath
from sequitur.pipelines.store.storage import storage_at
from tests.spark.far_checkpoints import hold_rows_for_a_later_life, take_dead_letters_back
from tests.support.broker_job import BOTH_WAYS
from tests.support.events import T0, Event, event, time_of
from tests.support.far_files import sizes_in
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.conftest import Job
    from tests.support.s3_server import S3Server

pytestmark = pytest.mark.spark


_ROWS = 12_000


def _mount(*words: str) -> None:
    mounting = subprocess.run(["mount", *words], check=False, capture_output=True, text=True)
    if mounting.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounting.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    _mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.test_all
@pytest.mark.promise("order-batch-fit-checkpoint")
@BOTH_WAYS
def test_batch_that_does_not_fit_leaves_nothing_on_a_full_disk(
    job: Job, small_disk: Path, way: dict[str, int]
) -> None:
    """The job ends and says so, again and again; once there is room, it goes on."""
    folder = small_disk / "checkpoint"
    job = job.with_settings(
        checkpoint=str(folder), max_offsets_per_trigger=4_000, delay="1 h", **way
    )
    job.produce(
        Event(
            value=json.dumps({"at": T0 + n, "n": n, "more": "x" * 1000}).encode(),
            key=b"%d" % (n % 9),
            partition=n % 4,
        )
        for n in range(_ROWS)
    )
    for _ in range(2):
        with pytest.raises(ReorderError, match="No space left on device"):
            job.run()
        runs = [
            json.loads(path.read_text())["run"]["name"] for path in (folder / "staged").iterdir()
        ]
        assert sorted(runs) == sorted(path.name for path in (folder / "runs").iterdir())
    _mount("-o", "remount,size=64m", str(small_disk))
    report = job.run(drain=True)
    assert report.totals.read == report.totals.released == _ROWS
    numbers = [json.loads(record.value or b"")["n"] for record in job.released()]
    assert sorted(numbers) == list(range(_ROWS))


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
@BOTH_WAYS
def test_rows_held_on_s3_go_out_in_later_lives(
    far: Job, s3_server: S3Server, way: dict[str, int]
) -> None:
    """In order, and are shown until then, though requests are refused, and answers lost."""
    hold_rows_for_a_later_life(far.with_settings(**way), s3_server)


@pytest.mark.test_all
def test_store_that_spark_has_no_jars_for_is_named(far: Job) -> None:
    job = far.with_settings(checkpoint="gs://bucket/job")
    with pytest.raises(CheckpointError, match=r"gs://bucket/job: Spark, .* jars for that store"):
        job.run()


@pytest.mark.test_all
@pytest.mark.promise("order-checkpoint-object-store")
@pytest.mark.usefixtures("_environment")
def test_topology_runs_on_s3_and_takes_its_dead_letters_back(far: Job, s3_server: S3Server) -> None:
    """Its states, events that wait, and requests to replay are there, too."""
    take_dead_letters_back(far, s3_server)


@pytest.mark.test_all
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
