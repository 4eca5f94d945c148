"""The steps of a job as its checkpoint has them: staged, logged, done, committed."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.step_log import StepDone, StepEntry, StepKind
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER
from sequitur.pipelines.store.step_folder import LogEnd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.consumer.reorder.step_log import StagedStep, Step
    from sequitur.pipelines.store.checkpoint import Checkpoint


class LoggedSteps(LogEnd[StepEntry, StepDone]):
    """The newest logged step, the steps staged after it, and the newest done mark.

    They are as on disk. One thread stages steps, and one logs them and marks them as done.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self._checkpoint = checkpoint
        self._lasting: tuple[str, int] | None = None
        self._is_resetting = False
        self._lock = threading.Lock()
        self.staged = checkpoint.staged(self.entry)

    @property
    def head(self) -> Step | None:
        """The newest step, staged or logged; None before the first."""
        staged = self.staged
        return staged[-1] if staged else self.entry

    @property
    def is_done(self) -> bool:
        return not self.staged and self.is_entry_done

    @property
    def undone(self) -> int:
        """Number of staged steps that are not done."""
        return len(self.staged) + (not self.is_entry_done)

    @property
    def holding(self) -> tuple[Run, ...]:
        """Runs that may hold rows once all steps so far are done, each once."""
        with self._lock:
            staged, entry = self.staged, self.entry
        own = tuple(one.run for one in staged if one.run is not None)
        return own if entry is None else (*entry.runs, *own)

    @property
    def plans_folder(self) -> str:
        """Name of the folder with plans and commits, as Spark's own checkpoint has them."""
        head = self.head
        return FIRST_SPARK_FOLDER if head is None else head.source

    @property
    def frontier_ms(self) -> int:
        """The frontier; `BEFORE_ALL_TIME_MS` before it first moves."""
        return BEFORE_ALL_TIME_MS if self.entry is None else self.entry.frontier_ms

    def partitions_sent(self, topic: str) -> int:
        """Return how many partitions of a topic the done steps used; 0 if none."""
        found = (self.done.sent or {}).get("topics", {}).get(topic)
        return 0 if found is None else len(found[1])

    def check_files(self) -> None:
        """Check that all files are there that unfinished steps have to read."""
        if self.entry is not None:
            self._checkpoint.check_whole(self.entry, is_done=self.is_entry_done)
        self._checkpoint.check_files(*(one.run for one in self.staged if one.run is not None))

    def write_staged(self, staged: StagedStep, *, is_run_synced: bool = True) -> None:
        self._checkpoint.write_staged(staged, is_run_synced=is_run_synced)
        with self._lock:
            self.staged = (*self.staged, staged)

    def write_entry(self, entry: StepEntry) -> None:
        self._checkpoint.write_entry(entry)
        with self._lock:
            # In this order: another thread must not find all steps done between the two.
            self.entry = entry
            self.staged = tuple(one for one in self.staged if one.step > entry.step)

    @contextlib.contextmanager
    def resetting(self) -> Iterator[None]:
        """Treat the newest step as settled while the block runs: Spark's part begins again then."""
        self._is_resetting = True
        try:
            yield
        finally:
            self._is_resetting = False

    def settled(self) -> StepEntry | None:
        """Return the newest step; None if steps are not done or Spark may repeat its batch."""
        entry = self.entry
        if entry is None or not self.is_done:
            return None
        if self._is_resetting:
            return entry
        # A tick follows a committed batch, so its commit need not be looked up.
        if entry.kind is not StepKind.BATCH or entry.batch_id < 0:
            return entry
        if not self._checkpoint.spark.is_committed(entry.source, entry.batch_id):
            return None
        if self._lasting != (batch := (entry.source, entry.batch_id)):
            self._checkpoint.spark.make_commit_last(*batch)
            self._lasting = batch
        return entry
