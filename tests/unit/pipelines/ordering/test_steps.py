"""What a step stages, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.reorder.clock import EventClock, Look
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StepEntry, StepKind, Totals
from sequitur.errors import UnansweredError
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.ordering.logged_steps import LoggedSteps
from sequitur.pipelines.ordering.step import Steps
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.store.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TOLD = {"input_topics": ["in"], "output_topic": "out", "event_time": "json:at", "delay": "1 s"}
_OUTPUTS: Any = SimpleNamespace(released=SimpleNamespace(partitions=3))
_PLAN = 'v1\n{}\n{"in":{"0":1}}'


@pytest.mark.promise("order-batch-fit-checkpoint")
def test_attempt_at_staging_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """No document names it, and the disk may be full; what another attempt has written stays."""
    checkpoint = Checkpoint(LocalStorage(tmp_path))
    checkpoint.claim(JobIdentity(("in",), None, "json:at", "out", 3, "ordered"))
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    (tmp_path / "spark" / "offsets" / "0").write_text(_PLAN)
    (tmp_path / "spark" / "sources" / "0").mkdir(parents=True)
    (tmp_path / "spark" / "sources" / "0" / "0").write_text('v1\n{"in":{"0":0}}')

    def failing(*_: object, name: str, **__: object) -> None:
        folder: Any = checkpoint.new_folder(f"runs/{name}")
        (folder / "part-1.parquet").write_bytes(b"1")
        raise OSError("No space left on device")

    settings = ReorderSettings.model_validate({**_TOLD, "checkpoint": str(tmp_path)})
    job: Any = SimpleNamespace(
        checkpoint=checkpoint,
        settings=settings,
        outages=SimpleNamespace(tell=print),
        steady_s=lambda: 0.0,
        on_step=None,
        is_bounded=True,
        subscription=None,
    )
    runs: Any = SimpleNamespace(write_run=failing)
    steps = Steps(job, LoggedSteps(checkpoint), runs, _OUTPUTS, 3)
    other = checkpoint.new_name(0)
    checkpoint.new_folder(f"runs/{other}")
    with pytest.raises(OSError, match="No space"):
        steps.stage(0)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [other]
    checkpoint.close()


_A, _B = SourcePartition("in", 0), SourcePartition("in", 1)


def _entry() -> StepEntry:
    clock = EventClock().looked_at({_A: Look(5, 5, 9_000), _B: Look(3, 3, 9_500)}, now_ms=0)
    return StepEntry(
        step=4,
        kind=StepKind.BATCH,
        batch_id=4,
        previous_frontier_ms=-1,
        clock=clock,
        runs=(Run(4, 2, 9_000, 9_500),),
        before=Totals(),
        logged_ms=0,
    )


def _looking(
    entry: StepEntry, ends: Callable[[list[SourcePartition]], Any], steady_s: list[float]
) -> tuple[Steps, list[str]]:
    """Return steps that look at their input behind one that is done, and what they tell."""
    told: list[str] = []

    def high_watermarks(partitions: list[SourcePartition], *, of_some: bool) -> Any:
        assert of_some
        return ends(partitions)

    given = {**_TOLD, "checkpoint": "/x", "idle_timeout": "5 s", "patience": "60 s"}
    job: Any = SimpleNamespace(
        settings=ReorderSettings.model_validate(given),
        topics=SimpleNamespace(high_watermarks=high_watermarks),
        outages=SimpleNamespace(tell=told.append),
        on_step=None,
        is_bounded=False,
        checkpoint=None,
    )
    runs: Any = None
    log: Any = SimpleNamespace(head=entry)
    return Steps(job, log, runs, _OUTPUTS, 3, steady_s=lambda: steady_s[-1]), told


@pytest.mark.promise("order-machine-clock-ahead", "order-partition-fall-silent")
def test_looks_of_ticks_count_as_silence_though_no_step_is_logged() -> None:
    """Between two steps the job looks each second; of a longer time it has seen two seconds."""
    a, entry = _A, _entry()
    steady_s = [7.0]
    steps, _ = _looking(entry, lambda partitions: dict.fromkeys(partitions, 5), steady_s)
    assert steps.input_ends.is_look_due()
    found = []
    for now_ms in (60_000, 61_000, 62_000, 107_000):  # a new life, which looks 45 s in vain
        after = steps.ticked(entry, now_ms)
        found.append((after.partitions[a].silent_ms, after.partitions[a].was_idle))
    assert found == [(0, False), (1_000, False), (2_000, False), (4_000, False)]
    assert steps.ticked(entry, 108_000).frontier_ms == 9_500
    assert steps.ticked(entry, 1_000).frontier_ms == 9_500  # the clock is set back
    steady_s.append(7.999)
    assert not steps.input_ends.is_look_due()
    steady_s.append(8.0)
    assert steps.input_ends.is_look_due()


@pytest.mark.promise("order-broker-hangs")
def test_job_goes_on_without_a_leader_for_as_long_as_patience_goes() -> None:
    """It says so once, and looks at the partitions that are left."""
    steady_s, known = [7.0], {_A: 5}
    steps, told = _looking(_entry(), lambda _: dict(known), steady_s)
    for passed_s in (0.0, 30.0, 59.0):
        steady_s.append(7.0 + passed_s)
        after = steps.ticked(_entry(), 1_000 + int(1_000 * passed_s))
        assert after.partitions[_B].silent_ms == 0
    (line,) = told
    assert line.startswith("no leader of in/1 answers: the job goes on with other partitions")
    known[_B] = 3
    steady_s.append(70.0)
    steps.ticked(_entry(), 70_000)
    del known[_B]
    for passed_s in (71.0, 130.9):
        steady_s.append(passed_s)
        steps.ticked(_entry(), 71_000)
    steady_s.append(131.0)
    with pytest.raises(UnansweredError, match="no leader of in/1 answers for 1 min"):
        steps.ticked(_entry(), 131_000)
    assert len(told) == 2
