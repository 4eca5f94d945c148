"""The thread that finishes staged steps while the next batch is read and staged.

While the rows of a step go out, or its bolts wait, the next batch is read and staged. A staged step
is on disk: if the driver dies, its next life finishes the step, though the runner never gives its
rows again. So a batch costs the runner no more than its staging.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from sequitur.pipelines._stop import StopRequestedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sequitur.consumer.reorder.step_log import StagedStep
    from sequitur.pipelines.ordering.logged_steps import LoggedSteps
    from sequitur.pipelines.ordering.step import Steps


_LOOK_S: Final = 0.1


class Finisher:
    """Finishes staged batches in their order, in a thread of its own.

    A step without new rows is staged and finished by the thread that runs it, and for a moment the
    log shows it as staged. So this thread takes only steps that `add` has named.
    """

    def __init__(self, log: LoggedSteps, steps: Steps) -> None:
        self.error: Exception | None = None
        self._added = -1  # number of the newest step that `add` has named
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

    def add(self, staged: StagedStep) -> None:
        """Finish a staged step once all steps before it are done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="steps", daemon=True)
            self._thread.start()
        with self._changed:
            self._added = staged.step
            self._changed.notify_all()

    def wait_for_room(self, is_stopping: Callable[[], bool]) -> None:
        """Return once another step may be staged."""
        self._wait(lambda: self._log.undone <= self._steps.most_waiting, is_stopping)

    def wait_until_idle(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self._wait(lambda: self.is_idle, is_stopping)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Run steps in the caller's thread; where one fails, it is the last of this life.

        The step may be logged and not done. A step that is logged after it would count it as done.
        """
        try:
            yield
        except Exception as error:
            self.error = error
            raise

    def close(self) -> None:
        """Let the staged steps end; call it when no more are added."""
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
        """Wait for an added step; None once there is none and the thread is to end."""
        with self._changed:
            while not (staged := self._log.staged) or staged[0].step > self._added:
                if self._is_closing:
                    return None
                self._changed.wait()
            self._is_at_work = True
            return staged[0]
