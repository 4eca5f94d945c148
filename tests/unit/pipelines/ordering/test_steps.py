"""What a step stages, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer import EventClock, ReorderSettings, SourcePartition
from sequitur.consumer.clock import Look
from sequitur.consumer.lateness import Run
from sequitur.consumer.step_log import StepEntry, StepKind, Totals
from sequitur.pipelines.ordering.step import Steps
from sequitur.pipelines.ordering.step_log import StepLog
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.store.storage import LocalStorage

if TYPE_CHECKING:
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
        on_step=None,
        is_bounded=True,
        subscription=None,
    )
    runs: Any = SimpleNamespace(stage=failing)
    steps = Steps(job, StepLog(checkpoint), runs, _OUTPUTS, 3)
    other = checkpoint.new_name(0)
    checkpoint.new_folder(f"runs/{other}")
    with pytest.raises(OSError, match="No space"):
        steps.stage(0)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [other]
    checkpoint.close()


@pytest.mark.promise("order-machine-clock-ahead", "order-partition-fall-silent")
def test_looks_of_ticks_count_as_silence_though_no_step_is_logged() -> None:
    """Between two steps the job looks each second; of a longer time it has seen two seconds."""
    a, b = SourcePartition("in", 0), SourcePartition("in", 1)
    clock = EventClock().looked_at({a: Look(5, 5, 9_000), b: Look(3, 3, 9_500)}, now_ms=0)
    entry = StepEntry(
        step=4,
        kind=StepKind.BATCH,
        batch_id=4,
        previous_frontier_ms=-1,
        clock=clock,
        runs=(Run(4, 2, 9_000, 9_500),),
        before=Totals(),
        logged_ms=0,
    )
    settings = ReorderSettings.model_validate({**_TOLD, "checkpoint": "/x", "idle_timeout": "5 s"})
    topics = SimpleNamespace(high_watermarks=lambda partitions: dict.fromkeys(partitions, 5))
    job: Any = SimpleNamespace(
        settings=settings,
        topics=topics,
        outages=SimpleNamespace(tell=print),
        on_step=None,
        is_bounded=False,
        checkpoint=None,
    )
    runs: Any = None
    log: Any = SimpleNamespace(head=entry)
    steady_s = [7.0]
    steps = Steps(job, log, runs, _OUTPUTS, 3, steady_s=lambda: steady_s[-1])
    assert steps.is_look_due()
    found = []
    for now_ms in (60_000, 61_000, 62_000, 107_000):  # a new life, which looks 45 s in vain
        after = steps.ticked(entry, now_ms)
        found.append((after.partitions[a].silent_ms, after.partitions[a].was_idle))
    assert found == [(0, False), (1_000, False), (2_000, False), (4_000, False)]
    assert steps.ticked(entry, 108_000).frontier_ms == 9_500
    assert steps.ticked(entry, 1_000).frontier_ms == 9_500  # the clock is set back
    steady_s.append(7.999)
    assert not steps.is_look_due()
    steady_s.append(8.0)
    assert steps.is_look_due()
