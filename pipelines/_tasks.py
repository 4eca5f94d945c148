"""Work in Spark's tasks that needs no plan of Spark's: one task for each output partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from pyspark.sql import SparkSession

    T = TypeVar("T")


def each_partition(spark: SparkSession, task: Callable[[int], T], partitions: int) -> list[T]:
    """Run a task for each partition, and give their answers in order.

    Like any of Spark's, a task may be run again, or by two machines at once.

    Args:
        spark: The session.
        task: Gets the number of its partition; it is pickled, and so is its answer.
        partitions: How many there are.
    """
    numbers = spark.sparkContext.parallelize(range(partitions), partitions)
    return numbers.map(task).collect()
