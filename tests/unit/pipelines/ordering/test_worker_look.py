"""Workers of a cluster are looked at beside the job, and what they lack ends it."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from sequitur.errors import CheckpointError, ReorderError
from sequitur.pipelines.ordering.worker_look import Look, WorkerLook
from sequitur.pipelines.store.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.promise("order-cluster-workers-unfit")


@dataclass
class _Cluster:
    """Executors that join as time passes, each with a slot, and tasks on them."""

    folder: Path
    joins_s: tuple[float, ...] = (0.0,)
    error: Exception | None = None
    is_elsewhere: bool = False
    now_s: float = 0.0
    ends_s: float = 1_000.0
    ran: list[int] = field(default_factory=list)

    def slots(self) -> int:
        return sum(joined_s <= self.now_s for joined_s in self.joins_s)

    def run(self, look: Look, tasks: int) -> list[str | None]:
        self.ran.append(tasks)
        # Tasks wait for an executor.
        self.now_s = max(self.now_s, min(self.joins_s))
        if self.error is not None:
            raise self.error
        if self.is_elsewhere:
            look = Look(self.folder / "elsewhere" / "looks" / "x", look.token)
        return [look(number) for number in range(tasks)]

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.now_s >= self.ends_s

    def look(self) -> Exception | None:
        look = WorkerLook(LocalStorage(self.folder), self.slots, self.run)
        look.look(self.wait, lambda: self.now_s)
        assert [*self.folder.glob("looks/*")] == []
        return look.failure


@pytest.fixture
def cluster(tmp_path: Path) -> _Cluster:
    return _Cluster(tmp_path)


@pytest.mark.parametrize(
    ("joins_s", "ran", "ends_s"),
    [
        ((0.0, 0.0, 0.0), [3], 31.0),
        ((0.0, 5.0, 7.0), [1, 2, 3], 31.0),
        ((100.0, 100.0, 110.0), [1, 2, 3], 131.0),
        ((0.0, 50.0), [1], 31.0),
    ],
    ids=["all are there", "they join", "they wait for room", "one comes later"],
)
def test_each_slot_is_looked_at_while_executors_join(
    cluster: _Cluster, joins_s: tuple[float, ...], ran: list[int], ends_s: float
) -> None:
    cluster.joins_s = joins_s
    assert cluster.look() is None
    assert cluster.ran == ran
    assert cluster.now_s <= ends_s


def test_looking_ends_with_the_job(cluster: _Cluster) -> None:
    cluster.joins_s, cluster.ends_s = (0.0, 50.0), 3.0
    assert cluster.look() is None
    assert cluster.now_s == 3.0


def test_a_folder_that_workers_do_not_reach_ends_the_job_by_name(cluster: _Cluster) -> None:
    cluster.is_elsewhere = True
    failure = cluster.look()
    assert isinstance(failure, CheckpointError)
    assert f"{cluster.folder / 'elsewhere'} on the worker " in str(failure)
    assert "a checkpoint that the driver and all workers reach" in str(failure)
    assert cluster.ran == [1]


def test_another_folder_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "driver").write_bytes(b"of another")
    assert "is not the folder that the driver has there" in (Look(tmp_path, b"of ours")(0) or "")
    (tmp_path / "driver").write_bytes(b"of ours")
    assert Look(tmp_path, b"of ours")(0) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_ends_the_job_by_name(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    (tmp_path / "driver").write_bytes(b"ours")
    os.chown(tmp_path, nobody, -1)
    assert "belongs to the user 'nobody', and this process" in (Look(tmp_path, b"ours")(0) or "")


def test_a_package_that_workers_lack_ends_the_job_by_name(cluster: _Cluster) -> None:
    cluster.error = PySparkException(
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'sequitur'\n"
    )
    failure = cluster.look()
    assert isinstance(failure, ReorderError)
    assert "Spark gave up: Python on the workers has no package 'sequitur': install" in str(failure)


def test_what_may_pass_ends_no_job(cluster: _Cluster) -> None:
    """Real tasks meet it, too, and are tried again."""
    cluster.error = PySparkException("ExecutorLostFailure (executor 1 exited)")
    assert cluster.look() is None
