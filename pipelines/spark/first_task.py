"""A task that does nothing, so that Python runs by the time the first real one comes."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

_TASKS: Final = 2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession


def start_python(spark: SparkSession) -> threading.Thread | None:
    """Have Spark start the Python processes of tasks, while the job asks brokers and plans.

    The imports of the first task take some seconds, in which a core would else wait. Only with a
    local master: on a cluster it is not known yet which machine has the first task.

    Args:
        spark: The session.

    Returns:
        The thread that waits for it; None where there is nothing to be gained.
    """
    if not str(spark.sparkContext.master).startswith("local"):
        return None
    thread = threading.Thread(target=_run_task, args=(spark,), name="first task", daemon=True)
    thread.start()
    return thread


def _run_task(spark: SparkSession) -> None:
    # It only saves time: whatever it meets, a real task meets too, and that is told.
    with contextlib.suppress(Exception):
        spark.sparkContext.parallelize(range(_TASKS), _TASKS).foreachPartition(_nothing)


def _nothing(_numbers: Iterable[int]) -> None:
    pass
