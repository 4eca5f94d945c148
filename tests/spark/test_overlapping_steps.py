"""The next batch is read and staged while a step's rows go out."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder.step_log import StepKind
from sequitur.pipelines.sink.sink import TopicSink
from tests.spark import bolts
from tests.support.broker_job import BY_TASKS
from tests.support.events import T0, event, time_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark


class _Crash(Exception):  # noqa: N818 - it stands for a kill
    """The process dies here."""


def _documents(job: Job, folder: str) -> list[int]:
    found = Path(job.settings.checkpoint, folder).iterdir()
    return sorted(int(path.name) for path in found if path.name.isdecimal())


def _while_written(
    monkeypatch: pytest.MonkeyPatch, step: int, meanwhile: Callable[[], None]
) -> None:
    """Have something happen before the rows of a step go out."""
    write: Any = TopicSink.write

    def writing(sink: TopicSink, outgoing: Any, number: int, *times: Any) -> Any:
        if number == step:
            meanwhile()
        return write(sink, outgoing, number, *times)

    monkeypatch.setattr(TopicSink, "write", writing)


def _fill(job: Job) -> Job:
    """Rows for several batches, each of which releases some."""
    job.produce([event(T0 + 2000 * n, f"key {n}", partition=n % 4, n=n) for n in range(48)])
    return job.with_settings(max_offsets_per_trigger=12)


def _in_order(job: Job) -> bool:
    times = [time_of(record) for record in job.released() if record.partition == 0]
    return times == sorted(times)


@pytest.mark.promise("order-next-batch-read")
def test_next_batch_is_staged_while_rows_go_out(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 0 waits, before it writes, for step 1 to be staged; steps are done in their order."""
    job = _fill(job)
    with monkeypatch.context() as patched:
        _while_written(patched, 0, lambda: wait_until(lambda: 1 in _documents(job, "staged")))
        report = job.run(drain=True)
    assert report.totals.read == report.totals.released == 48
    assert [entry.step for entry, _ in job.steps] == list(range(len(job.steps)))
    assert job.kinds() == [*[StepKind.BATCH] * 4, StepKind.DRAIN]
    assert sorted(time_of(record) for record in job.released()) == [
        T0 + 2000 * n for n in range(48)
    ]
    assert _in_order(job)


@pytest.mark.promise("order-next-batch-read")
def test_staged_steps_are_finished_by_the_next_life(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies at step 0 when step 1 is staged: Spark never gives the rows of either again."""
    job = _fill(job)

    def die() -> None:
        wait_until(lambda: 1 in _documents(job, "staged"))
        raise _Crash

    with monkeypatch.context() as patched:
        _while_written(patched, 0, die)
        with pytest.raises(_Crash):
            job.run()
    staged = _documents(job, "staged")
    assert _documents(job, "frontier") == [0]
    assert _documents(job, "done") == []
    assert staged[:2] == [0, 1]
    report = job.run(drain=True)
    assert report.totals.read == report.totals.released == 48
    assert sorted(time_of(record) for record in job.released()) == [
        T0 + 2000 * n for n in range(48)
    ]
    assert _in_order(job)
    runs = {path.name for path in Path(job.settings.checkpoint, "runs").iterdir()}
    assert runs == {run.name for run in job.steps[-1][0].kept_runs}


@pytest.mark.test_all
@pytest.mark.promise("order-next-batch-read")
def test_step_that_fails_ends_a_quiet_query(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch comes that could tell: the job ends all the same, and loses nothing."""
    job.produce([event(T0 + 2000 * n, partition=n % 4, n=n) for n in range(8)])

    def die() -> None:
        raise _Crash

    with monkeypatch.context() as patched:
        _while_written(patched, 0, die)
        with pytest.raises(_Crash):
            job.run(available_now=False)
    report = job.run(drain=True)
    assert report.totals.read == report.totals.released == 8


def test_bolts_that_wait_leave_a_slot_to_the_reading(job: Job, tmp_path: Path) -> None:
    """Both of Spark's slots run bolts; the first that comes free stages step 1, not more bolts."""
    job = _fill(job).with_settings(output_partitions=4, **BY_TASKS)
    staged, reading = Path(job.settings.checkpoint, "staged", f"{1:012}"), tmp_path / "reading"
    job = job.running_topology(bolts.waiting_for(staged, reading), call_timeout="5 min")
    scheduler: Any = job.spark.sparkContext._jsc.sc().taskScheduler()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        life = pool.submit(job.run, drain=True)
        # A stage is active a moment before its tasks wait for a slot: what came free by then went
        # to more bolts.
        waiting = scheduler.rootPool().getSortedTaskSetQueue
        wait_until(lambda: life.done() or waiting().size() > 1)
        reading.touch()
        report = life.result()
    assert report.totals.read == report.totals.released == 48
    assert job.processed()["acked"] == 48
    assert job.dead_letters() == []
