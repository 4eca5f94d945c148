"""A cluster without room: a job that has no executor says so, and does not wait for one to end.

Spark itself waits without a word for whatever the cluster will give, and so does each caller that
waits for Spark: a batch without a running task would hold back an orderly end for as long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.spark_settings import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession


_LOOKS_EACH_S: Final = 0.5
_TOLD_AFTER_S: Final = 10.0
_TOLD_EACH_S: Final = 60.0
_GIVEN_UP_AFTER_S: Final = 2.0
"""How long a job that is to end waits for an executor; one may be about to come."""


class Finding(NamedTuple):
    """Result of a look: a line for the log, and whether waiting work is given up."""

    line: str | None = None
    gives_up: bool = False


class Shortage:
    """How long a job has had no executor, and what follows from that."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._since_s: float | None = None
        self._tell_s = 0.0
        self._stopping_since_s: float | None = None
        self._is_told = False

    def look(self, now_s: float, *, is_short: bool, is_stopping: bool) -> Finding:
        if not is_short:
            since_s, is_told = self._since_s, self._is_told
            self._since_s, self._stopping_since_s, self._is_told = None, None, False
            if is_told and since_s is not None:
                return Finding(f"executors are there, after {now_s - since_s:.0f} s")
            return Finding()
        if self._since_s is None:
            self._since_s, self._tell_s = now_s, now_s + _TOLD_AFTER_S
        line = None
        if now_s >= self._tell_s:
            self._tell_s, self._is_told = now_s + _TOLD_EACH_S, True
            line = f"no executor yet: 0 cores granted, {self._asked}: is there room on the cluster?"
        if is_stopping and self._stopping_since_s is None:
            self._stopping_since_s = now_s
        stopping_s = 0.0 if self._stopping_since_s is None else now_s - self._stopping_since_s
        return Finding(line, gives_up=stopping_s >= _GIVEN_UP_AFTER_S)


def asked_of(settings: Mapping[str, str]) -> str:
    cores = settings.get("spark.executor.cores")
    asked = settings.get("spark.cores.max")
    if asked is None and (executors := settings.get("spark.executor.instances")) is not None:
        asked = str(int(executors) * int(cores or 1))
    each = f"{settings.get('spark.executor.memory', '1g')} of memory"
    if cores is not None:
        each += f" and {cores} cores"
    return f"{asked or 'all there are'} asked, {each} for each executor"


@contextlib.contextmanager
def watched_executors(
    spark: SparkSession, stop: threading.Event, tell: Callable[[str], object]
) -> Iterator[None]:
    """While the block runs, tell when it waits for executors; once it is to stop, end that wait.

    The wait is ended by cancelling the session's jobs. None of them has a running task then.
    """
    if is_local(str(spark.sparkContext.master)):
        yield
        return
    ended, given_up = threading.Event(), threading.Event()

    def watch() -> None:
        context: Any = spark.sparkContext
        shortage = Shortage(asked_of(dict(context.getConf().getAll())))
        # The job meets any error of this thread too, and reports it.
        with contextlib.suppress(Exception):
            while not ended.wait(_LOOKS_EACH_S):
                verdict = shortage.look(
                    time.monotonic(), is_short=_is_short(context), is_stopping=stop.is_set()
                )
                if verdict.line is not None:
                    tell(verdict.line)
                if verdict.gives_up:
                    given_up.set()
                    context.cancelAllJobs()

    watcher = threading.Thread(target=watch, name="executors", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if given_up.is_set() and _is_of_spark(error):
            raise StopRequestedError from error
        raise
    finally:
        ended.set()
        watcher.join()


def _is_short(context: Any) -> bool:
    """Tell whether there is no executor while one is waited for."""
    if context._jsc.sc().getExecutorMemoryStatus().size() > 1:  # noqa: SLF001 - the driver is one
        return False
    is_dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    return not is_dynamic or bool(context.statusTracker().getActiveJobsIds())


def _is_of_spark(error: BaseException | None) -> bool:
    """Tell whether Spark raised an error, or one of its causes."""
    while error is not None:
        if isinstance(error, Py4JError | PySparkException):
            return True
        error = error.__cause__ or error.__context__
    return False
