"""A program of one's own may run the job again and again, beside its own queries."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.finalizer import ThreadSafeFinalizer

from sequitur.pipelines.ordering.engine import ReorderEngine
from sequitur.spark import reorder
from tests.spark.conftest import wait_until
from tests.support.events import event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

_PROCESS = Path("/proc/self")
_RUNS = 9
_COMPARED = 3
_ONCE = {"threads": 1, "files": 1}
"""Java's collector has a thread and a connection here, once it has found something."""


def _kept(spark: SparkSession) -> dict[str, int]:
    """What this process holds, once its garbage is collected."""
    gc.collect()
    gateway: Any = spark.sparkContext._gateway
    return {
        "engines": sum(isinstance(one, ReorderEngine) for one in gc.get_objects()),
        "callbacks": len(gateway.gateway_property.pool),
        "java objects": len(ThreadSafeFinalizer.finalizers),
        "threads": sum(1 for _ in _PROCESS.joinpath("task").iterdir()),
        "files": sum(1 for _ in _PROCESS.joinpath("fd").iterdir()),
    }


@pytest.mark.promise("on-step-program-calls-reorder")
def test_no_run_leaves_anything_behind(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    """As much is held after all runs as after three; a query of the program's own goes on."""
    seen: list[int] = []

    def see(rows: DataFrame, batch_id: int) -> None:
        del rows
        seen.append(batch_id)

    own = (
        spark.readStream.format("rate")
        .load()
        .writeStream.foreachBatch(see)
        .option("checkpointLocation", str(tmp_path / "own"))
        .start()
    )
    try:
        wait_until(lambda: bool(seen))
        kept: list[dict[str, int]] = []
        for n in range(_RUNS):
            job.produce([event(1_700_000_000_000 + n)])
            report = reorder(
                job.kafka, job.settings, stop=threading.Event(), available_now=True, drain=True
            )
            assert report.totals.read == n + 1
            kept.append(_kept(spark))
        before = len(seen)
        wait_until(lambda: len(seen) > before)
        assert own.isActive
    finally:
        own.stop()
    first, last = kept[_COMPARED - 1], kept[-1]
    assert all(last[name] <= first[name] + _ONCE.get(name, 0) for name in first), (first, last)
    assert last["engines"] == 0
