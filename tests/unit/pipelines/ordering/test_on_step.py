"""What a function is given of steps; on Spark tests/spark/test_on_step.py shows that it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.errors import StepFunctionError
from tests.support.deaths import dying_before
from tests.support.events import T0, event
from tests.support.on_step import Taken, numbered_events, released_rows

if TYPE_CHECKING:
    from sequitur.spark import OrderedStep
    from tests.support.list_job import ListJob


def test_rows_on_time_are_given_up_to_the_frontier(job: ListJob) -> None:
    job.produce(numbered_events(300))
    job.on_step = taken = Taken()
    job.run()
    (_, _, frontier_ms), *more = taken.steps
    assert more == []
    times = {row["event_time_ms"] for rows in taken.rows[0].values() for row in rows}
    assert times == {sent for n in range(300) if (sent := T0 + 10 * n) <= max(times)}
    assert max(times) <= frontier_ms < max(times) + 10


@pytest.mark.promise("on-step-function-raises")
def test_a_step_is_given_again_when_the_function_raised(job: ListJob) -> None:
    """The job ends with the step's name; the next life gives the same id and rows, then more."""
    job.produce(numbered_events(200))
    job.on_step = taken = Taken(raises_at=[1, 2])
    for _ in range(2):
        with pytest.raises(StepFunctionError, match=r"step 0: on_step raised ConnectionError"):
            job.run()
    job.produce(numbered_events(200, start=200))
    job.run(drain=True)
    assert taken.steps[0] == taken.steps[1] == taken.steps[2]
    assert taken.rows[0] == taken.rows[1] == taken.rows[2]
    assert all(one[1] > 0 for one in taken.steps[3:])
    assert taken.all(slice(2, None)) == released_rows(job)


@pytest.mark.parametrize("ends_threads", [SystemExit, KeyboardInterrupt])
def test_a_function_that_ends_its_thread_ends_the_job(
    job: ListJob, ends_threads: type[BaseException]
) -> None:
    """It is told as any other error: nothing would come of the step else, without a word."""
    job.produce(numbered_events(200))

    def leave(_step: OrderedStep) -> None:
        raise ends_threads

    job.on_step = leave
    with pytest.raises(StepFunctionError, match=f"step 0: on_step raised {ends_threads.__name__}"):
        job.run()
    job.on_step = taken = Taken()
    job.run(drain=True)
    assert taken.all() == released_rows(job)


@pytest.mark.parametrize("policy", ["topic", "emit"])
def test_late_rows_are_given_where_they_are_released(job: ListJob, policy: str) -> None:
    """What goes to the late topic is not given; rescued rows, and late ones in place, are."""
    job = job.with_settings(late_policy=policy)
    job.on_step = taken = Taken()
    job.produce([event(T0 + t, key="a", partition=0) for t in (1000, 3000, 4500)])
    job.produce([event(T0 + 5000, key="other", partition=p) for p in range(4)])
    assert job.run().frontier_ms == T0 + 4000
    job.produce([event(T0 + t, key="a", partition=2) for t in (3500, 2999)])
    job.produce([event(T0 + 7000, key="other", partition=p) for p in range(4)])
    report = job.run(drain=True)
    assert report.totals.late == 1
    assert len(job.late()) == (policy == "topic")
    assert taken.all() == released_rows(job)
    assert sum(map(len, taken.all().values())) == 12 + (policy == "emit")


@pytest.mark.promise("on-step-job-killed-step")
@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("plans/", 0),
        ("done/", 1),
    ],
)
def test_a_step_is_given_again_after_a_crash(job: ListJob, place: str, calls: int) -> None:
    """What dies before the done mark comes again as it was; nothing is left out."""
    job.produce(numbered_events(200))
    job.on_step = taken = Taken()
    with dying_before(place):
        job.run()
    assert len(taken.steps) == calls
    job.run(drain=True)
    if calls:
        assert (taken.steps[0], taken.rows[0]) == (taken.steps[1], taken.rows[1])
    assert taken.all(slice(calls, None)) == released_rows(job)


@pytest.mark.promise("on-step-job-begun-anew")
def test_another_checkpoint_has_other_ids(job: ListJob) -> None:
    """A job that begins anew counts steps from 0 again; what it gives is not taken for the old."""
    job.produce(numbered_events(100))
    job.on_step = taken = Taken()
    job.run(drain=True)
    other = job.anew()
    other.produce(numbered_events(100))
    other.on_step = again = Taken()
    other.run(drain=True)
    assert again.all() == taken.all()
    assert not {name for name, _, _ in taken.steps} & {name for name, _, _ in again.steps}
