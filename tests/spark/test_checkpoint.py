"""What the job does when its checkpoint is not as it left it, or another process has it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AdminClient,
    NewTopic,
)

from sequitur.base.process import ProcessIdentity
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.errors import CheckpointError, OwnershipError
from sequitur.pipelines.ordering.runs import SortedRuns
from sequitur.pipelines.store.hadoop_folder import open_storage
from sequitur.pipelines.store.storage import LocalStorage, RemoteStorage
from tests.spark.checkpoint_places import may_be_taken
from tests.spark.submitted_job import SubmittedJob
from tests.support.deaths import DiedError, dying_before
from tests.support.events import T0, event, time_of
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from sequitur.pipelines.store.storage import Storage
    from tests.spark.conftest import HadoopFolder, Job

pytestmark = pytest.mark.spark


@contextlib.contextmanager
def _dying_before_its_query() -> Iterator[None]:
    def die(*_: object, **__: object) -> None:
        raise DiedError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sequitur.pipelines.ordering.spark_query.start_query", die)
        with pytest.raises(DiedError):
            yield


def _times(job: Job) -> list[int]:
    return sorted(time_of(record) - T0 for record in job.released())


def _folder(job: Job) -> Path:
    return Path(job.settings.checkpoint)


def _lose_all(spark: Path) -> None:
    shutil.rmtree(spark)


def _lose_newest(spark: Path) -> None:
    for folder in ("offsets", "commits"):
        newest = max(int(path.name) for path in (spark / folder).iterdir() if path.name.isdecimal())
        (spark / folder / str(newest)).unlink()
        (spark / folder / f".{newest}.crc").unlink(missing_ok=True)


def _change(spark: Path) -> None:
    """As a copy of another checkpoint has it: its one batch went further than ours."""
    (spark / "offsets" / ".0.crc").unlink()
    planned = spark / "offsets" / "0"
    *head, offsets = planned.read_text().splitlines()
    planned.write_text("\n".join((*head, re.sub(r":\d+", ":10", offsets))))


@pytest.mark.test_all
@pytest.mark.promise("order-spark-part-checkpoint")
@pytest.mark.parametrize(("lives", "lose"), [(1, _lose_all), (2, _lose_newest), (1, _change)])
def test_batch_that_is_planned_anew_is_refused(
    job: Job, lives: int, lose: Callable[[Path], None]
) -> None:
    """Rows that Spark has planned otherwise are neither skipped nor doubled; a reset reads them."""
    for life in range(lives):
        job.produce([event(T0 + 20 * life + n, partition=n % 4) for n in range(20)])
        job.run()
    lose(_folder(job) / "spark")
    job.produce([event(T0 + 1000 + n, partition=n % 4) for n in range(20)])
    with pytest.raises(CheckpointError, match=r"has planned batch . again.*--reset-input"):
        job.run(drain=True)
    report = job.run(drain=True, reset_input=True)
    assert report.totals.read == report.totals.released == 20 * lives + 20
    assert _times(job) == [*range(20 * lives), *range(1000, 1020)]


@pytest.mark.test_all
@pytest.mark.promise("order-spark-part-checkpoint")
def test_reset_reads_on_from_where_the_log_is(job: Job) -> None:
    """Cut short in a step or behind the reset, it loses and doubles nothing, and goes on."""
    job.produce([event(T0 + n, partition=n % 4) for n in range(20)])
    with dying_before("plans/"):
        job.with_settings(delay="0 s").run()
    shutil.rmtree(_folder(job) / "spark")
    with _dying_before_its_query():  # the reset is logged, and nothing is read yet
        job.run(reset_input=True)
    assert job.kinds()[-1] is StepKind.RESET
    for life in range(1, 3):
        job.produce([event(T0 + 1000 * life + n, partition=n % 4) for n in range(20)])
        job.run(drain=True)
    assert _times(job) == [*range(20), *range(1000, 1020), *range(2000, 2020)]
    assert not (_folder(job) / "spark").exists()


@pytest.mark.test_all
@pytest.mark.promise("order-job-ends-spark")
def test_start_after_a_plan_that_was_cut_short(job: Job) -> None:
    """Spark refuses what it had begun of its first plan: the next start of the job goes on."""
    begun = _folder(job) / "spark" / "offsets"
    job.produce([event(T0 + n, partition=n % 4) for n in range(20)])
    with _dying_before_its_query():
        job.run()
    begun.mkdir(parents=True)
    (begun / ".0.5f.tmp").touch()
    (begun.parent / "metadata").write_text('{"id":"5f5f0d9c-6a5c-4ce1-b4ee-3ad2e3c8a0b6"}')
    assert job.run(drain=True).totals.released == 20


def _recreate(job: Job) -> None:
    """Delete the input topic and create it again."""
    client = AdminClient(job.kafka.librdkafka())
    client.delete_topics([job.topic])[job.topic].result(PATIENCE_S)
    wait_until(lambda: job.topic not in client.list_topics(timeout=PATIENCE_S).topics)
    client.create_topics([NewTopic(job.topic, 4, 1)])[job.topic].result(PATIENCE_S)

    def has_leaders() -> bool:
        found = client.list_topics(timeout=PATIENCE_S).topics.get(job.topic)
        return found is not None and sum(p.leader >= 0 for p in found.partitions.values()) == 4

    wait_until(has_leaders)


@pytest.mark.test_all
@pytest.mark.promise("order-input-topic-deleted", "order-output-checkpoint-new")
def test_topic_that_was_made_anew_is_refused(job: Job) -> None:
    """Grown past the old offsets it looks the same: its id tells. A reset reads all of it."""
    old, new = [range(40), range(5000, 5100)]
    job.produce([event(T0 + n, partition=n % 4) for n in old])
    held = job.run().totals.held
    assert held > 0
    _recreate(job)
    job.produce([event(T0 + n, partition=n % 4) for n in new])
    with pytest.raises(CheckpointError, match=r"deleted and recreated.*--reset-input"):
        job.run(drain=True)
    report = job.run(drain=True, reset_input=True)
    assert report.totals.read == report.totals.released == 140
    assert _times(job) == [*old, *new]


@pytest.mark.test_all
@pytest.mark.promise("order-input-topic-deleted")
def test_topic_that_is_made_anew_under_a_running_job_is_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of it is not logged under the old one's offsets."""
    job.produce([event(T0 + n, partition=n % 4) for n in range(40)])
    write_run = SortedRuns.write_run

    def written_meanwhile(*args: Any, **named: Any) -> Any:
        found = write_run(*args, **named)
        _recreate(job)
        return found

    job.run()
    job.produce([event(T0 + 100, partition=0)])
    monkeypatch.setattr(SortedRuns, "write_run", written_meanwhile)
    with pytest.raises(CheckpointError, match="recreated"):
        job.run()
    assert job.steps[-1][1].totals.read == 40


