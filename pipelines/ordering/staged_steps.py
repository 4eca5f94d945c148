"""Steps that are staged, finished one after the other beside the reading of the next.

While one step's rows go out, or its bolts wait, the next batch is read and staged. A step that is
staged is on disk: if the driver dies, its next life finishes it, though Spark never gives its rows
again. So what a batch costs Spark is its staging alone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from sequitur.pipelines._stop import StopRequestedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sequitur.consumer import StagedStep
    from sequitur.pipelines.ordering.newest_step import NewestStep
    from sequitur.pipelines.ordering.step_runner import StepRunner

_LOOK_S: Final = 0.1


class StagedSteps:
    """Finishes staged steps in their order, in a thread of its own."""

    def __init__(self, newest: NewestStep, runner: StepRunner) -> None:
        self.error: Exception | None = None
        self._newest = newest
        self._runner = runner
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_at_work = False
        self._is_closing = False

    @property
    def is_idle(self) -> bool:
        """Whether all steps are done, and nothing is left to do behind their done marks.

        Commit tokens are renewed there: no other step may write meanwhile.
        """
        return self._newest.is_done and not self._is_at_work

    def add(self, staged: StagedStep) -> None:
        """Log a staged step, and have it finished once all before it are."""
        self._newest.stage(staged)
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="steps", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.notify_all()

    def wait_for_room(self, is_stopping: Callable[[], bool]) -> None:
        """Return once another step may be staged."""
        self._wait(lambda: self._newest.undone <= self._runner.most_waiting, is_stopping)

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
        self._runner.close()

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
                self._runner.finish_staged(staged)
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
            while not self._newest.staged:
                if self._is_closing:
                    return None
                self._changed.wait()
            self._is_at_work = True
            return self._newest.staged[0]
