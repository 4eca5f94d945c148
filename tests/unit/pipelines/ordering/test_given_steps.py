"""What a function is given of steps; on Spark tests/spark/test_on_step.py shows that it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.errors import StepFunctionError
from tests.support.events import Event, by_partition, event
from tests.support.list_job import ListJob, job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.spark import OrderedStep

__all__ = ["job"]

T0 = 1_700_000_000_000


def _events(count: int, *, start: int = 0) -> list[Event]:
    times = [T0 + 10 * (n ^ 1) for n in range(start, start + count)]
    return [event(time_ms, key=f"k{time_ms % 7}", n=time_ms) for time_ms in times]


@dataclass
class _Taken:
    """What a function was given, by call; it raises at the calls that it is told to."""

    raises_at: Sequence[int] = ()
    steps: list[tuple[str, int, int]] = field(default_factory=list)
    rows: list[dict[int, list[dict[str, Any]]]] = field(default_factory=list)

    def __call__(self, step: OrderedStep) -> None:
        self.steps.append((step.id, step.step, step.frontier_ms))
        self.rows.append(
            {
                partition: rows
                for partition in range(step.partitions)
                if (rows := [row for some in step.tables(partition) for row in some.to_pylist()])
            }
        )
        with pytest.raises(IndexError, match=f"partition {step.partitions}"):
            step.tables(step.partitions)
        if len(self.steps) in self.raises_at:
            raise ConnectionError("the database is away")

    def all(self, calls: slice = slice(None)) -> dict[int, list[tuple[bytes, bytes]]]:
        """Key and value of all rows of some calls, by partition, in their order."""
        found: dict[int, list[tuple[bytes, bytes]]] = {}
        for given in self.rows[calls]:
            for partition, rows in given.items():
                found.setdefault(partition, []).extend((row["key"], row["value"]) for row in rows)
        return found


def _released(job: ListJob) -> dict[int, list[tuple[Any, Any]]]:
    return {
        partition: [(record.key, record.value) for record in records]
        for partition, records in by_partition(job.released()).items()
    }


def test_rows_on_time_are_given_up_to_the_frontier(job: ListJob) -> None:
    job.produce(_events(300))
    job.on_step = taken = _Taken()
    job.run()
    (_, _, frontier_ms), *more = taken.steps
    assert more == []
    times = {row["event_time_ms"] for rows in taken.rows[0].values() for row in rows}
    assert times == {sent for n in range(300) if (sent := T0 + 10 * n) <= max(times)}
    assert max(times) <= frontier_ms < max(times) + 10


@pytest.mark.promise("on-step-function-raises")
def test_a_step_is_given_again_when_the_function_raised(job: ListJob) -> None:
    """The job ends with the step's name; the next life gives the same id and rows, then more."""
    job.produce(_events(200))
    job.on_step = taken = _Taken(raises_at=[1, 2])
    for _ in range(2):
        with pytest.raises(StepFunctionError, match=r"step 0: on_step raised ConnectionError"):
            job.run()
    job.produce(_events(200, start=200))
    job.run(drain=True)
    assert taken.steps[0] == taken.steps[1] == taken.steps[2]
    assert taken.rows[0] == taken.rows[1] == taken.rows[2]
    assert all(one[1] > 0 for one in taken.steps[3:])
    assert taken.all(slice(2, None)) == _released(job)


@pytest.mark.parametrize("ends_threads", [SystemExit, KeyboardInterrupt])
def test_a_function_that_ends_its_thread_ends_the_job(
    job: ListJob, ends_threads: type[BaseException]
) -> None:
    """It is told as any other error: nothing would come of the step else, without a word."""
    job.produce(_events(200))

    def leave(_step: OrderedStep) -> None:
        raise ends_threads

    job.on_step = leave
    with pytest.raises(StepFunctionError, match=f"step 0: on_step raised {ends_threads.__name__}"):
        job.run()
    job.on_step = taken = _Taken()
    job.run(drain=True)
    assert taken.all() == _released(job)


@pytest.mark.parametrize("policy", ["topic", "emit"])
def test_late_rows_are_given_where_they_are_released(job: ListJob, policy: str) -> None:
    """What goes to the late topic is not given; rescued rows, and late ones in place, are."""
    job = job.with_settings(late_policy=policy)
    job.on_step = taken = _Taken()
    job.produce([event(T0 + t, key="a", partition=0) for t in (1000, 3000, 4500)])
    job.produce([event(T0 + 5000, key="other", partition=p) for p in range(4)])
    assert job.run().frontier_ms == T0 + 4000
    job.produce([event(T0 + t, key="a", partition=2) for t in (3500, 2999)])
    job.produce([event(T0 + 7000, key="other", partition=p) for p in range(4)])
    report = job.run(drain=True)
    assert report.totals.late == 1
    assert len(job.late()) == (policy == "topic")
    assert taken.all() == _released(job)
    assert sum(map(len, taken.all().values())) == 12 + (policy == "emit")
