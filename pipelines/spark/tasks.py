"""Spark's tasks as the `Workers` of a step; and the first of them, by which Python is there."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from sequitur.errors import TopologyTaskError
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.spark.partition_blocks import blocks_of
from sequitur.pipelines.spark_settings import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from pyspark.sql import DataFrame, SparkSession

    T = TypeVar("T")


_FIRST_TASKS: Final = 2
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .*)$", re.MULTILINE)

_DIED: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure")
_POOL: Final = "spark.scheduler.pool"
_LOOK_S: Final = 0.2
_GRACE_S: Final = 5.0
"""A commit takes less; one that a database holds up is repeated by the next start."""

_settled = False


def settle() -> None:
    """Have the garbage collector pass over all imports; to be called in a task.

    Spark has each Python process collect its garbage after each task, and with Arrow and NumPy
    loaded that takes 20 ms, which is more than a small task does.
    """
    global _settled  # noqa: PLW0603 - a process is settled once
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True


def each_partition(spark: SparkSession, task: Callable[[int], T], partitions: int) -> list[T]:
    """Run a task for each partition, and give their answers in order.

    Like any of Spark's, a task may be run again, or by two machines at once.
    """

    def settled(number: int) -> T:
        answer = task(number)
        settle()
        return answer

    return spark.sparkContext.parallelize(range(partitions), partitions).map(settled).collect()


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once."""
    return spark.sparkContext.defaultParallelism


def in_few_tasks(rows: DataFrame, partitions: int) -> DataFrame:
    """Have tasks read several partitions of Kafka's each, where there are more than few a core.

    Spark has a task for each of them, and a task costs more than a partition with few rows.
    """
    tasks = len(blocks_of(partitions, parallelism(rows.sparkSession)))
    return rows.coalesce(tasks) if tasks < partitions else rows


class SparkWorkers:
    """The tasks of a session; see `Workers`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        """See `Workers`."""
        return parallelism(self._spark)

    @property
    def master(self) -> str:
        """See `Workers`."""
        return str(self._spark.sparkContext.master)

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """See `Workers`."""
        return each_partition(self._spark, lambda number: tasks[number](), len(tasks))

    def reason_of(self, error: Exception) -> str | None:
        """See `Workers`."""
        return reason_of(error) if isinstance(error, PySparkException | Py4JJavaError) else None

    def is_death(self, error: Exception) -> bool:
        """See `Workers`."""
        said = str(error)
        with contextlib.suppress(AttributeError):
            said += str(error.java_exception)  # type: ignore[attr-defined]
        return any(died in said for died in _DIED)

    @contextlib.contextmanager
    def beside_reading(self) -> Iterator[None]:
        """See `Workers`."""
        self._spark.sparkContext.setLocalProperty(_POOL, "bolts")
        try:
            yield
        finally:
            # Its annotation does not say so, but None takes a property away.
            self._spark.sparkContext.setLocalProperty(_POOL, None)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def ended_at(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """See `Workers`."""
        context, tag = self._spark.sparkContext, f"once-{uuid4().hex}"
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


def start_python(spark: SparkSession) -> threading.Thread | None:
    """Have Spark start the Python processes of tasks, while the job asks brokers and plans.

    The imports of the first task take some seconds, in which a core would else wait. Only with a
    local master: on a cluster it is not known yet which machine has the first task.
    """
    if not is_local(str(spark.sparkContext.master)):
        return None
    thread = threading.Thread(target=_run_task, args=(spark,), name="first task", daemon=True)
    thread.start()
    return thread


def _run_task(spark: SparkSession) -> None:
    # It only saves time: whatever it meets, a real task meets too, and that is told.
    with contextlib.suppress(Exception):
        each_partition(spark, lambda _: None, _FIRST_TASKS)


def reason_of(error: PySparkException | Py4JJavaError) -> str:
    """Return a task's error, out of the traceback that Spark makes of it."""
    said = str(error).strip()
    raised = _RAISED.findall(said)
    reason = str(raised[-1]) if raised else said.partition("\n")[0]
    missing = _NO_MODULE.match(reason)
    if missing is None:
        return reason
    return (
        f"Python on the workers has no package {missing[1]!r}: install there what the driver has, "
        "in the same versions, or ship it by --py-files or spark.archives (docs/operations.md)"
    )


def text_of(error: Any) -> str:
    """Return the messages, stack traces and causes of an error of Spark's."""
    parts: list[str] = []
    while error is not None:
        parts += [str(error), str(getattr(error, "_stackTrace", None) or "")]
        error = getattr(error, "_cause", None)
    return "\n".join(parts)
