"""Work in Spark's tasks that needs no plan of Spark's: one task for each output partition."""

from __future__ import annotations

import gc
import re
from typing import TYPE_CHECKING, Final

from sequitur.pipelines.spark.partition_blocks import blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    T = TypeVar("T")


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

    Args:
        spark: The session.
        task: Gets the number of its partition; it is pickled, and so is its answer.
        partitions: How many there are.
    """

    def settled(number: int) -> T:
        answer = task(number)
        settle()
        return answer

    return spark.sparkContext.parallelize(range(partitions), partitions).map(settled).collect()


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once."""
    return spark.sparkContext.defaultParallelism


def in_blocks(spark: SparkSession, task: Callable[[range], T], partitions: int) -> list[T]:
    """Run a task for each block of partitions, and give their answers in order.

    Args:
        spark: The session.
        task: Gets the partitions of its block; it is pickled, and so is its answer.
        partitions: How many there are.
    """
    blocks = blocks_of(partitions, parallelism(spark))
    return each_partition(spark, lambda number: task(blocks[number]), len(blocks))


def all_of(spark: SparkSession, tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run tasks side by side, and give their answers in order; as `each_partition`."""
    return each_partition(spark, lambda number: tasks[number](), len(tasks))


def reason_of(error: PySparkException | Py4JJavaError) -> str:
    """Return a task's error, out of the traceback that Spark makes of it."""
    said = str(error).strip()
    raised = _RAISED.findall(said)
    return str(raised[-1]) if raised else said.partition("\n")[0]
