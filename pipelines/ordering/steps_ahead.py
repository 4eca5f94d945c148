"""The thread that processes staged steps of a transactional topology before their turn.

The processing phases of several steps may run beside the commit phase of one. Their results are in
memory, and in files that no document names: they count once it is the step's turn. If a step before
them fails, they are processed again.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer.reorder.step_log import StagedStep, StepEntry
    from sequitur.pipelines.ordering.logged_steps import LoggedSteps
    from sequitur.pipelines.topology.processed import Processed
    from sequitur.pipelines.topology.processing import StepAhead


_LOOK_S: Final = 0.05


class StepsAhead:
    """Processes staged steps ahead of their turn, in a thread of its own."""

    def __init__(
        self,
        log: LoggedSteps,
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
        """Return the result of a step whose turn it is; None if it has to be processed now."""
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
        """Forget all results: a step before them failed, and its repeat may differ."""
        with self._changed:
            self._forget()

    def close(self) -> None:
        """End once the running step is processed, and forget all results."""
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
            except Exception:  # noqa: BLE001 - it fails again when it is its turn
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
        """Wait for a step that may be processed; None once the thread is to end."""
        with self._changed:
            while not self._is_closing:
                if self._head is not None and len(self._ready) < self._most:
                    entry, processed = self._head
                    behind = entry.step + 1
                    staged = next((one for one in self._log.staged if one.step == behind), None)
                    if staged is not None:
                        self._busy = behind
                        return staged, entry, processed, self._generation
                self._changed.wait(_LOOK_S)
            return None
