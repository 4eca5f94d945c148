"""What a job of one's own is given of a step: its ordered rows, and an id to write them by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Final, Self, TypeAlias
from uuid import uuid4

from sequitur.errors import StepFunctionError
from sequitur.pipelines.rows.columns import SOURCE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from sequitur.consumer import StepEntry
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.rows.release import Selection
    from sequitur.pipelines.store.checkpoint import Checkpoint

ORDERED_COLUMNS: Final = ("event_time_ms", *SOURCE_COLUMNS)
_DOCUMENT: Final = "given.json"


@dataclass(frozen=True, slots=True)
class OrderedStep:
    """The rows that a step has released, in their order.

    A step is given again, with the same id and the same rows in the same order, unless the job has
    noted that the function returned. Its number grows from step to step; steps without rows are
    left out.

    Attributes:
        id: Names the step in whatever it is written to: `<app>/<checkpoint>/<step>`. No other step
            has it, of this job or of one with another checkpoint.
        step: Number of the step.
        frontier_ms: Event time, epoch ms, up to which all rows on time are given with this step.
        partitions: How many partitions the output topic has.
    """

    id: str
    step: int
    frontier_ms: int
    partitions: int
    _due: Selection = field(repr=False)

    def tables(self, partition: int) -> Iterator[pa.Table]:
        """Return the rows of a partition of the output topic, some at a time.

        They are read as they are asked for, which has to be within the call, at most 65,536 rows a
        table. From the first table to the last they are in the order of (event_time_ms, topic,
        partition, offset). All rows with one key are in one partition, but where the topic has
        gained partitions: then those up to an event time are in one, and later ones in one.

        Args:
            partition: From 0.

        Returns:
            Tables of these columns: event_time_ms (int64), and of the record that was read: topic
            (string), partition (int32), offset (int64), timestamp_ms (int64), key (binary, may be
            null), value (binary, may be null), headers (list of structs of key and value, may be
            null).

        Raises:
            IndexError: There is no such partition.
        """
        if not 0 <= partition < self.partitions:
            raise IndexError(f"partition {partition}: there are {self.partitions}, from 0")
        return (some for some in self._due.tables(partition, ORDERED_COLUMNS) if len(some))


StepFunction: TypeAlias = Callable[[OrderedStep], object]
"""Is given each step that has released rows, in the driver, one after the other."""


class GivenSteps:
    """Gives steps to a function."""

    def __init__(
        self, function: StepFunction, checkpoint: Checkpoint, *, app: str, partitions: int
    ) -> None:
        self._function = function
        self._checkpoint = checkpoint
        self._app = app
        self._partitions = partitions
        self._id: str | None = None

    @classmethod
    def of(cls, job: JobContext, partitions: int) -> Self | None:
        """Return what gives a job's steps; None without a function."""
        if job.on_step is None:
            return None
        return cls(job.on_step, job.checkpoint, app=job.settings.app_name, partitions=partitions)

    def give(self, entry: StepEntry, due: Selection) -> None:
        """Give a step, whose rows are in the output topic."""
        if self._id is None:
            self._id = self._checkpoint_id()
        name = f"{self._app}/{self._id}/{entry.step}"
        step = OrderedStep(name, entry.step, entry.frontier_ms, self._partitions, due)
        try:
            self._function(step)
        except BaseException as error:
            # One that ends a thread would leave the job waiting for it for ever; a Ctrl-C is not
            # the function's, and comes to the main thread alone.
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise
            raise StepFunctionError(
                f"step {entry.step}: on_step raised {error!r}; the next start gives the "
                f"step again, as {name!r}"
            ) from error

    def _checkpoint_id(self) -> str:
        """Names the checkpoint, wherever it is moved to: another one counts steps from 0, too."""
        found = self._checkpoint.read_document(_DOCUMENT, lambda document: str(document["id"]))
        if found is None:
            found = uuid4().hex[:12]
            self._checkpoint.write_document(_DOCUMENT, {"id": found})
        return found
