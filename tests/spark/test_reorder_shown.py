"""What a job shows of itself to others while it runs: metrics, and its state on disk."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import pytest

from sequitur._ports import choose_free
from sequitur.pipelines.ordering.inspection import inspect_checkpoint
from sequitur.pipelines.ordering.progress import counts
from tests.spark.conftest import Job, wait_until
from tests.support.events import event

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000


@pytest.mark.promise("order-row-unaccounted")
def test_metrics_and_state_on_disk_tell_what_the_job_did(job: Job, tmp_path: Path) -> None:
    """A scrape and a look at the folder of a running job both show its newest step."""
    address = f"127.0.0.1:{choose_free()}"
    job = job.with_settings(metrics=address)
    job.produce([event(T0 + 10 * n, partition=n % 4) for n in range(400)])
    job.produce([event("soon", partition=0)])
    with job.running():
        wait_until(lambda: bool(job.steps) and job.steps[-1][1].totals.read == 401)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            scraped = answer.read().decode()
        report = inspect_checkpoint(str(tmp_path / "checkpoint"))
    entry, done = job.steps[-1]
    held = done.totals.held
    assert held > 0
    for line in (
        "sequitur_reorder_rows_read_total 401.0",
        f"sequitur_reorder_rows_released_total {400 - held}.0",
        f"sequitur_reorder_rows_held {held}.0",
        'sequitur_reorder_rows_quarantined_total{reason="event-time-unparsable"} 1.0',
    ):
        assert line in scraped
    assert report.frontier_ms == entry.frontier_ms == T0 + 3960 - 1000
    assert counts(report.done.totals) == counts(done.totals)
    # What the runs hold, counted row by row, is what the job says it holds.
    assert sum(run.held for run in report.runs) == held
    assert report.entry is not None
    assert report.entry.clock == entry.clock
    assert report.steps[-1][1] == done
    assert done.seconds > 0
