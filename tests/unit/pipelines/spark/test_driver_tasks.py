"""Small work that the driver does itself, as tasks would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkException

from sequitur.pipelines._errors import FencedError, ReorderError
from sequitur.pipelines.spark.tasks import in_blocks, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_SESSION = cast("SparkSession", None)


def test_small_work_is_one_block() -> None:
    """No round of Spark's tasks is needed for it."""
    assert in_blocks(_NO_SESSION, list, 3, reads=1000) == [[0, 1, 2]]


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
        in_blocks(_NO_SESSION, failing, 3, reads=1000)
    assert raised.value.__cause__ is error


def test_errors_that_have_a_name_keep_it() -> None:
    """They say more."""

    def fenced(_block: range) -> Any:
        raise FencedError("a newer life")

    with pytest.raises(FencedError):
        in_blocks(_NO_SESSION, fenced, 3, reads=1000)


def test_package_that_workers_lack_is_told_with_what_to_do() -> None:
    """Not as the error of a task, whose traceback is about pickles."""
    error = PySparkException(
        "Job aborted: Traceback (most recent call last):\n"
        "    return cloudpickle.loads(obj, encoding=encoding)\n"
        "ModuleNotFoundError: No module named 'sequitur.pipelines'\n"
    )
    assert reason_of(error).startswith("Python on the workers has no package 'sequitur': install")
