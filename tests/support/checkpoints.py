"""Steps in a checkpoint on a local path, as a job without Spark logs them."""

from __future__ import annotations

from pathlib import Path

from sequitur.consumer.reorder.clock import EventClock
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StagedStep, StepEntry, StepKind, Totals
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.job_identity import JobIdentity
from sequitur.pipelines.store.storage import LocalStorage
from tests.support.parquet_files import parquet_files
from tests.support.staged_rows import Row, staged
from tests.support.values import replace

IDENTITY = JobIdentity(("in",), None, "json:at", "out", 3, "ordered", "topology")
ROWS = [Row("in", 0, number, b"k", number) for number in range(30)]


def claimed(root: Path) -> Checkpoint:
    checkpoint = Checkpoint(LocalStorage(root))
    checkpoint.claim(IDENTITY)
    return checkpoint


def step_entry(
    checkpoint: Checkpoint, step: int, runs: tuple[Run, ...] = (), *, keeps: bool = False
) -> StepEntry:
    """A step that has staged a run, by a task or (`keeps`) in the driver, and keeps some."""
    name = checkpoint.new_name(step)
    folder = checkpoint.location(f"runs/{name}")
    assert isinstance(folder, Path)
    staged(folder, ROWS, 0, keeps=keeps)
    paths = [Path(path) for path in parquet_files(folder)]
    files = {path.name: len(ROWS) for path in paths}
    size = sum(path.stat().st_size for path in paths)
    entry = StepEntry(
        step=step,
        kind=StepKind.BATCH,
        batch_id=step,
        previous_frontier_ms=0,
        clock=EventClock(),
        counts=Totals(read=len(ROWS)),
        runs=(*runs, Run(step, len(ROWS), 0, 1 << 60, size_bytes=size, name=name, files=files)),
        before=Totals(),
        logged_ms=0,
    )
    return replace(entry, owner=checkpoint.owner, name=name)


def staged_step(entry: StepEntry) -> StagedStep:
    return StagedStep(
        step=entry.step,
        kind=entry.kind,
        batch_id=entry.batch_id,
        previous_frontier_ms=entry.previous_frontier_ms,
        clock=entry.clock,
        counts=entry.counts,
        run=entry.runs[-1],
        first_behind_ms=7,
        owner=entry.owner,
        planned={SourcePartition("in", 0): 7},
        topics={"in": "an id"},
        lost={SourcePartition("in", 1): (2, 5)},
    )


def log_step(checkpoint: Checkpoint, entry: StepEntry) -> None:
    checkpoint.write_staged(staged_step(entry))
    checkpoint.write_entry(entry)


def spark_plan(root: Path, batch_id: int) -> None:
    """As Spark leaves it before it gives out a batch, and after: without any sync."""
    for folder, number in (("offsets", batch_id), ("commits", batch_id - 1)):
        (root / "spark" / folder).mkdir(parents=True, exist_ok=True)
        if number >= 0:
            (root / "spark" / folder / str(number)).write_text(f"v1\n{{}}\n{number}")
