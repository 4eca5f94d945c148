"""The local runner on a real broker puts out what the tester and the reference do, row for row.

Random histories of lives, deaths and repeats. Those in which Spark has some of the lives, too:
tests/spark/test_reorder_reference.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.examples import examples_in
from tests.support.history_lives import meet

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeTopic
    from tests.support.broker_job import BrokerJob


@pytest.mark.promise("order-random-disorder-silence", "order-local-runner-needs")
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(one, marks=pytest.mark.test_all) for one in range(1, 5))]
)
def test_the_local_runner_puts_out_what_the_reference_does(
    job: BrokerJob, make_topic: MakeTopic, tmp_path: Path, part: int
) -> None:
    """Wherever its batches end and its lives die; each step is decided as the tester's is."""
    examples = examples_in(test=10, test_all=20)
    folder = str(tmp_path / "state")
    met = meet(job, make_topic, folder, {"local": job.runner}, examples=examples, part=part)
    assert min(met["dead"], met["repeated"], met["cut short"]) > 0, met