@pytest.mark.test_all
@pytest.mark.promise("order-second-job-started")
def test_second_job_on_a_checkpoint_is_refused_at_the_start(job: Job) -> None:
    """Before anything is read, and by name of the process that has it."""
    with job.running() as running:
        wait_until((_folder(job) / "spark" / "metadata").exists)
        owner = ProcessIdentity.own()
        with pytest.raises(OwnershipError, match=f"{owner}, has this checkpoint, last seen"):
            job.run()
        assert running.running()
    job.run()


@pytest.mark.test_all
@pytest.mark.promise("order-older-driver-goes")
@pytest.mark.slow
def test_older_driver_that_wakes_up_destroys_nothing(job: Job) -> None:
    """Paused in a step, taken for dead and overtaken, it stops by name; the newer loses nothing."""
    folder = _folder(job)
    job.produce([event(T0 + n, partition=n % 4) for n in range(100)])
    job.run()
    older = SubmittedJob(job.kafka, job.settings)
    with older:
        wait_until(lambda: len(_owners(folder)) == 2)
        process = json.loads(_owners(folder)[-1].read_text())["process"]
        before = len(_runs(folder))
        job.produce([event(T0 + 100 + n, partition=n % 4) for n in range(100)])
        wait_until(lambda: len(_runs(folder)) > before)
        os.kill(process, signal.SIGSTOP)
        wait_until(lambda: may_be_taken(LocalStorage(folder)))
        job.run()
        job.produce([event(T0 + 200 + n, partition=n % 4) for n in range(100)])
        os.kill(process, signal.SIGCONT)
        older.end(status=3)
        assert "has taken this checkpoint over (owner 3, we are 2)" in older.complaints()
    assert job.run(drain=True).totals.released == 300
    assert _times(job) == list(range(300))


def _owners(folder: Path) -> list[Path]:
    return sorted((folder / "owners").glob("0*"))


def _runs(folder: Path) -> list[Path]:
    return list((folder / "runs").iterdir())


@pytest.mark.test_all
def test_checkpoint_that_tasks_do_not_reach_is_refused(job: Job, hadoop_only: HadoopFolder) -> None:
    with pytest.raises(CheckpointError, match=f"{hadoop_only.uri}: it must be a folder that all"):
        job.with_settings(checkpoint=hadoop_only.uri).run()
    assert not hadoop_only.path.exists()


@pytest.mark.test_all
@pytest.mark.promise("order-job-killed-makes")
@pytest.mark.parametrize("kind", [LocalStorage, RemoteStorage])
def test_storage_creates_once_and_replaces_what_nothing_rests_on(
    spark: SparkSession,
    s3_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Storage],
) -> None:
    """By path and in an object store: of two that create a file one is told that it has not."""
    is_local = kind is LocalStorage
    storage = open_storage(spark, f"{tmp_path if is_local else s3_folder}/a b")
    assert type(storage) is kind
    assert (storage.names(""), storage.names("none"), storage.exists("f")) == ([], [], False)
    storage.make_folder("f/g")
    assert storage.create("f/one", "first")
    assert not storage.create("f/one", "second")
    monkeypatch.setattr(type(storage), "exists", lambda *_: False)
    assert not storage.create("f/one", "second")
    monkeypatch.undo()
    assert (storage.read("f/one"), storage.names("f")) == (
        "first",
        [*(["g"] if is_local else []), "one"],
    )
    for text in ("two", "three"):
        storage.replace("f/two", text)
        assert storage.read("f/two") == text
    storage.sync("f", "none")
    for name in ("f/one", "f/one", "f"):
        storage.delete(name)
    assert storage.names("") == []
