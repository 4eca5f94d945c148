"""Staged steps are processed ahead of their turn, in order, and again where a step before fails."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.pipelines.ordering.steps_ahead import StepsAhead
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S = PATIENCE_S


def _entry(step: int) -> Any:
    return SimpleNamespace(step=step)


class _Job:
    """Steps that are staged; the processing of each is held until the test lets it go on."""

    def __init__(self) -> None:
        self.log: Any = SimpleNamespace(staged=())
        self.given: list[tuple[int, int, str]] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.waits_for_turn = False
        self.error: Exception | None = None

    def stage(self, *steps: int) -> None:
        self.log.staged = tuple(_entry(step) for step in steps)

    def process(self, staged: Any, before: Any, processed: Any) -> Any:
        self.given.append((staged.step, before.step, processed))
        self.begun.release()
        assert self.may_end.acquire(timeout=_TIMEOUT_S)
        if self.error is not None:
            raise self.error
        if self.waits_for_turn:
            return None
        return SimpleNamespace(entry=_entry(staged.step), processed=f"of {staged.step}")


@pytest.fixture
def job() -> _Job:
    return _Job()


@contextlib.contextmanager
def _ahead(job: _Job, most: int = 2) -> Iterator[StepsAhead]:
    ahead = StepsAhead(job.log, most, job.process)
    try:
        yield ahead
    finally:
        job.may_end.release(100)
        ahead.close()


def _wait_for(job: _Job, steps: int = 1) -> None:
    for _ in range(steps):
        assert job.begun.acquire(timeout=_TIMEOUT_S)


def test_each_is_processed_behind_the_one_before_it(job: _Job) -> None:
    """By what became of that one; no more of them than there may be."""
    with _ahead(job) as ahead:
        job.stage(1, 2, 3)
        ahead.go_on_behind(_entry(0), "of 0")  # type: ignore[arg-type]
        _wait_for(job)
        job.may_end.release(2)
        assert ahead.take(_entry(1)) is not None
        _wait_for(job)
        assert ahead.take(_entry(2)) is not None
        assert job.given[:2] == [(1, 0, "of 0"), (2, 1, "of 1")]
        _wait_for(job)
        assert job.given[2] == (3, 2, "of 2")


def test_no_more_than_may_be_are_ahead(job: _Job) -> None:
    """The next is begun once the first of them has its turn."""
    with _ahead(job, most=1) as ahead:
        job.stage(1, 2)
        ahead.go_on_behind(_entry(0), "of 0")  # type: ignore[arg-type]
        _wait_for(job)
        job.may_end.release()
        assert ahead.take(_entry(1)) is not None
        _wait_for(job)
        assert [step for step, *_ in job.given] == [1, 2]


def test_nothing_is_ahead_where_nothing_may_be(job: _Job) -> None:
    with _ahead(job, most=0) as ahead:
        job.stage(1)
        ahead.go_on_behind(_entry(0), "of 0")  # type: ignore[arg-type]
        assert ahead.take(_entry(1)) is None
        assert job.given == []


@pytest.mark.promise("state-later-batches-processed")
def test_step_before_that_fails_takes_all_with_it(job: _Job) -> None:
    """Also the one that is in work: they are processed again, by what it comes to then."""
    with _ahead(job) as ahead:
        job.stage(1, 2)
        ahead.go_on_behind(_entry(0), "of 0")  # type: ignore[arg-type]
        job.may_end.release()
        _wait_for(job, 2)
        ahead.drop()
        ahead.go_on_behind(_entry(0), "of 0, again")  # type: ignore[arg-type]
        job.may_end.release(100)
        _wait_for(job)
        assert ahead.take(_entry(1)) is not None
        assert job.given[2] == (1, 0, "of 0, again")


@pytest.mark.parametrize("fails", [True, False])
def test_step_that_cannot_be_processed_ahead_waits_for_its_turn(job: _Job, *, fails: bool) -> None:
    """Whatever the reason: it is told when it fails in its turn."""
    job.error, job.waits_for_turn = (ValueError("full") if fails else None), not fails
    with _ahead(job) as ahead:
        job.stage(1, 2)
        ahead.go_on_behind(_entry(0), "of 0")  # type: ignore[arg-type]
        job.may_end.release(100)
        _wait_for(job)
        assert ahead.take(_entry(1)) is None
        assert [step for step, *_ in job.given] == [1]


def test_it_can_be_closed_and_go_on(job: _Job) -> None:
    """What was ahead is forgotten; a query that is restarted begins again."""
    with _ahead(job) as ahead:
        job.stage(1)
        ahead.go_on_behind(_entry(0), "of 0")  # type: ignore[arg-type]
        job.may_end.release()
        _wait_for(job)
        ahead.close()
        assert ahead.take(_entry(1)) is None
        ahead.go_on_behind(_entry(0), "of 0")  # type: ignore[arg-type]
        job.may_end.release()
        _wait_for(job)
        assert ahead.take(_entry(1)) is not None
