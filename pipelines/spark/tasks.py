"""Spark's tasks as the `Workers` of a step, and the first tasks, which start Python early."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext, SparkFiles, TaskContext
from pyspark.errors import PySparkException

from sequitur.base.text import encodable
from sequitur.errors import ReorderError, TopologyTaskError
from sequitur.pipelines._stop import StopRequestedError, calling_at_stop
from sequitur.pipelines.attempts import begin_attempt
from sequitur.pipelines.python_path import SAFE_PATH, hand_on_path, hiding_module
from sequitur.pipelines.spark_settings import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from pyspark.sql import SparkSession

    T = TypeVar("T")


_FIRST_TASKS: Final = 2
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")
_TRACEBACK: Final = re.compile(
    r"^(?P<margin>[ \t]*)(?:\S.*)?Traceback \(most recent call last\):$", re.MULTILINE
)
_STACK: Final = re.compile(r"\n(?:\tat |\s*(?:Driver|JVM) stacktrace:|=== Streaming Query ===)")
"""Where what was raised ends, and what Java and Spark put behind it begins."""
_PATH: Final = re.compile(r"^PYTHONPATH was:\n\s*(.*)$", re.MULTILINE)
_QUALIFIED: Final = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")

_DIED: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure")
_POOL: Final = "spark.scheduler.pool"
_DESCRIPTION: Final = "spark.job.description"
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
        hand_on_path()
        begin_attempt(TaskContext.get().attemptNumber())  # type: ignore[union-attr] # in a task
        with errors_in_utf8():
            answer = task(number)
        settle()
        return answer

    if not partitions:  # Spark cannot divide nothing
        return []
    return spark.sparkContext.parallelize(range(partitions), partitions).map(settled).collect()


@contextlib.contextmanager
def errors_in_utf8() -> Iterator[None]:
    """Replace an error of the block whose traceback UTF-8 cannot hold by its text.

    Spark's Python process sends the driver the traceback as UTF-8. Where that fails it ends without
    a word, which looks as if an event had killed it.
    """
    try:
        yield
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        if encodable(told) == told:
            raise
        raise ReorderError(encodable(told)) from None


def parallelism(spark: SparkSession) -> int:
    return spark.sparkContext.defaultParallelism


class SparkWorkers:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        return parallelism(self._spark)

    @property
    def processes_a_host(self) -> int:
        context: Any = self._spark.sparkContext
        status = context._jsc.sc().statusTracker()  # noqa: SLF001 - Python's has no executors
        hosts = [one.host() for one in status.getExecutorInfos()]
        if len(hosts) > 1:  # one of them is the driver, which runs no tasks beside executors
            hosts.remove(context.getConf().get("spark.driver.host", hosts[0]))
        return -(-self.parallelism // len(set(hosts)))

    @property
    def master(self) -> str:
        return str(self._spark.sparkContext.master)

    def run(
        self, tasks: Sequence[Callable[[], T]], *, retries: bool = True, title: str | None = None
    ) -> list[T]:
        del retries  # `spark.task.maxFailures` is the session's
        with contextlib.nullcontext() if title is None else self._titled(title):
            return each_partition(self._spark, lambda number: tasks[number](), len(tasks))

    @contextlib.contextmanager
    def _titled(self, title: str) -> Iterator[None]:
        """While the block runs, show a title beside this thread's jobs on Spark's pages."""
        context = self._spark.sparkContext
        before: Any = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, title)
        try:
            yield
        finally:
            context.setLocalProperty(_DESCRIPTION, before)

    def reason_of(self, error: Exception) -> str | None:
        return reason_of(error) if isinstance(error, PySparkException | Py4JJavaError) else None

    def is_death(self, error: Exception) -> bool:
        said = str(error)
        with contextlib.suppress(AttributeError):
            said += str(error.java_exception)  # type: ignore[attr-defined]
        return any(died in said for died in _DIED)

    @contextlib.contextmanager
    def beside_reading(self) -> Iterator[None]:
        self._spark.sparkContext.setLocalProperty(_POOL, "bolts")
        try:
            yield
        finally:
            # The annotation does not say so, but None removes a property.
            self._spark.sparkContext.setLocalProperty(_POOL, None)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def ended_at(
        self, is_stopping: Callable[[], bool], grace_s: float = _GRACE_S
    ) -> Iterator[None]:
        context, tag = self._spark.sparkContext, f"once-{uuid4().hex}"
        is_cancelled = threading.Event()

        def cancel() -> None:
            is_cancelled.set()
            context.cancelJobsWithTag(tag)

        context.addJobTag(tag)
        context.setInterruptOnCancel(True)
        try:
            with calling_at_stop(is_stopping, grace_s, cancel):
                yield
        except (TopologyTaskError, Py4JError, PySparkException) as error:
            if is_cancelled.is_set():
                raise StopRequestedError from error
            raise
        finally:
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
    # It only saves time: a real task meets any error of it too, and the job reports that.
    with contextlib.suppress(Exception):
        each_partition(spark, lambda _: None, _FIRST_TASKS)


def reason_of(error: Exception) -> str:
    """Return why Spark or a task failed, whole, without the stacks around it."""
    said = "\n".join(_messages(error))
    reason = _raised(said)
    if reason is None:
        reason = ""
        for one in _messages(error):
            told = _STACK.split(one, maxsplit=1)[0].strip()
            if told not in reason:
                reason += f"; caused by {told}" if reason else told
    hiding = hiding_module(said, _searched_first(said))
    if hiding is not None:
        return f"{reason}. {hiding} hides the module {_module_name(hiding)!r}: rename it"
    missing = _NO_MODULE.match(reason)
    if missing is None:
        return reason
    return (
        f"Python on the workers has no package {missing[1]!r}: install there what the driver has, "
        "in the same versions, or ship it by --py-files or spark.archives (docs/deploy.md)"
    )


def _messages(error: Any) -> Iterator[str]:
    """Yield the messages of a Spark error and of its causes, from the outermost on."""
    java = getattr(error, "java_exception", None)
    yield str(error) if java is None else str(java.toString())
    while java is not None and (java := java.getCause()) is not None:
        yield str(java.toString())
    if (cause := getattr(error, "_cause", None)) is not None:
        yield from _messages(cause)


def _raised(said: str) -> str | None:
    """Return what Python raised, from the last traceback in a text; None without one."""
    tracebacks = [*_TRACEBACK.finditer(said)]
    if not tracebacks:
        return None
    margin, behind = tracebacks[-1]["margin"], said[tracebacks[-1].end() + 1 :]
    lines = itertools.dropwhile(lambda line: line.startswith(f"{margin} "), behind.split("\n"))
    raised = itertools.takewhile(lambda line: not line or line.startswith(margin), lines)
    text = "\n".join(line.removeprefix(margin) for line in raised)
    return _QUALIFIED.sub("", _STACK.split(text, maxsplit=1)[0].strip())


def _searched_first(said: str) -> list[str]:
    """Return where a task's Python looks for modules before its own folders."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - nothing else tells of it
    is_safe = context is not None and context.environment.get(SAFE_PATH)
    shipped = [] if context is None else [SparkFiles.getRootDirectory()]
    path = f"{os.environ.get('PYTHONPATH', '')}:{':'.join(_PATH.findall(said))}"
    return [*([] if is_safe else [str(Path.cwd())]), *shipped, *filter(None, path.split(":"))]


def _module_name(path: Path) -> str:
    return path.parent.name if path.stem == "__init__" else path.stem


def text_of(error: Any) -> str:
    """Return the messages, stack traces and causes of a Spark error."""
    parts: list[str] = []
    while error is not None:
        parts += [str(error), str(getattr(error, "_stackTrace", None) or "")]
        error = getattr(error, "_cause", None)
    return "\n".join(parts)
