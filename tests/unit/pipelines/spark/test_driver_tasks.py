"""How many tasks work has, and small work that the driver does itself, as tasks would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkException

from sequitur.errors import FencedError, ReorderError
from sequitur.pipelines.spark.tasks import in_few_tasks, reason_of
from sequitur.pipelines.workers import in_blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sequitur.pipelines.workers import Workers

_NOBODY = cast("Workers", None)


def test_small_work_is_one_block() -> None:
    """No round of Spark's tasks is needed for it."""
    assert in_blocks(_NOBODY, list, 3, reads=1000) == [[0, 1, 2]]


class _Rows:
    """Stand for rows that Spark reads from so many partitions, on two cores."""

    sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))  # noqa: N815 - Spark's name

    def __init__(self, partitions: int) -> None:
        self.tasks = partitions

    def coalesce(self, tasks: int) -> _Rows:
        return _Rows(tasks)


@pytest.mark.promise("order-input-partitions-rows")
@pytest.mark.parametrize(("partitions", "tasks"), [(0, 0), (4, 4), (14, 14), (16, 8), (1000, 8)])
def test_rows_of_many_partitions_are_read_by_few_tasks(partitions: int, tasks: int) -> None:
    """Spark has one for each, and a thousand of them take minutes."""
    rows: Any = in_few_tasks(cast("DataFrame", _Rows(partitions)), partitions)
    assert rows.tasks == tasks


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device"), "OSError: .*No space left on device"),
        (ValueError("a damaged file"), "ValueError: a damaged file"),
    ],
)
def test_what_the_driver_fails_of_ends_the_job_by_name(error: Exception, told: str) -> None:
    """Where a task would fail of it, Spark's error says the same in one line, and no traceback."""

    def failing(_block: range) -> Any:
        raise error

    with pytest.raises(ReorderError, match=told) as raised:
        in_blocks(_NOBODY, failing, 3, reads=1000)
    assert raised.value.__cause__ is error


def test_errors_that_have_a_name_keep_it() -> None:

    def fenced(_block: range) -> Any:
        raise FencedError("a newer life")

    with pytest.raises(FencedError):
        in_blocks(_NOBODY, fenced, 3, reads=1000)


def test_package_that_workers_lack_is_told_with_what_to_do() -> None:
    """Not as the error of a task, whose traceback is about pickles."""
    error = PySparkException(
        "Job aborted: Traceback (most recent call last):\n"
        "    return cloudpickle.loads(obj, encoding=encoding)\n"
        "ModuleNotFoundError: No module named 'sequitur.pipelines'\n"
    )
    assert reason_of(error).startswith("Python on the workers has no package 'sequitur': install")
