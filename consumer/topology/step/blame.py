"""Which events a `finish_batch` raises for, where they have no further attempt.

It fails all events that its task was given, and most of them are innocent. So the task is run on
more and more of its input, until it is known with which item it begins to raise; that one fails,
and the task is run again without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sequitur.consumer.dead_letters import FailReason
from sequitur.consumer.topology.api.failure import TreeFailure
from sequitur.consumer.topology.engine.runner import FINISH_OVERRAN
from sequitur.consumer.topology.engine.user_code import finish_words

if TYPE_CHECKING:
    from typing import TypeAlias

    from sequitur.consumer.topology.step.run import Tasks
    from sequitur.consumer.topology.step.task_result import TaskResult
    from sequitur.consumer.topology.step.tasks import SpoutTask, StageTask

    Task: TypeAlias = SpoutTask | StageTask

_MOST: Final = 16
"""So many are told from the innocent; a bolt that raises for more of them raises for all."""


def without_blamed(tasks: Tasks, task: Task) -> TaskResult:
    """Run a task again whose `finish_batch` raised, without what is to blame for that."""
    whole = task
    (empty,) = tasks.run([_up_to(task, 0)])
    if empty.finish_failures:
        return _last_word(tasks, whole)
    (count,) = tasks.repeat([task.count])
    passes = 0  # with so many items it does not raise
    for _ in range(_MOST):
        (result,) = tasks.run([task])
        if not result.has_to_blame:
            return result
        raises, raised = count, result.finish_failures
        while raises - passes > 1:
            middle = (passes + raises) // 2
            (part,) = tasks.run([_up_to(task, middle)])
            if part.finish_failures:
                raises, raised = middle, part.finish_failures
            else:
                passes = middle
        if passes == count:
            break  # it raised for less than it was given: it is not the events
        blamed = (*task.trial.blamed, (passes, _failure(*raised[0])))
        task = replace(task, trial=replace(task.trial, blamed=blamed))
        passes += 1
    else:
        (result,) = tasks.run([task])
        if not result.has_to_blame:
            return result
    return _last_word(tasks, whole)


def _up_to(task: Task, count: int) -> Task:
    return replace(task, trial=replace(task.trial, last=count))


def _last_word(tasks: Tasks, task: Task) -> TaskResult:
    (result,) = tasks.run([replace(task, blames=False)])
    return result


def _failure(component: str, detail: str) -> TreeFailure:
    reason = FailReason.TIMEOUT if detail == FINISH_OVERRAN else FailReason.EXCEPTION
    return TreeFailure(reason, finish_words(component, detail), (component,))
