"""Staged steps are finished one after the other, beside the staging of the next."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Waiting
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.step_log import StagedStep, StepKind
from sequitur.pipelines._stop import StopRequestedError
from sequitur.pipelines.ordering.finisher import Finisher
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


def _step(number: int) -> StagedStep:
    return StagedStep(
        step=number,
        kind=StepKind.BATCH,
        batch_id=number,
        previous_frontier_ms=0,
        clock=EventClock(),
    )


class _Steps:
    """`LoggedSteps` and `Steps` in one; a step is finished when the test lets it."""

    def __init__(self) -> None:
        self.staged: tuple[StagedStep, ...] = ()
        self.finished: list[int] = []
        self.may_finish = threading.Semaphore(0)
        self.is_marked = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: Exception | None = None

    @property
    def undone(self) -> int:
        return len(self.staged)

    @property
    def is_done(self) -> bool:
        return not self.staged

    most_waiting = 1

    def close(self) -> None:
        """As `Steps`."""

    def stage(self, staged: StagedStep) -> None:
        self.staged = (*self.staged, staged)

    def finish_step(self, staged: StagedStep) -> None:
        assert self.may_finish.acquire(timeout=PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.finished.append(staged.step)
        self.staged = self.staged[1:]
        self.is_marked.set()
        assert self.may_end.wait(PATIENCE_S)


@pytest.fixture
def steps() -> _Steps:
    return _Steps()


@pytest.fixture
def queue(steps: _Steps) -> Iterator[Finisher]:
    both: Any = steps
    found = Finisher(both, both)
    yield found
    for _ in range(10):
        steps.may_finish.release()
    found.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


def test_one_step_waits_behind_the_one_at_work(
    steps: _Steps, queue: Finisher, pool: ThreadPoolExecutor
) -> None:
    """A third is not staged before the first is done."""
    for number in (0, 1):
        queue.wait_for_room(lambda: False)
        steps.stage(_step(number))
        queue.add(_step(number))
    waiting = pool.submit(queue.wait_for_room, lambda: False)
    with pytest.raises(Waiting):
        waiting.result(0.3)
    steps.may_finish.release()
    waiting.result(PATIENCE_S)
    assert steps.finished == [0]
    steps.stage(_step(2))
    queue.add(_step(2))
    steps.may_finish.release(2)
    queue.wait_until_idle()
    assert steps.finished == [0, 1, 2]


@pytest.mark.promise("order-mark-written-tick")
def test_what_follows_a_done_mark_is_waited_for(
    steps: _Steps, queue: Finisher, pool: ThreadPoolExecutor
) -> None:
    """What the job tells of the step: a tick that wrote meanwhile would be told of before it."""
    steps.may_end.clear()
    steps.stage(_step(0))
    queue.add(_step(0))
    steps.may_finish.release()
    assert steps.is_marked.wait(PATIENCE_S)
    assert steps.is_done
    assert not queue.is_idle
    waiting = pool.submit(queue.wait_until_idle)
    with pytest.raises(Waiting):
        waiting.result(0.3)
    steps.may_end.set()
    waiting.result(PATIENCE_S)
    assert queue.is_idle


def test_a_wait_is_given_up_at_a_stop(steps: _Steps, queue: Finisher) -> None:
    """However long the step at work takes."""
    for number in (0, 1):
        steps.stage(_step(number))
        queue.add(_step(number))
    with pytest.raises(StopRequestedError):
        queue.wait_for_room(lambda: True)
    assert steps.finished == []


def test_close_lets_what_is_staged_end(
    steps: _Steps, queue: Finisher, pool: ThreadPoolExecutor
) -> None:
    """And another query may add steps behind it."""
    for number in (0, 1):
        steps.stage(_step(number))
        queue.add(_step(number))
    closing = pool.submit(queue.close)
    steps.may_finish.release(2)
    closing.result(PATIENCE_S)
    assert steps.finished == [0, 1]
    steps.stage(_step(2))
    queue.add(_step(2))
    steps.may_finish.release()
    queue.close()
    assert steps.finished == [0, 1, 2]


@pytest.mark.promise("order-mark-written-tick")
def test_a_step_that_another_thread_finishes_is_left_to_it(steps: _Steps, queue: Finisher) -> None:
    """A step without new rows is staged, too, until the thread that has it run has logged it."""
    steps.may_finish.release(2)
    steps.stage(_step(0))
    queue.add(_step(0))
    queue.wait_until_idle()
    steps.stage(_step(1))
    queue.close()
    assert steps.finished == [0]
    assert [one.step for one in steps.staged] == [1]


@pytest.mark.promise("order-next-batch-read")
def test_nothing_is_finished_behind_a_step_that_failed(steps: _Steps, queue: Finisher) -> None:
    """Whoever waits is told of what it failed, and closing does not wait for what will not come."""
    steps.error = ValueError("no such topic")
    for number in (0, 1):
        steps.stage(_step(number))
        queue.add(_step(number))
    steps.may_finish.release()
    for wait in (queue.wait_until_idle, queue.wait_for_room):
        with pytest.raises(ValueError, match="no such topic"):
            wait(lambda: False)
    queue.close()
    assert steps.finished == []
    assert [one.step for one in steps.staged] == [0, 1]
