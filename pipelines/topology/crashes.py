"""Tasks whose Python process may die in a bolt: they are run again, and what kills them is found.

A process dies of a segmentation fault, by the kernel when memory runs out, or by the watchdog in a
call that nothing else can end. Spark then gives up the whole job, with the results of tasks that
were done; so each task leaves its result in a file, and only the others are run again. A task that
has died several times is run on halves of its input, until what is left is the one event, tuple or
tick that kills it: that one is given up.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from sequitur.errors import BoltCrashError, TopologyTaskError
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.spark.tasks import all_of, reason_of
from sequitur.pipelines.store.files import write_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from pyspark.sql import SparkSession

    from sequitur.consumer.topology.step.batch import TaskResult
    from sequitur.pipelines.store.files import Location

    T = TypeVar("T")

_DIED: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure")
_MOST_POISON: Final = 100
_FRUITLESS: Final = 3
_POOL: Final = "spark.scheduler.pool"
_LOOK_S: Final = 0.2
_GRACE_S: Final = 5.0
"""A commit takes less; one that a database holds up is repeated by the next start."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A task that leaves its result in a file."""

    task: Any
    path: Location

    def __call__(self) -> None:
        write_aside(self.path, pickle.dumps(self.task()))

    def result(self) -> Any:
        """Its result; None as long as it has none."""
        try:
            return pickle.loads(self.path.read_bytes())  # noqa: S301 - our own
        except FileNotFoundError:
            return None


class SurvivingTasks:
    """Runs tasks that may die."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Location,
        *,
        max_crashes: int,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.crashes = 0
        self._is_stopping = is_stopping
        self._spark = spark
        self._folder = folder
        self._max_crashes = max_crashes

    def all_of(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks side by side, in Spark's processes: the seam by which tests run them here."""
        return all_of(self._spark, tasks)

    def run(self, tasks: Sequence[Any]) -> list[TaskResult]:
        """Run tasks side by side, and give their results in order."""
        recorded = [self._recorded(task) for task in tasks]
        # Those with most to do first, so that none of them is what all others wait for.
        order = sorted(range(len(tasks)), key=lambda place: -tasks[place].weight)
        if self._survives([recorded[place] for place in order]):
            return [one.result() for one in recorded]
        # Spark does not say whose process it was, so each is on its own from here on.
        return [
            one.result() or self._alone(task) for one, task in zip(recorded, tasks, strict=True)
        ]

    def repeat(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks in which no bolt is, all again when the process of one dies."""
        for _ in range(_FRUITLESS):
            recorded = [self._recorded(task) for task in tasks]
            if self._survives(recorded):
                return [one.result() for one in recorded]
        raise BoltCrashError(f"the Python process of a task keeps dying: {tasks[0]!r}")

    def once(self, tasks: Sequence[Callable[[], T]]) -> list[T] | None:
        """Run tasks, none of them again; None if a process has died in one."""
        recorded = [self._recorded(task) for task in tasks]
        with _cancelled(self._spark, self._is_stopping):
            survived = self._survives(recorded)
        return [one.result() for one in recorded] if survived else None

    def _alone(self, task: Any) -> TaskResult:
        crashes, fruitless = 1, 0
        while True:
            if crashes >= self._max_crashes:
                place = self._killer(task)
                if place is None:
                    fruitless += 1
                else:
                    poison = task.trial.poison | {place}
                    task = replace(task, trial=replace(task.trial, poison=poison))
                if fruitless >= _FRUITLESS or len(task.trial.poison) > _MOST_POISON:
                    raise BoltCrashError(
                        f"the Python process of a task dies again and again: {self.crashes} times, "
                        f"{len(task.trial.poison)} events, tuples and ticks were given up for it"
                    )
            result = self._tried(task)
            if result is not None:
                return result
            crashes += 1

    def _killer(self, task: Any) -> int | None:
        """Place of what kills a task, by bisection; None if nothing does it by itself.

        A task that dies when it is given nothing says nothing of any event.
        """
        if self._kills(task, 0, 0):
            return None
        (count,) = self.all_of([task.count])
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
        """Run tasks; whether no process has died."""
        try:
            with _in_pool(self._spark):
                self.all_of(recorded)
        except (Py4JJavaError, PySparkException) as error:
            if not _is_death(error):
                raise TopologyTaskError(
                    f"a task of the topology cannot go on: {reason_of(error)}"
                ) from error
            self.crashes += 1
            return False
        return True


@contextlib.contextmanager
def _cancelled(spark: SparkSession, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Cancel what Spark runs for this thread, some time after the job is asked to stop."""
    context, tag = spark.sparkContext, f"once-{uuid4().hex}"
    is_over, is_cancelled = threading.Event(), threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_S):
            if is_stopping() and not is_over.wait(_GRACE_S):
                is_cancelled.set()
                context.cancelJobsWithTag(tag)
                return

    context.addJobTag(tag)
    context.setInterruptOnCancel(True)
    watching = threading.Thread(target=watch, name="stop of a commit", daemon=True)
    watching.start()
    try:
        yield
    except TopologyTaskError as error:
        if is_cancelled.is_set():
            raise StopRequestedError from error
        raise
    finally:
        is_over.set()
        watching.join()
        context.setInterruptOnCancel(False)
        context.removeJobTag(tag)


@contextlib.contextmanager
def _in_pool(spark: SparkSession) -> Iterator[None]:
    """Have Spark share slots fairly between these jobs and those that read the next batch."""
    spark.sparkContext.setLocalProperty(_POOL, "bolts")
    try:
        yield
    finally:
        # Its annotation does not say so, but None takes a property away.
        spark.sparkContext.setLocalProperty(_POOL, None)  # type: ignore[arg-type]


def _is_death(error: Py4JError | PySparkException) -> bool:
    """Whether a job failed since a Python process died, and not by an exception in it."""
    said = str(error)
    with contextlib.suppress(AttributeError):
        said += str(error.java_exception)  # type: ignore[union-attr]
    return any(died in said for died in _DIED)
