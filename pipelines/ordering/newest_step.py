"""The newest step of a checkpoint, and how far it has got: logged, done, committed by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import BEFORE_ALL_TIME_MS, StepKind
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER

if TYPE_CHECKING:
    from sequitur.consumer import StepDone, StepEntry
    from sequitur.pipelines.store.checkpoint import Checkpoint


class NewestStep:
    """The newest step and the newest done mark, as on disk.

    Its one writer is the engine, under its lock.

    Args:
        checkpoint: The job's folder, claimed already.

    Attributes:
        entry: The newest step; None before the first.
        done: The newest step that is done, with all counts.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._lasting: tuple[str, int] | None = None
        self.entry, self.done = checkpoint.latest()

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is left to write."""
        return self.entry is None or self.done.step >= self.entry.step

    @property
    def source(self) -> str:
        """Name of the folder with Spark's own checkpoint."""
        return FIRST_SPARK_FOLDER if self.entry is None else self.entry.source

    @property
    def frontier_ms(self) -> int:
        """The frontier; `BEFORE_ALL_TIME_MS` before it first moves."""
        return BEFORE_ALL_TIME_MS if self.entry is None else self.entry.frontier_ms

    def log(self, entry: StepEntry) -> None:
        """Log what the next step decided."""
        self._checkpoint.write_entry(entry)
        self.entry = entry

    def mark_done(self, done: StepDone) -> None:
        """Mark the newest step as done."""
        self._checkpoint.write_done(done)
        self.done = done

    def settled(self) -> StepEntry | None:
        """Return the newest step if it is done and Spark will not repeat its batch."""
        entry = self.entry
        if entry is None or not self.is_done:
            return None
        # A tick follows a committed batch, so only a batch has to be looked up.
        if entry.kind is not StepKind.BATCH:
            return entry
        if not self._checkpoint.spark.is_committed(entry.source, entry.batch_id):
            return None
        if self._lasting != (batch := (entry.source, entry.batch_id)):
            self._checkpoint.spark.make_commit_last(*batch)
            self._lasting = batch
        return entry
