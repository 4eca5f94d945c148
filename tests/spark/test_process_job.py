"""A topology behind the reorder stage, and what becomes of events when something fails."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology.step.tasks import AckerTask
from sequitur.errors import TopicError, TopologyFileError, TopologyTaskError
from tests.spark import bolts
from tests.support.events import T0, event, time_of
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.consumer.topology import Topology
    from tests.spark.conftest import Job

pytestmark = pytest.mark.spark

_BOTH = pytest.mark.parametrize("make", [bolts.chain, bolts.spread])
_SPREAD = pytest.mark.parametrize(
    "make", [pytest.param(bolts.chain, marks=pytest.mark.test_all), bolts.spread]
)


def _balanced(job: Job) -> dict[str, int]:
    """Counts of the events, of which none is unaccounted for."""
    counts = job.processed()
    assert counts["taken"] + counts["replayed"] == (
        counts["acked"] + counts["dead"] + counts["pending"]
    )
    return counts


@pytest.mark.test_all
@pytest.mark.promise("process-call-bolt-hangs")
@_BOTH
def test_call_that_hangs_is_ended(job: Job, make: Callable[[], Topology]) -> None:
    """A call that does not return in call_timeout fails its event with that reason."""
    job = job.running_topology(make(), call_timeout="500 ms", max_attempts=1)
    job.produce([event(T0, key="a"), event(T0 + 1, key="b", hangs=1), event(T0 + 2, key="c")])
    job.run(drain=True)
    assert sorted(time_of(record) for record in job.released()) == [T0, T0 + 2]
    (letter,) = job.dead_letters()
    assert dict(letter.headers)["sequitur-dlq-reason"] == b"timeout"
    assert _balanced(job)["late_acks"] >= 1


@pytest.mark.promise("process-process-dies-event")
@_SPREAD
def test_event_that_kills_its_process_is_found(job: Job, make: Callable[[], Topology]) -> None:
    """A segmentation fault costs a retry; the event that makes it is dead-lettered, no other."""
    job = job.running_topology(make())
    job.produce(
        event(T0 + n, key=f"k{n % 7}", **({"kills": 1} if n == 37 else {})) for n in range(60)
    )
    job.run(drain=True)
    assert sorted(time_of(record) - T0 for record in job.released()) == [
        n for n in range(60) if n != 37
    ]
    (letter,) = job.dead_letters()
    assert time_of(letter) == T0 + 37
    assert dict(letter.headers)["sequitur-dlq-reason"] == b"crash"
    assert _balanced(job)["crashes"] >= 2


@pytest.mark.test_all
@pytest.mark.promise("process-event-comes")
def test_windows_close_in_silence_by_bolts_that_are_prepared_once(job: Job, tmp_path: Path) -> None:
    """Ticks come and the watermark goes on without events; steps go on with the bolts they have."""
    job = job.with_settings(idle_timeout="1 s").running_topology(bolts.silent_windows(tmp_path))
    ticks, begin_ms = tmp_path / "ticks", T0 - T0 % 10_000
    with job.running() as life:
        job.produce(event(begin_ms + 9_000 + n, key=f"k{n}") for n in range(40))
        counted = 0
        while counted < 40 or ticks.stat().st_size < 40:
            assert not life.done()
            time.sleep(0.1)
            if job.steps:
                counted = sum(json.loads(one.value or b"")["count"] for one in job.released())
    assert {time_of(record) for record in job.released()} == {begin_ms}
    assert counted == 40
    assert _balanced(job)["acked"] == 40
    prepared = (tmp_path / "prepared").read_text().splitlines()
    pooled = [one for one in prepared if " pooled " in one]
    # Whichever of Spark's processes has a task, it prepares the task's bolt once.
    assert len(pooled) == len(set(pooled))
    assert len(pooled) < ticks.stat().st_size


_SPARKS_OWN = 4
"""Spark runs a task so often by itself: the default master is `local[2,4]`."""


@pytest.mark.promise("process-process-task-dies")
@_SPREAD
@pytest.mark.parametrize(("times", "crashes"), [(1, 0), (_SPARKS_OWN, 1)])
def test_process_that_dies_costs_a_retry(
    job: Job, make: Callable[[], Topology], tmp_path: Path, times: int, crashes: int
) -> None:
    """A process killed from outside takes nothing with it: Spark runs its task again, or we do."""
    marker = tmp_path / "died"
    job = job.running_topology(make())
    job.produce(event(T0 + n, key=f"k{n % 7}") for n in range(40) if n != 11)
    job.produce([event(T0 + 11, key="k4", dies=str(marker), times=times)])
    job.run(drain=True)
    assert marker.stat().st_size == times
    assert sorted(time_of(record) - T0 for record in job.released()) == list(range(40))
    counts = _balanced(job)
    assert (counts["crashes"], counts["dead"], counts["acked"]) == (crashes, 0, 40)


@pytest.mark.promise("process-process-acker-dies")
def test_acker_that_dies_is_run_again(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdicts of an acker whose process died are found anew, from what tasks left on disk."""
    monkeypatch.setattr(
        "sequitur.consumer.topology.step.run.AckerTask",
        lambda *given: bolts.DyingAcker(AckerTask(*given), str(tmp_path / "died")),
    )
    job = job.running_topology(bolts.spread())
    job.produce(event(T0 + n, key=f"k{n % 7}") for n in range(40))
    job.run(drain=True)
    assert (tmp_path / "died").exists()
    assert sorted(time_of(record) - T0 for record in job.released()) == list(range(40))
    assert _balanced(job)["acked"] == 40


