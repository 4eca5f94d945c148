"""A checkpoint that is moved to another folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import bolts
from tests.support.events import T0, event
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.broker_job import BrokerJob


def _folder(job: BrokerJob) -> Path:
    return Path(job.settings.checkpoint)


@pytest.mark.promise("order-checkpoint-moved-folder")
def test_checkpoint_can_be_moved(job: BrokerJob, tmp_path: Path) -> None:
    """Runs, events that wait and what bolts keep are found where the folder is now."""
    here = job.running_topology(bolts.word_count(), retry_delay="5 s")
    here.produce([event(T0, text="so"), event(T0 + 1, text="bad")])
    here.produce([event(T0 + 5000, text="so", partition=p) for p in range(4)])
    with here.running():  # "bad" fails once, and waits
        wait_until(lambda: any((done.processed or {}).get("pending") for _, done in here.steps))
    moved = tmp_path / "moved"
    _folder(job).rename(moved)
    there = here.with_settings(checkpoint=str(moved))
    there.run(drain=True)
    counts = there.processed()
    assert (counts["acked"], counts["pending"]) == (6, 0)
    assert counts["failed"] >= 1
    words = {(record.key, record.value) for record in there.released()}
    assert words == {(b"bad", b"1"), *((b"so", b"%d" % count) for count in range(1, 6))}
