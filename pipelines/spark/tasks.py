"""Work in Spark's tasks that needs no plan of Spark's; and the first, by which Python is there."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
from typing import TYPE_CHECKING, Any, Final

from sequitur.errors import PipelineError, ReorderError
from sequitur.pipelines.spark.partition_blocks import blocks_of
from sequitur.pipelines.spark_settings import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    T = TypeVar("T")


_FIRST_TASKS: Final = 2
_SMALL_BYTES: Final = 32 << 20
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception): .*)$", re.MULTILINE)

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


def is_small(reads: int) -> bool:
    """Return whether work that reads so many bytes of files is done by the driver itself.

    A round of Spark's tasks takes longer, and more of the machine, than to read a little.
    """
    return reads <= _SMALL_BYTES


def blocks_for(spark: SparkSession, partitions: int, *, is_here: bool) -> list[range]:
    """Return the blocks of partitions that work is done by: one where the driver does it itself."""
    return [range(partitions)] if is_here else blocks_of(partitions, parallelism(spark))


def in_blocks(
    spark: SparkSession, task: Callable[[range], T], partitions: int, *, reads: int
) -> list[T]:
    """Run a task for each block of partitions, and give their answers in order."""
    is_here = is_small(reads)
    blocks = blocks_for(spark, partitions, is_here=is_here)
    if is_here:
        return [done_here(lambda: task(blocks[0]))]
    return each_partition(spark, lambda number: task(blocks[number]), len(blocks))


def done_here(task: Callable[[], T]) -> T:
    """Do the work of a task in the driver itself, and give its answer."""
    try:
        return task()
    except PipelineError:
        raise
    except Exception as error:
        raise ReorderError(f"{type(error).__name__}: {error}") from error


def all_of(
    spark: SparkSession, tasks: Sequence[Callable[[], T]], *, is_here: bool = False
) -> list[T]:
    """Run tasks, and give their answers in order."""
    if is_here:
        return [task() for task in tasks]
    return each_partition(spark, lambda number: tasks[number](), len(tasks))


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
