"""A job that changes its runner between any two files: from Spark to this machine, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from sequitur.pipelines.local.runner import LocalRunner
from sequitur.pipelines.workers import ThisProcess
from tests.support.deaths import DiedError, deadly
from tests.support.events import T0, event, time_of

if TYPE_CHECKING:
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

_ROWS: Final = 5
_DEATHS: Final = (
    *("spark/metadata", "spark/sources/0/", "spark/offsets/", "staged/", "spark/commits/"),
    *("done/", "staged/"),
)
"""What a batch writes, in this order; the last for the other runner, which has not died there."""
_OF_JAVA: Final = ("spark/offsets/", "spark/sources/0/", "spark/metadata")
"""What Spark writes before it gives a batch, the last of it first."""


class _Turns:
    """Lives of a job, each with rows of its own that are all released by the next."""

    def __init__(self, job: Job) -> None:
        self.job = job.with_settings(delay="0 s")
        self.folder = job.settings.checkpoint
        self.times: list[int] = []

    def send(self) -> None:
        first = T0 + 1_000 * len(self.times)
        times = [first + 1_000 * number for number in range(_ROWS)]
        self.job.produce([event(time_ms, partition=0) for time_ms in times])
        self.times += times

    def live(self, runner: str, **how: Any) -> None:
        here = LocalRunner(ThisProcess(lambda task: task)) if runner == "local" else None
        self.job.run(runner=here, **how)

    def die_before(self, document: str, runner: str) -> None:
        """A life that dies before it has written a document."""
        place, is_written = document, False
        if runner == "spark" and document in _OF_JAVA:
            place = "staged/"
        elif runner == "spark" and document == "spark/commits/":
            place, is_written = "staged/", True
        with pytest.raises(DiedError), deadly(place, is_written=is_written):
            self.live(runner)
        if place != document and not is_written:
            # What it would not have written by then, it has not.
            for one in _OF_JAVA[: _OF_JAVA.index(document) + 1]:
                self._take_newest(one)

    def names(self, document: str) -> list[str]:
        """Return the files that begin so, in order; those that are hidden left out."""
        folder, _, name = document.rpartition("/")
        path = Path(self.folder, folder)
        if not path.exists():
            return []
        found = [one.name for one in path.iterdir() if one.name[0] != "." and one.is_file()]
        return sorted((one for one in found if one.startswith(name)), key=lambda one: int(one, 36))

    def _take_newest(self, document: str) -> None:
        folder, newest = document.rpartition("/")[0], self.names(document)[-1]
        for name in (newest, f".{newest}.crc"):
            Path(self.folder, folder, name).unlink()

    def check(self) -> None:
        """Each row is out once and in order, and none was read twice."""
        assert [time_of(one) for one in self.job.released()] == self.times
        assert self.job.report is not None
        assert self.job.report.totals.read == len(self.times)


def _file(folder: str | Path, name: str) -> list[str]:
    with open(f"{folder}/spark/{name}") as file:  # noqa: PTH123 - a URI's path or a path
        return file.read().split("\n")


@pytest.mark.promise("order-runner-changes-between")
def test_each_runner_goes_on_from_the_others_files(job: Job) -> None:
    """What stands in them is the same, but for ids and what Spark keeps of its settings."""
    turns = _Turns(job)
    for runner in ("local", "spark", "local", "local", "spark", "spark", "local"):
        turns.send()
        turns.live(runner)
    turns.live("local", drain=True)
    turns.check()
    plans = [_file(turns.folder, f"offsets/{number}") for number in range(7)]
    commits = [_file(turns.folder, f"commits/{number}") for number in range(7)]
    assert {tuple(one) for one in commits} == {("v1", '{"nextBatchWatermarkMs":0}')}
    assert {len(one) for one in plans} == {3}
    assert {one[0] for one in plans} == {"v1"}
    for number, (_, metadata, ends) in enumerate(plans):
        assert json.loads(metadata).keys() == {"batchWatermarkMs", "batchTimestampMs", "conf"}
        (found,) = json.loads(ends).values()
        assert found == {"0": _ROWS * (number + 1), "1": 0, "2": 0, "3": 0}
    # What Spark has written down of its settings, the local runner hands on.
    assert plans[2][1] == plans[3][1] == plans[1][1]
    assert plans[6][1] == plans[5][1]
    assert json.loads(plans[1][1])["conf"]


@pytest.mark.test_all
@pytest.mark.promise("order-runner-changes-between")
def test_spark_commits_what_the_local_runner_has_planned_behind_a_plan_of_its_own(job: Job) -> None:
    """Then Spark compares two plans that it has not written."""
    turns = _Turns(job)
    turns.send()
    turns.live("local")
    turns.send()
    turns.die_before("spark/commits/", "local")
    turns.send()
    turns.live("spark", drain=True)
    turns.check()


@pytest.mark.promise("order-runner-changes-between")
@pytest.mark.parametrize("runners", [("local", "spark"), ("spark", "local")], ids="-".join)
def test_eight_lives_that_change_runners_die_between_each_two_files(
    job: Job, runners: tuple[str, str]
) -> None:
    """What is planned by then is run as planned, and the next life goes on behind it."""
    turns = _Turns(job)
    for number, document in enumerate(_DEATHS):
        turns.send()
        before = turns.names(document)
        turns.die_before(document, runners[number % 2])
        assert turns.names(document) == before
    turns.send()
    turns.live(runners[len(_DEATHS) % 2], drain=True)
    turns.check()
