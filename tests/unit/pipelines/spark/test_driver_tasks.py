"""How many tasks work has, and small work that the driver does itself, as tasks would."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkException

from sequitur.errors import FencedError, ReorderError
from sequitur.pipelines.spark.tasks import each_partition, errors_in_utf8, reason_of
from sequitur.pipelines.workers import in_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.pipelines.workers import Workers

_NOBODY = cast("Workers", None)


def test_small_work_is_one_block() -> None:
    """No round of Spark's tasks is needed for it."""
    assert in_blocks(_NOBODY, list, 3, reads=1000) == [[0, 1, 2]]


def test_no_work_is_no_round_of_tasks() -> None:
    """Spark cannot divide nothing."""
    assert each_partition(cast("Any", None), int, 0) == []


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


_WITHIN_JAVA = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most \
recent failure: Lost task 0.3 in stage 0.0 (TID 6) (127.0.0.1 executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1991, in main
    process()
ValueError: an earlier one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "bolts.py", line 3, in load
    raise BadTableError(text)
bolts.BadTableError: {said}

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:1)
"""


@pytest.mark.promise("process-modules-beside")
@pytest.mark.parametrize(
    "said",
    ["no table", "two tables:\n  a: 3 rows\n\nb: 4 rows", "long " + "x" * 20_000, "a: b.c: d"],
)
def test_the_cause_of_a_task_s_failure_is_told_whole(said: str) -> None:
    """Without the stacks of Python, Java and Spark around it."""
    told = reason_of(PySparkException(_WITHIN_JAVA.format(said=said)))
    assert told == f"BadTableError: {said}"


class _Java:
    """Stands for an exception of Java's."""

    def __init__(self, said: str, cause: _Java | None = None) -> None:
        self.toString = lambda: said
        self.getCause = lambda: cause


def test_the_cause_of_an_error_of_java_is_told_whole() -> None:
    """What it was raised from, too, and each text once."""
    root = _Java("java.io.IOException: no space\nleft")
    middle = _Java(
        "org.apache.spark.SparkException: Task failed: java.io.IOException: no space\nleft", root
    )
    error = PySparkException("called o1.start")
    vars(error)["java_exception"] = _Java(
        "KafkaException: no consumer\n\tat a.B.c(B.java:1)", middle
    )
    assert reason_of(error) == (
        "KafkaException: no consumer; caused by org.apache.spark.SparkException: Task failed: "
        "java.io.IOException: no space\nleft"
    )


_OF_A_DAEMON = """Job aborted due to stage failure: Lost task 0.3: \
org.apache.spark.SparkException: \

Error from python worker:
  Traceback (most recent call last):
    File "<frozen runpy>", line 198, in _run_module_as_main
{frames}
  {raised}
PYTHONPATH was:
  /site/pyspark.zip:{folder}
org.apache.spark.SparkException: EOFException occurred while reading the port number from \
pyspark.daemon's stdout.
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:357)
"""


@pytest.mark.promise("process-modules-beside")
@pytest.mark.parametrize(
    ("file", "frames", "raised"),
    [
        ("random.py", "", "ImportError: cannot import name 'Random' from 'random' (there)"),
        ("types.py", "", "AttributeError: module 'types' has no attribute 'FunctionType'"),
        ("logging/__init__.py", "", "ModuleNotFoundError: No module named 'logging.config'"),
        ("socket.py", '    File "{folder}/socket.py", line 1, in <module>', "KeyError: 'HOME'"),
        ("numpy.py", "", "AttributeError: module 'numpy' has no attribute 'dtype'"),
        (
            "json.py",
            '    File "{folder}/json.py", line 1\n      def (\n',
            "SyntaxError: invalid syntax",
        ),
    ],
)
def test_a_module_that_hides_another_is_named(
    tmp_path: Path, file: str, frames: str, raised: str
) -> None:
    """Where Python does not even start, or a task fails of it."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    said = _OF_A_DAEMON.format(
        frames=frames.format(folder=tmp_path), raised=raised, folder=tmp_path
    )
    name = file.removesuffix("/__init__.py").removesuffix(".py")
    told = f"{raised}. {tmp_path / file} hides the module {name!r}: rename it"
    assert reason_of(PySparkException(said)) == told


def test_no_other_module_is_blamed(tmp_path: Path) -> None:
    """A module of one's own hides nothing; nor does one that the error does not name."""
    for name in ("random", "mine"):
        (tmp_path / f"{name}.py").touch()
    raised = "ImportError: cannot import name 'shape' from 'mine' (there)"
    said = _OF_A_DAEMON.format(frames="", raised=raised, folder=tmp_path)
    assert reason_of(PySparkException(said)) == raised


def test_package_that_workers_lack_is_told_with_what_to_do() -> None:
    """Not as the error of a task, whose traceback is about pickles."""
    error = PySparkException(
        "Job aborted: Traceback (most recent call last):\n"
        "    return cloudpickle.loads(obj, encoding=encoding)\n"
        "ModuleNotFoundError: No module named 'sequitur.pipelines'\n"
    )
    assert reason_of(error).startswith("Python on the workers has no package 'sequitur': install")


@pytest.mark.promise("process-text-no-utf-8")
def test_error_of_a_task_is_sent_as_utf_8() -> None:
    """Spark's Python process would end without a word, as if an event had killed it."""
    with pytest.raises(ReorderError) as raised, errors_in_utf8():
        raise FencedError("another job runs") from ValueError("half \ud83d")
    said = "".join(traceback.format_exception(raised.value)).encode().decode()
    assert "ValueError: half \\ud83d" in said
    assert reason_of(PySparkException(said)) == "FencedError: another job runs"
    with pytest.raises(KeyError, match="as it is"), errors_in_utf8():
        raise KeyError("as it is")
