"""A checkpoint on a disk on which a batch does not fit."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from sequitur.errors import ReorderError
from tests.support.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
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
