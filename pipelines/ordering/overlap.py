"""Steps that overlap: the next batch is read, and others are processed, while one goes out.

While one step's rows go out, or its bolts wait, the next batch is read and staged. A step that is
staged is on disk: if the driver dies, its next life finishes it, though Spark never gives its rows
again. So what a batch costs Spark is its staging alone.

Of a transactional topology the processing phases of several steps may be under way beside the
commit phase of one. What is done ahead is in memory, and in files that no document names: it counts
once it is the step's turn. Where a step before it fails, it is done again.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from sequitur.pipelines._stop import StopRequestedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer import StagedStep, StepEntry
    from sequitur.pipelines.ordering.step import Steps
    from sequitur.pipelines.ordering.step_log import StepLog
    from sequitur.pipelines.topology.processed import Processed
    from sequitur.pipelines.topology.processing import StepAhead

_LOOK_S: Final = 0.1
_LOOK_AHEAD_S: Final = 0.05


class Finisher:
    """Finishes staged steps in their order, in a thread of its own."""

    def __init__(self, log: StepLog, steps: Steps) -> None:
        self.error: Exception | None = None
        self._log = log
        self._steps = steps
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_at_work = False
        self._is_closing = False

    @property
    def is_idle(self) -> bool:
        """Whether all steps are done, and nothing is left to do behind their done marks.

        Commit tokens are renewed there: no other step may write meanwhile.
        """
        return self._log.is_done and not self._is_at_work

    def wake(self) -> None:
        """Have a step finished that was staged, once all before it are."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="steps", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.notify_all()

    def wait_for_room(self, is_stopping: Callable[[], bool]) -> None:
        """Return once another step may be staged."""
        self._wait(lambda: self._log.undone <= self._steps.most_waiting, is_stopping)

    def wait_until_idle(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Return once all steps are done; see `wait_for_room`."""
        self._wait(lambda: self.is_idle, is_stopping)

    def close(self) -> None:
        """Let the steps that are staged end; to be called when no more are added."""
        if self._thread is not None:
            with self._changed:
                self._is_closing = True
                self._changed.notify_all()
            self._thread.join()
            self._thread = None
            self._is_closing = False
        self._steps.close()

    def _wait(self, is_over: Callable[[], bool], is_stopping: Callable[[], bool]) -> None:
        with self._changed:
            while not is_over():
                if self.error is not None:
                    raise self.error
                if is_stopping():
                    raise StopRequestedError
                self._changed.wait(_LOOK_S)
            if self.error is not None:
                raise self.error

    def _finish(self) -> None:
        while (staged := self._next()) is not None:
            try:
                self._steps.finish_step(staged)
            except Exception as error:  # noqa: BLE001 - the query's thread raises it
                self.error = error
            with self._changed:
                self._is_at_work = False
                self._changed.notify_all()
            if self.error is not None:
                return

    def _next(self) -> StagedStep | None:
        """Wait for a staged step; None when there is none and none will come."""
        with self._changed:
            while not self._log.staged:
                if self._is_closing:
                    return None
                self._changed.wait()
            self._is_at_work = True
            return self._log.staged[0]


class StepsAhead:
    """Processes staged steps ahead of their turn, in a thread of its own."""

    def __init__(
        self,
        log: StepLog,
        most: int,
        process: Callable[[StagedStep, StepEntry, Processed], StepAhead | None],
    ) -> None:
        self._log = log
        self._most = most
        self._process = process
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._head: tuple[StepEntry, Processed] | None = None
        self._ready: deque[StepAhead] = deque()
        self._busy: int | None = None
        self._generation = 0

    def go_on_behind(self, entry: StepEntry, processed: Processed) -> None:
        """Process the steps behind one that is about to be committed."""
        if not self._most:
            return
        with self._changed:
            if self._thread is None:
                self._is_closing = False
                self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
                self._thread.start()
            if self._head is None:
                self._head = entry, processed
            self._changed.notify_all()

    def take(self, staged: StagedStep) -> StepAhead | None:
        """Return what was made of a step whose turn it is; None if it is to be done now."""
        with self._changed:
            while self._busy == staged.step:
                self._changed.wait()
            if self._ready and self._ready[0].entry.step == staged.step:
                found = self._ready.popleft()
                self._changed.notify_all()
                return found
            self._forget()
            return None

    def drop(self) -> None:
        """Forget all that is ahead: a step before it has failed, and may come to something else."""
        with self._changed:
            self._forget()

    def close(self) -> None:
        """End once the step that is in work is processed; forget all that is ahead."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._is_closing = True
            self._forget()
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _forget(self) -> None:
        self._generation += 1
        self._head = None
        self._ready.clear()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            staged, entry, processed, generation = found
            made = None
            try:
                made = self._process(staged, entry, processed)
            except Exception:  # noqa: BLE001 - it fails again when it is its turn, and is told then
                made = None
            with self._changed:
                self._busy = None
                if generation == self._generation:
                    if made is None:
                        self._head = None
                    else:
                        self._ready.append(made)
                        self._head = made.entry, made.processed
                self._changed.notify_all()

    def _next(self) -> tuple[StagedStep, StepEntry, Processed, int] | None:
        """Wait for a step that may be processed; None when there will be none."""
        with self._changed:
            while not self._is_closing:
                if self._head is not None and len(self._ready) < self._most:
                    entry, processed = self._head
                    behind = entry.step + 1
                    staged = next((one for one in self._log.staged if one.step == behind), None)
                    if staged is not None:
                        self._busy = behind
                        return staged, entry, processed, self._generation
                self._changed.wait(_LOOK_AHEAD_S)
            return None
