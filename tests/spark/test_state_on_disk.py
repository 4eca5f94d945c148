"""The job's state: plain Parquet and JSON, on a disk that may be full, or in an object store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pytest

from sequitur.consumer import FoldLimits
from sequitur.errors import CheckpointError, ReorderError
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.store.hadoop_folder import open_spark_folder, open_storage
from sequitur.pipelines.store.remote_path import ObjectPath
from sequitur.pipelines.store.storage import storage_at
from tests.spark.far_checkpoints import T0, hold_rows_for_a_later_life, take_dead_letters_back
from tests.support.events import Event, event, time_of
from tests.support.far_files import sizes_in
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.conftest import Job
    from tests.support.s3_server import S3Server

pytestmark = pytest.mark.spark


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def _two_steps(job: Job) -> None:
    """The first run is through and folded, the second holds four rows."""
    job.fold_limits = FoldLimits(runs=1)
    job.produce([event(T0 + t, key=k, partition=0) for k, t in (("a", 1), ("a", 3), ("b", 2))])
    job.run(drain=True)
    job.produce([event(T0 + 9000 + p, key="c", partition=p) for p in range(4)])
    job.run()


def test_pandas_reads_runs_and_keys(job: Job, tmp_path: Path) -> None:
    """As docs/reorder.md shows it: what is held, and how far each key has been released."""
    _two_steps(job)
    checkpoint = tmp_path / "checkpoint"
    for file in [*checkpoint.glob("runs/*/*.parquet"), *checkpoint.glob("keys/*/*.parquet")]:
        # What a task leaves that was given up counts for nothing.
        shutil.copy(file, file.with_name("part-of-a-task-given-up.parquet"))
    found = inspect_checkpoint(str(checkpoint)).as_json()

    def rows(folder: str, named: list[dict[str, Any]]) -> pd.DataFrame:
        files = [f"{folder}/{one['name']}/{file}" for one in named for file in one["files"]]
        return pd.concat(pd.read_parquet(f"{checkpoint}/{file}") for file in files)

    runs = rows("runs", found["runs"])
    held = runs[runs["event_time_ms"] > found["frontier_ms"]]
    assert sorted(held["event_time_ms"] - T0) == [9000, 9001, 9002, 9003]
    assert set(held["key"]) == {b"c"}
    last = rows("keys", found["folds"]).groupby("key")["event_time_ms"].max() - T0
    assert last.to_dict() == {b"a": 3, b"b": 2}


def test_duckdb_reads_runs_and_keys(job: Job, tmp_path: Path) -> None:
    """As docs/reorder.md shows it, in SQL; the log of steps, too."""
    _two_steps(job)
    checkpoint = tmp_path / "checkpoint"
    held = duckdb.execute(
        f"SELECT topic, partition, count(*), min(event_time_ms) - {T0}"
        f" FROM '{checkpoint}/runs/*/*.parquet' GROUP BY ALL ORDER BY ALL"
    )
    assert held.fetchall() == [(job.topic, p, 1, 9000 + p) for p in range(4)]
    keys = duckdb.execute(
        f"SELECT decode(key), max(event_time_ms) - {T0}"
        f" FROM '{checkpoint}/keys/*/*.parquet' GROUP BY key ORDER BY key"
    )
    assert keys.fetchall() == [("a", 3), ("b", 2)]
    log = duckdb.execute(
        f"SELECT step, kind, staged.read FROM read_json_auto('{checkpoint}/frontier/0*')"
        " ORDER BY step"
    )
    assert log.fetchall() == [(0, "batch", 3), (1, "drain", 0), (2, "batch", 4)]


def test_old_state_is_removed(job: Job, tmp_path: Path) -> None:
    """Runs go when they are folded, folds when merged or past their TTL, verdicts when used."""
    job.fold_limits = FoldLimits(runs=2)
    job = job.with_settings(key_ttl="20 s", late_policy="drop")
    checkpoint = tmp_path / "checkpoint"
    for life in range(7):
        start = T0 + 3000 * life
        job.produce([event(start + p, key=f"k{p}", partition=p) for p in range(4)])
        job.produce([event(start - 2500, key=f"k{life % 4}")])
        job.run()
        # One that is held, one that waits to be folded.
        assert len(_names(checkpoint / "runs")) <= 3
        assert len(_names(checkpoint / "keys")) <= 1
        assert len(_names(checkpoint / "behind")) <= 1
    assert len(_names(checkpoint / "keys")) == 1
    job.produce([event(T0 + 60_000, key="new", partition=p) for p in range(4)])
    job.run()
    job.produce([event(T0 + 90_000, key="new", partition=p) for p in range(4)])
    job.run(drain=True)
    job.produce([event(T0 + 90_001, key="new", partition=p) for p in range(4)])
    job.run(drain=True)
    assert job.report is not None
    entry, _ = job.steps[-1]
    assert entry.keys is not None
    assert entry.keys.horizon_ms == T0 + 70_000
    for run in (checkpoint / "keys").iterdir():
        assert set(pd.read_parquet(run)["key"]) <= {b"new"}


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


@pytest.mark.promise("order-batch-fit-checkpoint")
def test_batch_that_does_not_fit_leaves_nothing_on_a_full_disk(job: Job, small_disk: Path) -> None:
    """The job ends and says so, again and again; once there is room, it goes on."""
    folder = small_disk / "checkpoint"
    job = job.with_settings(checkpoint=str(folder), max_offsets_per_trigger=4_000, delay="1 h")
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
