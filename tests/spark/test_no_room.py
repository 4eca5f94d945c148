"""A job on a cluster that has no room for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import Job, event
from tests.spark.standalone_cluster import java_options, standalone_cluster
from tests.spark.submitted_job import SubmittedJob

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.slow]  # starts Spark

T0 = 1_700_000_000_000
_ENDS_WITHIN_S = 30
"""On a machine that has other things to do; else it takes 4 s."""


def test_job_without_an_executor_says_so_and_ends_when_it_is_told_to(
    job: Job, tmp_path: Path
) -> None:
    """Workers have one core each, and an executor of it wants 64: nothing of it ever starts."""
    job.produce([event(T0 + n, partition=n % 4) for n in range(100)])
    with standalone_cluster(tmp_path) as master:
        options = {
            "spark.master": master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": java_options(),
            "spark.executor.memory": "512m",
            "spark.executor.cores": "64",
            "spark.cores.max": "128",
        }
        with SubmittedJob(job.kafka, job.settings, options=options) as life:
            assert life.process.stdout is not None
            said = next(line for line in life.process.stdout if "executor" in line)
            assert said == (
                "no executor yet: 0 cores granted, 128 asked, 512m of memory and 64 cores for each "
                "executor: is there room on the cluster?\n"
            )
            asked_s = time.monotonic()
            life.process.terminate()
            report = [*life.steps()][-1]
            life.end()
            assert time.monotonic() - asked_s < _ENDS_WITHIN_S
            assert "Error" not in life.complaints()
    assert (report["read"], report["steps"]) == (0, 0)
    assert job.run(drain=True).totals.released == 100
