"""Tasks whose Python process may die in a bolt: they are run again, and what kills them is found.

A process dies of a segmentation fault, by the kernel when memory runs out, or by the watchdog in a
call that nothing else can end. Spark then gives up the whole job, with the results of tasks that
were done. So each task leaves its result in a file, and only the others are run again. A task that
has died several times is run on halves of its input, until what is left is the one event, tuple or
tick that kills it: that one is given up. A timer that kills it is noted before it is called.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from sequitur.consumer.topology.step.tasks import SpoutTask, StageTask
from sequitur.errors import BoltCrashError, TopologyTaskError
from sequitur.pipelines.store.storage import write_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from sequitur.consumer.topology.settling.root import Order, TimerPlace
    from sequitur.consumer.topology.step.batch import TaskResult
    from sequitur.consumer.topology.step.tasks import Trial
    from sequitur.pipelines.store.storage import Location
    from sequitur.pipelines.workers import Workers

    T = TypeVar("T")


_MOST_POISON: Final = 100
_COLLECTED_EACH: Final = 200_000
"""New objects between two looks for garbage."""
_FRUITLESS: Final = 3


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A task that leaves its result in a file."""

    task: Any
    path: Location

    @property
    def home(self) -> object:
        return getattr(self.task, "home", None)

    def __call__(self) -> None:
        with _few_collections():
            write_aside(self.path, pickle.dumps(self.task()))

    def result(self) -> Any:
        """Return the result; the task is done, so somebody else has deleted a missing file."""
        return pickle.loads(self.path.read_bytes())  # noqa: S301 - our own

    def result_if_done(self) -> Any:
        """Return the result; None if a process died first."""
        try:
            return self.result()
        except FileNotFoundError:
            return None


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Collect garbage only now and then: tuples and keys make none, and there are many of them."""
    threshold = gc.get_threshold()
    gc.set_threshold(_COLLECTED_EACH, *threshold[1:])
    try:
        yield
    finally:
        gc.set_threshold(*threshold)


@dataclass(frozen=True, slots=True)
class TimerNote:
    """Notes in a file which timer is called: it is there if the process dies of the call."""

    path: Location

    def __call__(self, timer: TimerPlace | None) -> None:
        write_aside(self.path, pickle.dumps(timer))

    def read(self) -> TimerPlace | None:
        try:
            found: TimerPlace | None = pickle.loads(self.path.read_bytes())  # noqa: S301 - our own
        except FileNotFoundError:
            return None
        return found


class SurvivingTasks:
    def __init__(
        self,
        workers: Workers,
        folder: Location,
        *,
        max_crashes: int,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.crashes = 0
        self._is_stopping = is_stopping
        self._workers = workers
        self._folder = folder
        self._max_crashes = max_crashes

    def run(self, tasks: Sequence[Any]) -> list[TaskResult]:
        """Run tasks side by side; return their results in order."""
        recorded = [self._recorded(task) for task in tasks]
        # The tasks with most to do come first, so that the others need not wait for one of them.
        order = sorted(range(len(tasks)), key=lambda place: -tasks[place].weight)
        if self._survives([recorded[place] for place in order]):
            return [one.result() for one in recorded]
        # Spark does not say which task's process died, so each task runs alone from here on.
        return [
            one.result_if_done() or self._alone(task)
            for one, task in zip(recorded, tasks, strict=True)
        ]

    def repeat(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks without bolts, and repeat all of them if the process of one dies."""
        for _ in range(_FRUITLESS):
            recorded = [self._recorded(task) for task in tasks]
            if self._survives(recorded):
                return [one.result() for one in recorded]
        raise BoltCrashError(f"the Python process of a task keeps dying: {tasks[0]!r}")

    def once(self, tasks: Sequence[Callable[[], T]]) -> list[T] | None:
        """Run each task once; None if a process died in one."""
        recorded = [self._recorded(task) for task in tasks]
        with self._workers.ended_at(self._is_stopping):
            survived = self._survives(recorded)
        return [one.result() for one in recorded] if survived else None

    def _alone(self, task: Any) -> TaskResult:
        crashes, fruitless = 1, 0
        while True:
            if crashes >= self._max_crashes:
                trial = self._without_killer(task)
                fruitless += trial is task.trial
                task = replace(task, trial=trial)
                given_up = len(trial.poison) + len(trial.killers)
                if fruitless >= _FRUITLESS or given_up > _MOST_POISON:
                    raise BoltCrashError(
                        f"the Python process of a task dies again and again: {self.crashes} times, "
                        f"{given_up} events, tuples, timers and ticks were given up for it"
                    )
            result = self._tried(task)
            if result is not None:
                return result
            crashes += 1

    def _without_killer(self, task: Any) -> Trial:
        """Return the task's input without what kills it; the same if nothing does by itself."""
        trial: Trial = task.trial
        timer = self._killing_timer(task)
        if timer is not None:
            return replace(trial, killers=trial.killers | {timer})
        place = self._killer(task)
        return trial if place is None else replace(trial, poison=trial.poison | {place})

    def _killing_timer(self, task: Any) -> tuple[str, bytes, Order] | None:
        """Return the timer in whose call a task dies; None if it dies elsewhere, or not at all.

        The task runs once more, and notes each timer that it is about to call.
        """
        if not isinstance(task, SpoutTask | StageTask) or not task.calls_timers:
            return None
        note = TimerNote(self._folder / f"timer-{uuid4().hex}.pickle")
        if self._tried(replace(task, tell=note)) is not None:
            return None
        place = note.read()
        return None if place is None else (place.component, place.key, place.order)

    def _killer(self, task: Any) -> int | None:
        """Place of what kills a task, by bisection; None if nothing does it by itself.

        A task that dies when it is given nothing says nothing of any event.
        """
        if self._kills(task, 0, 0):
            return None
        (count,) = self._workers.run([task.count])
        first, last = 0, count
        while last - first > 1:
            middle = (first + last) // 2
            if self._kills(task, first, middle):
                last = middle
            else:
                first = middle
        return first if count and self._kills(task, first, last) else None

    def _kills(self, task: Any, first: int, last: int) -> bool:
        part = replace(task.trial, first=first, last=last)
        return self._tried(replace(task, trial=part)) is None

    def _tried(self, task: Any) -> TaskResult | None:
        one = self._recorded(task)
        return one.result() if self._survives([one]) else None

    def _recorded(self, task: Any) -> _Recorded:
        return _Recorded(task, self._folder / f"result-{uuid4().hex}.pickle")

    def _survives(self, recorded: Sequence[_Recorded]) -> bool:
        """Run tasks; return whether no process died."""
        try:
            with self._workers.beside_reading():
                self._workers.run(recorded, retries=False)
        except Exception as error:
            reason = self._workers.reason_of(error)
            if reason is None:
                raise
            if not self._workers.is_death(error):
                raise TopologyTaskError(
                    f"a task of the topology cannot continue: {reason}"
                ) from error
            self.crashes += 1
            return False
        return True
