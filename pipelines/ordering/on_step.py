"""Calls the user's function `on_step` with each step that has released rows."""

from __future__ import annotations

from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from sequitur.errors import StepFunctionError
from sequitur.pipelines.ordering.ordered_step import OrderedStep

if TYPE_CHECKING:
    from sequitur.consumer.reorder.step_log import StepEntry
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.store.checkpoint import Checkpoint


_DOCUMENT: Final = "given.json"


class OnStep:
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
        """Return the calls of a job; None without a function."""
        if job.on_step is None:
            return None
        return cls(job.on_step, job.checkpoint, app=job.settings.app_name, partitions=partitions)

    def call(self, entry: StepEntry, due: Selection) -> None:
        if self._id is None:
            self._id = self._checkpoint_id()
        name = f"{self._app}/{self._id}/{entry.step}"
        step = OrderedStep(name, entry.step, entry.frontier_ms, self._partitions, due)
        try:
            self._function(step)
        except BaseException as error:
            # An error that ends the thread would leave the job waiting for ever. A Ctrl-C is not
            # the function's error, and comes to the main thread alone.
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise
            raise StepFunctionError(
                f"step {entry.step}: on_step raised {error!r}. The next start calls it with the "
                f"same step, as {name!r}"
            ) from error

    def _checkpoint_id(self) -> str:
        """Return the id of the checkpoint, which it keeps when it is moved.

        Without it a step of another checkpoint would have the same name.
        """
        found = self._checkpoint.read_document(_DOCUMENT, lambda document: str(document["id"]))
        if found is None:
            found = uuid4().hex[:12]
            self._checkpoint.write_document(_DOCUMENT, {"id": found})
        return found
