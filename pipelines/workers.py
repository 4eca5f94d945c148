"""What runs the tasks of a step: Spark, processes of this machine, or this process.

Work in blocks of output partitions, that needs no plan of Spark's. Where there is little of it, the
driver does it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sequitur.base.text import named
from sequitur.errors import PipelineError, ReorderError
from sequitur.pipelines.spark.partition_blocks import blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
_SMALL_BYTES: Final = 32 << 20


class Workers(Protocol):
    @property
    def parallelism(self) -> int:
        """How many run at once."""

    @property
    def processes_a_host(self) -> int:
        """How many processes with tasks a host has."""

    @property
    def master(self) -> str:
        """Where tasks run, as Spark names a master."""

    def run(
        self, tasks: Sequence[Callable[[], T]], *, retries: bool = True, title: str | None = None
    ) -> list[T]:
        """Run tasks, and give their answers in order.

        They are pickled. One may be run again, or by two machines at once.

        Args:
            tasks: The tasks.
            retries: Whether a task whose process has died is run again before all of them fail. It
                is False where the caller itself looks for what kills the process. Spark goes by its
                own settings.
            title: What they do, for Spark's pages.
        """

    def reason_of(self, error: Exception) -> str | None:
        """Return why a task failed; None if the error is not from tasks."""

    def is_death(self, error: Exception) -> bool:
        """Tell whether tasks failed because a process died, and not by an exception in it."""

    def beside_reading(self) -> contextlib.AbstractContextManager[None]:
        """While the block runs, share slots fairly with the tasks that read the next batch."""

    def ended_at(
        self, is_stopping: Callable[[], bool], grace_s: float = ...
    ) -> contextlib.AbstractContextManager[None]:
        """End what the block runs, some time after the job is asked to stop.

        Raises:
            StopRequestedError: It was ended so.
        """


def is_small(reads: int) -> bool:
    """Return whether work that reads so many bytes of files is done by the driver itself.

    A round of Spark's tasks takes longer, and more of the machine, than to read a little.
    """
    return reads <= _SMALL_BYTES


def blocks_for(workers: Workers, partitions: int, *, is_here: bool) -> list[range]:
    """Return the blocks of partitions for some work: one if the driver does the work."""
    return [range(partitions)] if is_here else blocks_of(partitions, workers.parallelism)


def in_blocks(
    workers: Workers, task: Callable[[range], T], partitions: int, *, reads: int
) -> list[T]:
    """Run a task for each block of partitions; return their answers in order."""
    is_here = is_small(reads)
    blocks = blocks_for(workers, partitions, is_here=is_here)
    if is_here:
        return [done_here(lambda: task(blocks[0]))]
    return workers.run([functools.partial(task, block) for block in blocks])


def done_here(task: Callable[[], T]) -> T:
    """Do the work of a task in the driver; return its answer."""
    try:
        return task()
    except PipelineError:
        raise
    except Exception as error:
        raise ReorderError(named(error)) from error


def all_of(workers: Workers, tasks: Sequence[Callable[[], T]], *, is_here: bool = False) -> list[T]:
    """Run tasks; return their answers in order."""
    return [task() for task in tasks] if is_here else workers.run(tasks)


class ThisProcess:
    """Runs tasks one after the other in this process, pickled as for others."""

    def __init__(self, pickled: Callable[[Any], Any], parallelism: int = 2) -> None:
        self._pickled = pickled
        self.parallelism = parallelism
        self.processes_a_host = 1
        self.master = "local"

    def run(
        self, tasks: Sequence[Callable[[], T]], *, retries: bool = True, title: str | None = None
    ) -> list[T]:
        del retries, title
        return [self._pickled(task)() for task in tasks]

    def reason_of(self, error: Exception) -> str | None:
        return None if isinstance(error, PipelineError) else named(error)

    def is_death(self, error: Exception) -> bool:
        """Return False: if the process of a task died, this one would too."""
        del error
        return False

    def beside_reading(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def ended_at(
        self, is_stopping: Callable[[], bool], grace_s: float = 0
    ) -> contextlib.AbstractContextManager[None]:
        """Do nothing: the block ends by itself."""
        del is_stopping, grace_s
        return contextlib.nullcontext()
