"""Steps one after the other: staged, logged, done; and events that are tried again."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sequitur.consumer import StepKind
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.steps_ahead import StepsAhead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer import EventClock, StagedStep, StepEntry
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.newest_step import NewestStep
    from sequitur.pipelines.ordering.step_outputs import StepOutputs
    from sequitur.pipelines.ordering.steps import Steps
    from sequitur.pipelines.store.files import Location
    from sequitur.pipelines.topology.processed import Processed
    from sequitur.pipelines.topology.processing import Processing, StepAhead


_MOST_WAITING: Final = 1
"""Steps that wait for the one before them: what is staged and not out takes memory and disk."""


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
        self._ahead = StepsAhead(
            newest, 0 if processing is None else processing.most_ahead, self._process_ahead
        )
        self._begun_s: dict[int, float] = {}

    @property
    def most_waiting(self) -> int:
        """How many staged steps may wait for the one before them."""
        most_ahead = 0 if self._processing is None else self._processing.most_ahead
        return max(_MOST_WAITING, most_ahead)

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
        ahead = self._ahead.take(staged)
        with self._naming_lost_files():
            if ahead is None:
                entry = self._steps.decide(staged)
            else:
                entry = replace(ahead.entry, before=self._newest.done.totals)
        self._newest.log(entry)
        self.finish(entry, ahead)

    def finish(self, entry: StepEntry, ahead: StepAhead | None = None) -> None:
        """Write the outputs of a logged step, account for them, and mark the step as done."""
        begun_s = self._begun_s.pop(entry.step, time.monotonic())
        if self._job.subscription is not None:
            self._job.subscription.confirm()

        def committing(processed: Processed, *, is_again: bool) -> None:
            if is_again:
                self._ahead.drop()
            self._ahead.go_on_behind(entry, processed)

        with self._naming_lost_files():
            try:
                done = self._outputs.write(entry, self._newest.done, begun_s, ahead, committing)
            except BaseException:
                self._ahead.drop()
                raise
        self._newest.mark_done(done)
        self.acknowledge()
        self._outputs.step_is_done(entry)
        self._job.on_done(entry, done)

    def acknowledge(self) -> None:
        """Ack what has left the job with the newest step, if that is done."""
        subscription, entry = self._job.subscription, self._newest.entry
        if subscription is None or entry is None or not self._newest.is_entry_done:
            return
        waiting: tuple[Location, ...] = ()
        transactions = (0, "")
        if self._processing is not None:
            waiting, transactions = self._processing.waiting, self._processing.transactions
        subscription.step_is_done(
            self._job.checkpoint,
            entry,
            waiting=waiting,
            transactions=transactions,
            now_ms=self._job.now_ms(),
        )

    def close(self) -> None:
        """End what is done ahead; to be called when no more steps are finished."""
        self._ahead.close()

    def _process_ahead(
        self, staged: StagedStep, before: StepEntry, processed: Processed
    ) -> StepAhead | None:
        """Decide a staged step whose turn is not yet, and process it."""
        assert self._processing is not None
        entry = self._steps.decide(staged, before)
        return self._processing.process_ahead(entry, self._outputs.due(entry), processed)

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

    def drain(self) -> bool:
        """Release everything held; whether anything was. More steps than one stop at cuts."""
        is_any = False
        while (entry := self.settled()) is not None and entry.live_runs:
            clock = self._steps.drained(entry)
            if clock.frontier_ms == entry.frontier_ms:
                break
            is_any |= self.run_quiet(StepKind.DRAIN, entry, clock, self._job.now_ms())
        return is_any

    def is_process_due(self, now_ms: int) -> bool:
        """Tell whether bolts are to be given an event again, or a tick."""
        if self._processing is None:
            return False
        due = (self._processing.due_ms(now_ms), self._processing.tick_due_ms)
        return any(due_ms is not None and due_ms <= now_ms for due_ms in due)

    def wait_for_room(self, wait: Callable[[float], bool]) -> None:
        """Try events again, and read no new ones, while too many wait."""
        processing = self._processing
        while processing is not None and processing.is_full:
            if not self.try_again(wait):
                return

    def try_again(self, wait: Callable[[float], bool]) -> bool:
        """Wait until an event is due again, and process it; whether there was one."""
        before, now_ms = self.settled(), self._job.now_ms()
        due_ms = None if self._processing is None else self._processing.due_ms(now_ms)
        if before is None or due_ms is None:
            return False
        if wait(max(0, due_ms - now_ms) / 1000):
            raise StopRequestedError
        self.run_quiet(StepKind.TICK, before, before.clock, self._job.now_ms())
        return True
