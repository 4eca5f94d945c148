"""A look at the workers of a cluster, beside the job: can they do its tasks?

The driver does small batches by itself. So a job on a cluster may run for weeks without a task, and
would then end at its first large batch: for a package that workers lack, for another user, or for a
checkpoint that they do not reach. As many tasks as there are slots look for these at the start, and
again as long as executors join. An executor that joins later is looked at by its first task.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from sequitur.errors import CheckpointError, ReorderError
from sequitur.pipelines.spark.tasks import each_partition, reason_of, text_of
from sequitur.pipelines.spark_settings import is_local
from sequitur.pipelines.store.storage import new_folder, open_file, write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from sequitur.pipelines.store.storage import Location, Storage

_FOLDER: Final = "looks"
_DRIVERS: Final = "driver"
_MODULES: Final = ("rows.run_writer", "rows.selection", "sink.sink", "topology.batch")
"""What tasks are made of."""
_JOINING_S: Final = 30.0
_EACH_S: Final = 1.0
_END_S: Final = 5.0
_NO_PYTHON: Final = ("PythonException", "Cannot run program")
"""What Spark says where Python on a worker cannot do a task, and never will."""


@dataclass(frozen=True, slots=True)
class Look:
    """A task that looks at where it runs, as other tasks would use it."""

    folder: Location
    token: bytes

    def __call__(self, _number: int) -> str | None:
        """Return why tasks cannot work here; None if they can."""
        for name in _MODULES:
            importlib.import_module(f"sequitur.pipelines.{name}")
        where = f"{self.folder.parent.parent} on the worker {socket.gethostname()!r}"
        try:
            with open_file(self.folder / _DRIVERS) as file:
                is_the_drivers = file.read() == self.token
            if is_the_drivers:
                write_new(self.folder / uuid4().hex, b"")
                return None
        except FileNotFoundError:
            pass
        except PermissionError as error:
            return f"{where}: {error}"
        except CheckpointError as error:
            return str(error)
        return (
            f"{where} is not the folder that the driver has there: give the job a checkpoint that "
            "the driver and all workers reach by the same name (docs/deploy.md)"
        )


class WorkerLook:
    """The driver's part: has tasks look, and keeps why they cannot work.

    Args:
        storage: Where the job's checkpoint is, which it has claimed by the first look.
        slots: Returns how many tasks run at once on the executors that are there.
        run: Runs so many tasks, and gives their answers.
    """

    def __init__(
        self,
        storage: Storage,
        slots: Callable[[], int],
        run: Callable[[Look, int], Sequence[str | None]],
    ) -> None:
        self.failure: ReorderError | None = None
        self._storage = storage
        self._slots = slots
        self._run = run

    @classmethod
    def by_spark(cls, spark: SparkSession, storage: Storage) -> Self:
        context: Any = spark.sparkContext

        def slots() -> int:
            found = context._jsc.sc().statusStore().executorList(True)  # noqa: SLF001 - Java's alone
            executors = (found.apply(number) for number in range(found.size()))
            return sum(one.totalCores() for one in executors if one.id() != _DRIVERS)

        return cls(storage, slots, lambda look, tasks: each_partition(spark, look, tasks))

    @contextlib.contextmanager
    def beside(self, spark: SparkSession) -> Iterator[None]:
        """Look while the block runs, on a cluster only: one machine runs tasks as this process."""
        context: Any = spark.sparkContext
        if is_local(str(context.master)):
            yield
            return
        tag, ended = f"look-{uuid4().hex}", threading.Event()

        def watch() -> None:
            # The job meets any other error, too, and reports it.
            with contextlib.suppress(Exception):
                context.addJobTag(tag)
                self.look(ended.wait, time.monotonic)

        looking = threading.Thread(target=watch, name="look at the workers", daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            with contextlib.suppress(Exception):
                context.cancelJobsWithTag(tag)
            looking.join(_END_S)

    def look(self, wait: Callable[[float], bool], clock: Callable[[], float]) -> None:
        """Look until no more executors join, or a wait says that the job is over."""
        self._storage.delete(_FOLDER)  # a killed life may have left it
        token = uuid4().hex
        folder = self._storage.location(_FOLDER) / token
        new_folder(folder)
        write_new(folder / _DRIVERS, token.encode())
        looked, until_s = 0, math.inf
        try:
            while self.failure is None:
                slots = self._slots()
                if slots > looked or not looked:
                    looked = max(1, slots)
                    self._ask(Look(folder, token.encode()), looked)
                    until_s = min(until_s, clock() + _JOINING_S)
                if clock() >= until_s or wait(_EACH_S):
                    return
        finally:
            self._storage.delete(_FOLDER)

    def _ask(self, look: Look, tasks: int) -> None:
        try:
            found = next(filter(None, self._run(look, tasks)), None)
        except (PySparkException, Py4JJavaError) as error:
            # Other errors of a task, such as a lost executor, may pass.
            if any(said in text_of(error) for said in _NO_PYTHON):
                self.failure = ReorderError(f"Spark gave up: {reason_of(error)}")
        else:
            self.failure = None if found is None else CheckpointError(found)
