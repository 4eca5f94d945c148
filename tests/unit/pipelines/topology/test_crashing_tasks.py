"""The search for what kills a task's process, with deaths that a test decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology.step.batch import TaskResult
from sequitur.consumer.topology.step.tasks import WHOLE, Trial
from sequitur.errors import BoltCrashError
from sequitur.pipelines.topology.surviving_tasks import SurvivingTasks
from sequitur.pipelines.workers import ThisProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class _Task:
    """A task of five events, which answers with those that it was given."""

    trial: Trial = WHOLE
    weight: int = 1

    def count(self) -> int:
        return 5

    def given(self) -> list[int]:
        return [place for place, _ in self.trial.of(range(5)) if place not in self.trial.poison]

    def __call__(self) -> TaskResult:
        """Say how many these are."""
        return TaskResult(taken=len(self.given()))


class _Dying(SurvivingTasks):
    """Tasks whose process dies as a test says, of what they are given."""

    dies: Callable[[list[int]], bool]
    most = 100

    def _survives(self, recorded: Sequence[Any]) -> bool:
        if any(self.dies(one.task.given()) for one in recorded):
            self.crashes += 1
            assert self.crashes < self.most, "the search has no end"
            return False
        for one in recorded:
            one()
        return True


def _tasks(folder: Path, dies: Callable[[list[int]], bool]) -> _Dying:
    tasks = _Dying(ThisProcess(lambda task: task), folder, max_crashes=2)
    tasks.dies = dies
    return tasks


@pytest.mark.promise("process-process-dies-whatever")
def test_a_task_that_dies_of_no_event_ends_the_job(tmp_path: Path) -> None:
    """As where `prepare` of a bolt ends the process: there is nothing to give up."""
    tasks = _tasks(tmp_path, lambda _: True)
    with pytest.raises(BoltCrashError, match="0 events, tuples, timers and ticks were given up"):
        tasks.run([_Task()])


@pytest.mark.promise("process-process-dies-whatever")
def test_no_event_is_given_up_for_deaths_that_pass(tmp_path: Path) -> None:
    """Memory was short for a while, whatever the task was given."""
    deaths = iter(range(5))
    tasks = _tasks(tmp_path, lambda _: next(deaths, None) is not None)
    assert [answer.taken for answer in tasks.run([_Task()])] == [5]


@pytest.mark.parametrize("run", [SurvivingTasks.run, SurvivingTasks.once, SurvivingTasks.repeat])
def test_a_result_that_somebody_has_taken_away_is_named(
    tmp_path: Path, run: Callable[[SurvivingTasks, Sequence[Any]], Any]
) -> None:
    """As a newer life of the job does: it was no task that died, and nothing goes on without it."""

    class TakenAway(SurvivingTasks):
        def _survives(self, recorded: Sequence[Any]) -> bool:
            for one in recorded:
                one()
                one.path.unlink()
            return True

    tasks = TakenAway(ThisProcess(lambda task: task), tmp_path, max_crashes=2)
    with pytest.raises(FileNotFoundError, match="result-"):
        run(tasks, [_Task()])


@pytest.mark.promise("process-process-dies-event")
@pytest.mark.parametrize("killers", [{0}, {3}, {1, 4}, {0, 1, 2, 3, 4}])
def test_each_event_that_kills_is_found(tmp_path: Path, killers: set[int]) -> None:
    tasks = _tasks(tmp_path, lambda given: bool(killers.intersection(given)))
    assert [answer.taken for answer in tasks.run([_Task()])] == [5 - len(killers)]
