"""What files a checkpoint has: those of runs are named beside them, and none add up."""

from __future__ import annotations

import errno
import json
import os
import threading
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import uuid4

import pytest

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder.clock import EventClock, Look
from sequitur.consumer.reorder.sorted_run import Run
from sequitur.consumer.reorder.step_log import StepDone, StepEntry, StepKind, Totals
from sequitur.kafka.partition import SourcePartition
from sequitur.pipelines.store import durable
from sequitur.pipelines.store.checkpoint import Checkpoint
from sequitur.pipelines.store.owned_folder import as_text
from sequitur.pipelines.store.storage import LocalStorage
from tests.support.checkpoints import (
    IDENTITY,
    claimed,
    log_step,
    spark_plan,
    step_entry,
)
from tests.support.values import replace

if TYPE_CHECKING:
    from pathlib import Path


class _Counting(LocalStorage):
    """It counts what a start asks for; the thread of heartbeats reads each second beside it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls = 0
        self._starter = threading.get_ident()

    def names(self, folder: str) -> list[str]:
        self.calls += threading.get_ident() == self._starter
        return super().names(folder)

    def read(self, name: str) -> str:
        self.calls += threading.get_ident() == self._starter
        return super().read(name)


@pytest.mark.promise("order-thousands-runs-held")
def test_entry_grows_with_runs_and_not_with_their_files() -> None:
    """1,200 runs of 1,000 files each, 1,000 source partitions: a step writes less than 1 MB."""
    places = [SourcePartition("readings.of.cpus", number) for number in range(1000)]
    looks = {place: Look(123_456_789, 123_456_790, 1 << 40) for place in places}
    clock = EventClock().looked_at(looks, now_ms=1 << 40)
    files = {f"part-{number:032x}.parquet": 50 for number in range(1000)}
    name = f"{7:012d}-000001-7"
    run = Run(7, 50_000, 1 << 40, 1 << 40, size_bytes=1 << 23, name=name, files=files)
    entry = StepEntry(
        step=1200,
        kind=StepKind.BATCH,
        batch_id=1200,
        previous_frontier_ms=1 << 40,
        clock=clock.advance(now_ms=1 << 40, delay_ms=1000, idle_timeout_ms=30_000),
        runs=(run,) * 1200,
        before=Totals(),
        logged_ms=1 << 40,
        planned={place: look.position for place, look in looks.items()},
        counted=dict.fromkeys(places, (50, 4000)),
    )
    text = as_text(dump(entry))
    assert len(text) < 1_000_000
    assert len(text.splitlines()) == len(dump(entry)) + 2
    assert load(StepEntry, json.loads(text)).runs[-1] == replace(run, files={})


@pytest.mark.promise("order-processes-killed-write")
def test_start_removes_what_killed_writers_have_left(tmp_path: Path) -> None:
    """Ours and Spark's; a writer that is alive writes its own anew."""
    first = claimed(tmp_path)
    entry = step_entry(first, 0)
    spark_plan(tmp_path, 0)
    log_step(first, entry)
    (tmp_path / "oversized" / "in").mkdir(parents=True)
    left = [
        f".outputs.json.{uuid4().hex}",
        f"owners/.{2:012d}.{uuid4().hex}",
        f"heartbeats/.{1:012d}.{uuid4().hex}",
        f"frontier/.{1:012d}.{uuid4().hex}",
        f"prepared/.{1:012d}-{7:015d}.{uuid4().hex}",
        f"replays/.{7:020d}-{uuid4().hex}.parquet.{uuid4().hex}",
        f"oversized/in/.0-1-ab.parquet.{uuid4().hex}",
        f"spark/commits/.0.{uuid4()}.tmp",
        f"spark/commits/..0.{uuid4()}.tmp.crc",
    ]
    (tmp_path / "spark" / "offsets" / ".0.crc").write_text("crc")
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert "spark/offsets/.0.crc" in kept
    for name in left:
        (tmp_path / name).write_text("{")
    first.close()
    second = claimed(tmp_path)
    second.spark.forget_unfinished("spark", 0)
    second.close()
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert there == kept | {f"owners/{2:012d}", f"heartbeats/{2:012d}"}


@pytest.mark.promise("order-processes-killed-write")
def test_writer_whose_file_is_taken_for_a_dead_ones_writes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start sweeps the folder before the link; a folder that is gone is not made again."""
    swept: list[Path] = []

    def sweeping(_: object) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            durable.drop_unfinished(tmp_path)

    monkeypatch.setattr(durable, "sync", sweeping)
    assert durable.create(tmp_path / "document", "text")
    assert [path.name[:10] for path in swept] == [".document."]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"document": "text"}
    with pytest.raises(FileNotFoundError):
        durable.create(tmp_path / "none" / "document", "text")


@pytest.mark.promise("order-batch-fit-checkpoint")
def test_document_that_does_not_fit_is_named_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(durable, "sync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/document'"):
        durable.create(tmp_path / "document", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("order-bounded-run-started")
@pytest.mark.slow
def test_two_hundred_runs_leave_what_one_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded runs on one checkpoint, each with a step: neither files nor documents to read add up.

    The log keeps a hundred steps, and the names of twenty owners.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands, and no power is cut here
    counts, read = {}, {}
    for number in range(210):
        storage = _Counting(tmp_path)
        checkpoint = Checkpoint(storage)
        checkpoint.claim(IDENTITY)
        entry, done = checkpoint.latest()
        checkpoint.staged(entry)
        checkpoint.spark.forget_unfinished("spark", number - 1)
        read[number] = storage.calls
        runs = () if entry is None else entry.kept_runs
        spark_plan(tmp_path, number)
        entry = replace(step_entry(checkpoint, number, runs), clock=EventClock(number and 1 << 60))
        log_step(checkpoint, entry)
        checkpoint.write_done(StepDone(number, done.totals))
        checkpoint.tidy(entry)
        checkpoint.close()
        for name in ("offsets", "commits"):  # as Spark does
            (tmp_path / "spark" / name / str(number - 100)).unlink(missing_ok=True)
        counts[number] = sum(1 for path in tmp_path.rglob("*") if path.is_file())
    assert counts[110] == counts[160] == counts[209]
    assert read[2] == read[105] == read[209]
