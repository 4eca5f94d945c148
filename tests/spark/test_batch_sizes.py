"""How much a job reads at once: little at first, so that a first row is out soon."""

from __future__ import annotations

import pytest

from tests.spark.conftest import Job, wait_until
from tests.support.events import event

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000


def _read(job: Job) -> list[int]:
    return [entry.staged.read for entry, _ in job.steps if entry.staged.read]


@pytest.mark.parametrize("available_now", [True, False])
def test_batches_of_a_query_grow(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, available_now: bool
) -> None:
    """Spark is told of it between two batches, whatever starts them."""
    monkeypatch.setattr("sequitur.pipelines.ordering.batch_size._FIRST_ROWS", 40)
    job.produce([event(T0 + n, key=f"k{n}", partition=n % 4) for n in range(1_000)])
    if available_now:
        report = job.run(drain=True)
    else:
        with job.running() as life:
            wait_until(lambda: life.done() or sum(_read(job)) == 1_000)
        report = life.result()
    assert _read(job) == [40, 160, 640, 160]
    assert report.totals.read == 1_000
