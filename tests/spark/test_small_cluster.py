"""A job on a cluster that has no room for it, or whose database is a file of one host."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import ProcessSettings
from tests.spark.submitted_job import SubmittedJob
from tests.support.events import T0, event
from tests.support.spark_cluster import SparkCluster, small_application
from tests.support.tree import EXAMPLES
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.conftest import Job

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.one_process,
    pytest.mark.test_all,
]  # starts Spark

_WITHOUT_US = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sequitur":
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
"""
_ENDS_WITHIN_S = PATIENCE_S
"""On a machine that has other things to do; else it takes 4 s."""


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Spark's settings of an application on a cluster, whose workers have one core each."""
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield {"spark.master": cluster.url, **small_application()}


@pytest.mark.promise("order-cluster-room-executor")
def test_job_without_an_executor_says_so_and_ends_when_it_is_told_to(
    job: Job, options: dict[str, str]
) -> None:
    """An executor wants 64 cores. The driver does what is small by itself all the same."""
    job.produce([event(T0 + n, partition=n % 4) for n in range(100)])
    asked = {"spark.executor.cores": "64", "spark.cores.max": "128"}
    with SubmittedJob(job.kafka, job.settings, options=options | asked) as life:
        assert next(life.steps())
        wait_until(lambda: "is there room" in life.complaints())
        said = next(line for line in life.complaints().splitlines(True) if "executor" in line)
        assert said == (
            "no executor yet: 0 cores granted, 128 asked, 512m of memory and 64 cores for each "
            "executor: is there room on the cluster?\n"
        )
        told_s = time.monotonic()
        life.process.terminate()
        report = [*life.steps()][-1]
        life.end()
        assert time.monotonic() - told_s < _ENDS_WITHIN_S
        assert "Error" not in life.complaints()
    assert report["read"] == 100
    assert job.run(drain=True).totals.released == 100


@pytest.mark.test_all
@pytest.mark.promise("order-cluster-workers-unfit")
def test_workers_that_lack_the_package_end_a_job_that_needs_no_task(
    job: Job, options: dict[str, str], tmp_path: Path
) -> None:
    """The driver does all that there is; the first large batch may be weeks away."""
    job.produce([event(T0 + n, partition=n % 4) for n in range(100)])
    # What Python imports by itself as it starts, in executors alone.
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_US)
    lacks = {"spark.executorEnv.PYTHONPATH": str(tmp_path)}
    with SubmittedJob(job.kafka, job.settings, options=options | lacks) as life:
        said = life.end(3) + life.complaints()
    assert "Spark gave up: Python on the workers has no package 'sequitur': install there" in said
    assert job.run(drain=True).totals.released == 100


@pytest.mark.promise("state-states-file-sqlite")
def test_sqlite_serves_a_cluster_of_one_host_alone(
    job: Job, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is the one that it has where the job was started; executors run elsewhere."""
    job.produce([event(T0 + n, partition=n % 4) for n in range(100)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STATE_URL", raising=False)
    example = EXAMPLES / "transactional_global_count.py"
    ends = ("--available-now", "--drain")

    def life(process: ProcessSettings, **more: str) -> SubmittedJob:
        return SubmittedJob(
            *(job.kafka, job.settings, *ends),
            topology=example,
            process=process,
            options=options | more,
        )

    with life(ProcessSettings()) as refused:
        refused.end(3)
        said = refused.complaints()
    assert f"sqlite:///{tmp_path}/global_count.db, a file of one host" in said
    assert "process.sqlite_on_one_host = true" in said
    assert not (tmp_path / "global_count.db").exists()

    one_host = ProcessSettings(sqlite_on_one_host=True)
    # What Python imports by itself as it starts, in executors alone.
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "sitecustomize.py").write_text(
        "import socket\nsocket.gethostname = lambda: 'far'\n"
    )
    with life(one_host, **{"spark.executorEnv.PYTHONPATH": str(tmp_path / "far")}) as far:
        far.end(3)
        said = far.complaints()
    assert "runs on host 'far', and sqlite:///" in said

    with life(one_host) as taken:
        report = [*taken.steps()][-1]
        taken.end()
    assert report["processed"]["acked"] == 100
    with closing(sqlite3.connect(tmp_path / "global_count.db")) as connection:
        assert connection.execute("SELECT value FROM global_count").fetchall() == [(100,)]
