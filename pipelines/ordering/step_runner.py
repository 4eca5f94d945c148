"""Steps one after the other: logged, finished, marked as done; and events that are tried again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sequitur.consumer import StepKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer import EventClock, StepDone, StepEntry
    from sequitur.pipelines.ordering.newest_step import NewestStep
    from sequitur.pipelines.ordering.step_outputs import StepOutputs
    from sequitur.pipelines.ordering.steps import Steps
    from sequitur.pipelines.topology.processing import Processing


class StopRequestedError(Exception):
    """A batch that was about to begin gives way to a stop. Spark repeats it at the next start."""


class StepRunner:
    """Runs steps; whoever calls it holds the engine's lock.

    Args:
        newest: The newest step; written here alone.
        steps: Works out what a step decides.
        outputs: Writes what it sends out.
        processing: A topology that is given what steps release; None without one.
        now_ms: The wall clock.
        on_step: Told of each step once it is done.

    Attributes:
        is_resetting: Whether Spark's part is about to begin again, so that it repeats no batch.
    """

    def __init__(
        self,
        newest: NewestStep,
        steps: Steps,
        outputs: StepOutputs,
        *,
        processing: Processing | None,
        now_ms: Callable[[], int],
        on_step: Callable[[StepEntry, StepDone], None],
    ) -> None:
        self.is_resetting = False
        self._newest = newest
        self._steps = steps
        self._outputs = outputs
        self._processing = processing
        self._now_ms = now_ms
        self._on_step = on_step
        self._begun_s = time.monotonic()

    def begin(self) -> None:
        """Count the time of a step from now on."""
        self._begun_s = time.monotonic()

    def settled(self) -> StepEntry | None:
        """Return the newest step if it is done and Spark will not repeat its batch."""
        if self.is_resetting and self._newest.is_done:
            return self._newest.entry
        return self._newest.settled()

    def run(self, entry: StepEntry) -> None:
        """Log a step, and finish it."""
        self._newest.log(entry)
        self.finish(entry)

    def finish(self, entry: StepEntry) -> None:
        """Write the outputs of a logged step, account for them, and mark the step as done."""
        done = self._outputs.write(entry, self._newest.done, self._begun_s)
        self._newest.mark_done(done)
        self._outputs.step_is_done(entry.step)
        self._on_step(entry, done)

    def run_quiet(self, kind: StepKind, before: StepEntry, clock: EventClock, now_ms: int) -> bool:
        """Run a step without new rows if there is something for it to do; whether there was.

        Args:
            kind: What made it.
            before: The newest step.
            clock: The clocks after it.
            now_ms: Wall-clock time.
        """
        entry = self._steps.quiet(kind, before, clock, now_ms, is_due=self.is_process_due)
        if entry is not None:
            self.run(entry)
        return entry is not None

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
        before, now_ms = self.settled(), self._now_ms()
        due_ms = None if self._processing is None else self._processing.due_ms(now_ms)
        if before is None or due_ms is None:
            return False
        if wait(max(0, due_ms - now_ms) / 1000):
            raise StopRequestedError
        self.begin()
        self.run_quiet(StepKind.TICK, before, before.clock, self._now_ms())
        return True
