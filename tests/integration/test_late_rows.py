"""What becomes of rows behind the frontier, of repeats and of stale rows, when the job dies.

Without deaths: tests/unit/pipelines/ordering, test_late_policies.py and those beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.pipelines.store.storage import files_in
from tests.support.deaths import check_newest_stay, check_repeats_stay, check_verdicts_stay

if TYPE_CHECKING:
    from tests.support.broker_job import BrokerJob, StorageFolder


@pytest.mark.promise("order-job-dies-writes", "order-event-arrives-later")
@pytest.mark.parametrize(
    ("place", "storage"),
    [("frontier/", "s3"), pytest.param("done/", "local", marks=pytest.mark.test_all)],
    indirect=["storage"],
)
def test_crash_changes_no_verdict(job: BrokerJob, storage: StorageFolder, place: str) -> None:
    check_verdicts_stay(job.with_settings(checkpoint=storage.uri), place)
    assert len(files_in(storage.location / "keys")) == 1
    assert files_in(storage.location / "behind") == []


@pytest.mark.test_all
@pytest.mark.promise("order-producer-sends-event")
def test_crash_makes_no_row_a_repeat_of_itself(job: BrokerJob) -> None:
    check_repeats_stay(job, "frontier/")


@pytest.mark.test_all
@pytest.mark.promise("order-event-older-last")
def test_crash_in_latest_mode_is_recovered(job: BrokerJob) -> None:
    check_newest_stay(job, "done/")
