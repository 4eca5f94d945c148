"""The task that does nothing, by which the Python processes of tasks are there early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from sequitur.pipelines.spark.tasks import start_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.test_all
def test_it_runs_beside_the_job_and_says_nothing(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """The job goes on at once; a session that ends meanwhile is no fault of the job's."""
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup())
    thread = start_python(spark)
    assert thread is not None
    thread.join()
    assert len(tracker.getJobIdsForGroup()) == before + 1
    ended: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    stopped = start_python(cast("SparkSession", ended))
    assert stopped is not None
    stopped.join()
    assert not capfd.readouterr().err


@pytest.mark.test_all
def test_a_cluster_is_left_alone() -> None:
    """Which machine gets the first task is not known there."""
    cluster: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://h:7077"))
    assert start_python(cast("SparkSession", cluster)) is None
