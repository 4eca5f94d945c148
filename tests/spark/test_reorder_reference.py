"""The reorder job on Spark puts out what the reference does, row for row, whenever it dies.

So does a job whose lives run on Spark and on this machine in any turns. Beside it the job on lists,
which decides each step alike.

Random histories, few of them: each step is a life of the job. The local runner alone meets more in
tests/integration/test_random_histories.py, and the job on lists many more in
tests/property/test_reorder_tester.py. `SEQUITUR_REFERENCE_EXAMPLES=50` meets more here, too, and
in HDFS as well.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from sequitur.pipelines.local.runner import LocalRunner
from sequitur.pipelines.workers import ThisProcess
from tests.support.history_lives import meet

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.spark.conftest import Job
    from tests.support.broker_job import StorageFolder

pytestmark = pytest.mark.spark

_GIVEN: Final = os.environ.get("SEQUITUR_REFERENCE_EXAMPLES")
_IN_TURNS: Final = int(_GIVEN or 5)
_FEW: Final = 2
_ON_STORES: Final = int(_GIVEN or 3)
_STORES: Final = [
    pytest.param(one, marks=pytest.mark.test_all) for one in ("s3", "hdfs")[: 1 + bool(_GIVEN)]
]


@pytest.mark.promise("order-random-disorder-silence", "order-runner-changes-between")
@pytest.mark.parametrize(
    ("examples", "part"),
    [
        (_FEW, 4),
        pytest.param(_IN_TURNS, 0, marks=pytest.mark.test_all),
        pytest.param(_IN_TURNS, 1, marks=pytest.mark.test_all),
    ],
)
def test_both_runners_in_turns_put_out_what_the_reference_does(
    job: Job, make_topic: MakeTopic, tmp_path: Path, examples: int, part: int
) -> None:
    """Each output partition holds the reference's rows in its order; so do the side topics."""
    runners = {"spark": job.runner, "local": lambda: LocalRunner(ThisProcess(lambda task: task))}
    met = meet(job, make_topic, str(tmp_path / "state"), runners, examples=examples, part=part)
    assert min(met["changed"], met["dead"], met["repeated"], met["cut short"]) > 0, met


@pytest.mark.test_all
@pytest.mark.promise("order-random-disorder-silence")
@pytest.mark.parametrize("storage", _STORES, indirect=True)
def test_the_job_puts_out_what_the_reference_does(
    job: Job, make_topic: MakeTopic, storage: StorageFolder
) -> None:
    """With its checkpoint in a store: there Spark has all lives."""
    met = meet(job, make_topic, storage.uri, {"spark": job.runner}, examples=_ON_STORES)
    assert met["dead"] > 0, met
