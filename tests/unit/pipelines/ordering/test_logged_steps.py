"""What is known of the newest steps, while one thread stages and another one logs."""

from __future__ import annotations

import contextlib
import errno
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import (
    NOTHING_DONE,
    StagedStep,
    StepDone,
    StepEntry,
    StepKind,
    Totals,
)
from sequitur.pipelines.ordering.logged_steps import LoggedSteps
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUN = Run(0, 1, 5, 5, size_bytes=100, name="run")
_STAGED = StagedStep(
    step=0,
    kind=StepKind.BATCH,
    batch_id=0,
    previous_frontier_ms=0,
    clock=EventClock(),
    run=_RUN,
)
_ENTRY = StepEntry(
    step=0,
    kind=StepKind.BATCH,
    batch_id=0,
    previous_frontier_ms=0,
    clock=EventClock(),
    counts=Totals(),
    runs=(_RUN,),
    before=Totals(),
    logged_ms=0,
)


class _Folder:
    """A checkpoint in which a step is staged."""

    def latest(self) -> tuple[None, StepDone]:
        return None, NOTHING_DONE

    def staged(self, _entry: None) -> tuple[StagedStep, ...]:
        return (_STAGED,)

    def write_entry(self, entry: StepEntry) -> None:
        """As `Checkpoint`."""

    def write_done(self, _done: StepDone) -> None:
        """The disk is full."""
        raise OSError(errno.ENOSPC, "No space left on device")


class _Asked(LoggedSteps):
    """Another thread asks which runs hold rows while a step is taken from staged to logged."""

    def __init__(self, checkpoint: Any, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.answer: Future[tuple[Run, ...]] | None = None
        super().__init__(checkpoint)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "entry" and value is not None:
            self.answer = self._pool.submit(lambda: self.holding)
            with contextlib.suppress(TimeoutError):
                self.answer.result(0.2)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


@pytest.mark.promise("order-partition-far-behind")
def test_a_run_counts_once_while_its_step_is_logged(pool: ThreadPoolExecutor) -> None:
    """Counted twice, its bytes would be more than may be held, and rows be called late for it."""
    log = _Asked(_Folder(), pool)
    assert log.holding == (_RUN,)
    log.write_entry(_ENTRY)
    assert log.answer is not None
    assert log.answer.result(PATIENCE_S) == log.holding == (_RUN,)


def test_a_step_whose_mark_is_not_written_is_not_done() -> None:
    """What follows from a done step is not undone: acks, and files that no step needs."""
    folder: Any = _Folder()
    log = LoggedSteps(folder)
    log.write_entry(_ENTRY)
    with pytest.raises(OSError, match="No space left"):
        log.mark_done(StepDone(0, Totals()))
    assert log.done == NOTHING_DONE
    assert not log.is_entry_done