@pytest.mark.test_all
@pytest.mark.promise("process-bolt-get-ready")
def test_bolt_that_cannot_get_ready_ends_the_job_by_name(job: Job) -> None:
    """There is no event to blame: the job ends, says whose error it is, and loses nothing."""
    broken = job.running_topology(bolts.one_bolt(bolts.Unready(), tasks=None))
    job.produce([event(T0, key="k")])
    with pytest.raises(TopologyTaskError, match=r"'only', task \d: its prepare raised Connec"):
        broken.run(drain=True)
    mended = job.running_topology(replace(bolts.chain(), name="one-bolt"))
    mended.run(drain=True)
    assert [time_of(record) for record in mended.released()] == [T0]


@pytest.mark.test_all
@pytest.mark.promise("process-bolt-calls-sys")
@_BOTH
def test_exit_in_a_bolt_fails_its_event(job: Job, make: Callable[[], Topology]) -> None:
    """A bolt that calls `sys.exit` ends neither the task nor the job."""
    job = job.running_topology(make(), max_attempts=1)
    job.produce([event(T0, key="a", exits=1), event(T0 + 1, key="b")])
    job.run(drain=True)
    assert [time_of(record) - T0 for record in job.released()] == [1]
    (letter,) = job.dead_letters()
    assert dict(letter.headers)["sequitur-dlq-reason"] == b"exception"


@pytest.mark.test_all
@pytest.mark.promise("process-finish-batch-raises")
def test_batch_that_is_never_finished_is_ended(job: Job) -> None:
    """A `finish_batch` that does not return in call_timeout fails what it was given."""
    topology = bolts.one_bolt(bolts.Endless(), tasks=None)
    job = job.running_topology(topology, max_attempts=1, call_timeout="500 ms")
    job.produce([event(T0, key="k")])
    job.run(drain=True)
    (letter,) = job.dead_letters()
    headers = dict(letter.headers)
    assert headers["sequitur-dlq-reason"] == b"timeout"
    assert b"longer than call_timeout" in (headers["sequitur-dlq-traceback"] or b"")


@pytest.mark.test_all
@pytest.mark.promise("process-topology-fit-settings")
def test_topology_must_go_with_the_job(job: Job) -> None:
    """Settings that do not go with a topology are refused by name, before anything is read."""
    running = job.running_topology(bolts.chain())
    with pytest.raises(TopologyFileError, match="late_policy"):
        running.with_settings(late_policy="emit").run()
    by_pattern = running.with_settings(input_topics=[], input_pattern=f"{job.topic}.*")
    with pytest.raises(TopicError, match="which the job writes"):
        by_pattern.with_settings(output_topic="elsewhere").running_topology(
            bolts.chain(), dead_letter_topic=f"{job.topic}.dead"
        ).run()
    with pytest.raises(TopologyFileError, match="two purposes"):
        job.running_topology(bolts.chain(), dead_letter_topic=job.settings.late).run()
