"""Steps one after the other: staged, logged, done; and events that are tried again."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from sequitur.consumer import StepKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer import EventClock, StagedStep, StepEntry
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.newest_step import NewestStep
    from sequitur.pipelines.ordering.step_outputs import StepOutputs
    from sequitur.pipelines.ordering.steps import Steps
    from sequitur.pipelines.topology.processing import Processing


class StopRequestedError(Exception):
    """A batch that was about to begin gives way to a stop. Spark repeats it at the next start."""


class StepRunner:
    """Runs steps.

    Steps are staged by whoever holds the engine's lock. They are finished by the thread of
    `StagedSteps`, and where that has nothing to do by whoever holds the lock.
    """

    def __init__(
        self,
        job: JobContext,
        newest: NewestStep,
        steps: Steps,
        outputs: StepOutputs,
        processing: Processing | None,
    ) -> None:
        self._is_resetting = False
        self._job = job
        self._newest = newest
        self._steps = steps
        self._outputs = outputs
        self._processing = processing
        self._begun_s: dict[int, float] = {}

    def settled(self) -> StepEntry | None:
        """Return the newest step if it is done and Spark will not repeat its batch."""
        if self._is_resetting and self._newest.is_done:
            return self._newest.entry
        return self._newest.settled()

    @contextlib.contextmanager
    def resetting(self) -> Iterator[None]:
        """While the block runs, Spark's part is about to begin again: it repeats no batch."""
        self._is_resetting = True
        try:
            yield
        finally:
            self._is_resetting = False

    def begin(self, step: int) -> None:
        """Count the time of a step from now on."""
        self._begun_s[step] = time.monotonic()

    def run(self, staged: StagedStep) -> None:
        """Log a step, and finish it; all before it are done."""
        self._newest.stage(staged)
        self.finish_staged(staged)

    def finish_staged(self, staged: StagedStep) -> None:
        """Decide what becomes of a staged step, the first that is not done; log and finish it."""
        with self._naming_lost_files():
            entry = self._steps.decide(staged)
        self._newest.log(entry)
        self.finish(entry)

    def finish(self, entry: StepEntry) -> None:
        """Write the outputs of a logged step, account for them, and mark the step as done."""
        begun_s = self._begun_s.pop(entry.step, time.monotonic())
        with self._naming_lost_files():
            done = self._outputs.write(entry, self._newest.done, begun_s)
        self._newest.mark_done(done)
        self._job.on_done(entry, done)

    @contextlib.contextmanager
    def _naming_lost_files(self) -> Iterator[None]:
        """Where the block fails, and a file is gone that the log names, say which."""
        try:
            yield
        except Exception:
            self._newest.check_files()
            raise

    def finish_all(self) -> None:
        """Finish the step that is logged and those that are staged behind it."""
        entry = self._newest.entry
        if entry is not None and not self._newest.is_entry_done:
            self.finish(entry)
        for staged in self._newest.staged:
            self.finish_staged(staged)

    def run_quiet(self, kind: StepKind, before: StepEntry, clock: EventClock, now_ms: int) -> bool:
        """Run a step without new rows if there is something for it to do; whether there was."""
        self.begin(before.step + 1)
        staged = self._steps.quiet(kind, before, clock, now_ms, is_due=self.is_process_due)
        if staged is not None:
            self.run(staged)
        return staged is not None

    def is_process_due(self, now_ms: int) -> bool:
        """Tell whether bolts are to be given an event again, or a tick."""
        if self._processing is None:
            return False
        due = (self._processing.due_ms(now_ms), self._processing.tick_due_ms)
        return any(due_ms is not None and due_ms <= now_ms for due_ms in due)

    def wait_for_room(self, wait: Callable[[float], bool]) -> None:
        """Try events again, and read no new ones, while too many wait.

        Args:
            wait: Waits for so many seconds; whether it is to be given up.

        Raises:
            StopRequestedError: It was given up.
        """
        processing = self._processing
        while processing is not None and processing.is_full:
            if not self.try_again(wait):
                return

    def try_again(self, wait: Callable[[float], bool]) -> bool:
        """Wait until an event is due again, and process it; whether there was one.

        Args:
            wait: Waits for so many seconds; whether it is to be given up.

        Raises:
            StopRequestedError: It was given up.
        """
        before, now_ms = self.settled(), self._job.now_ms()
        due_ms = None if self._processing is None else self._processing.due_ms(now_ms)
        if before is None or due_ms is None:
            return False
        if wait(max(0, due_ms - now_ms) / 1000):
            raise StopRequestedError
        self.run_quiet(StepKind.TICK, before, before.clock, self._job.now_ms())
        return True
