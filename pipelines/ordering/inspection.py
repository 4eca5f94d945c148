"""A look at a checkpoint without Spark. It only reads, so the job may be running.

The state is JSON and Parquet, read as the job reads it, wherever that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import structs
from msgspec.structs import replace

from sequitur.base.stored import dump, load
from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.step_log import NOTHING_DONE, StagedStep, StepDone, StepEntry
from sequitur.errors import CheckpointError
from sequitur.pipelines.ordering.job_report import counts, promised_and_achieved, step_summary
from sequitur.pipelines.store.checkpoint import PARTITIONS_DOCUMENT, OutputPartitions
from sequitur.pipelines.store.documents import read_document
from sequitur.pipelines.store.job_identity import check_format
from sequitur.pipelines.store.run_files import files_document_name, files_of
from sequitur.pipelines.store.storage import open_file, storage_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.reorder.key_state import Fold
    from sequitur.consumer.reorder.sorted_run import Run
    from sequitur.pipelines.store.storage import Storage

STEPS_SHOWN: Final = 10
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class HeldRun:
    run: Run
    held: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    root: str
    job: Mapping[str, Any]  # the job that it belongs to, from `format.json`
    entry: StepEntry | None  # the newest step; None before the first
    done: StepDone  # the newest step that is done, with all counts
    runs: tuple[HeldRun, ...]  # the runs that hold rows
    # the last steps, oldest first; the newest may not be done
    steps: tuple[tuple[StepEntry, StepDone | None], ...]
    staged: tuple[StagedStep, ...] = ()  # the steps after these, staged and not decided yet
    empty_partitions: int = 0  # partitions that the output topic has gained, and that get no rows

    @property
    def frontier_ms(self) -> int:
        """The frontier; `BEFORE_ALL_TIME_MS` before it first moves."""
        return BEFORE_ALL_TIME_MS if self.entry is None else self.entry.frontier_ms

    @property
    def folds(self) -> tuple[Fold, ...]:
        return () if self.entry is None or self.entry.keys is None else self.entry.keys.folds

    def as_json(self) -> dict[str, Any]:
        entry = self.entry
        return {
            "checkpoint": self.root,
            "job": dict(self.job),
            "frontier_ms": self.frontier_ms,
            "totals": counts(self.done.totals),
            "empty_partitions": self.empty_partitions,
            "partitions": [] if entry is None else dump(entry.clock)["partitions"],
            "learned": None if entry is None else promised_and_achieved(entry.learned) or None,
            "runs": [
                {**structs.asdict(found.run), "held": found.held, "size_bytes": found.size_bytes}
                for found in self.runs
            ],
            "keys": {
                "files": sum(len(fold.files) for fold in self.folds),
                "rows": sum(fold.keys for fold in self.folds),
                "size_bytes": sum(fold.size_bytes for fold in self.folds),
            },
            "folds": [dump(fold) for fold in self.folds],
            "steps": [_step(entry, done) for entry, done in self.steps],
            "staged": [{"step": one.step, "read": one.counts.read} for one in self.staged],
        }


def inspect_checkpoint(location: str) -> CheckpointReport:
    storage = storage_at(location)
    try:
        return _Folder(storage, location).report()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{location} changed while it was read: a job runs on it, so try again ({error})"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"{location} cannot be read: {error}") from error


class _Folder:
    def __init__(self, storage: Storage, location: str) -> None:
        self._storage = storage
        self._location = location

    def report(self) -> CheckpointReport:
        job = read_document(self._storage, "format.json", dict)
        if job is None:
            raise CheckpointError(f"{self._location} is not a reorder job's checkpoint")
        check_format(self._location, job)
        logged, marked = self._storage.names("frontier"), self._storage.names("done")
        newest = logged[-1] if logged else ""
        entry = self._entry(newest) if newest else None
        done = self._done(marked[-1]) if marked else NOTHING_DONE
        partitions = read_document(
            self._storage, PARTITIONS_DOCUMENT, partial(load, OutputPartitions)
        )
        return CheckpointReport(
            root=self._location,
            job={name: value for name, value in job.items() if name not in {"format", "kind"}},
            entry=entry,
            done=done,
            runs=() if entry is None else self._runs(entry, is_done=done.step >= entry.step),
            steps=tuple(
                (self._entry(name), self._done(name) if name in marked else None)
                for name in logged[-STEPS_SHOWN:]
            ),
            staged=tuple(
                self._read(f"staged/{name}", StagedStep)
                for name in self._storage.names("staged")
                if name > newest
            ),
            empty_partitions=0 if partitions is None else partitions.empty,
        )

    def _runs(self, entry: StepEntry, *, is_done: bool) -> tuple[HeldRun, ...]:
        reached_ms = entry.frontier_ms if is_done else entry.previous_frontier_ms
        found = []
        for run in entry.live_runs if is_done else entry.runs:
            # Rows that a step staged itself and has not released are all held.
            is_whole = run.step == entry.step and not is_done
            held = size = 0
            files = files_of(self._storage, run)
            if files is None:
                raise FileNotFoundError(files_document_name(run))
            for name in files:
                with open_file(self._storage.location(f"runs/{run.name}/{name}")) as file:
                    rows = pq.ParquetFile(file).read(["event_time_ms", "reason"])
                    size += file.size()
                wanted = rows["reason"].is_null()
                if not is_whole:
                    wanted = pc.and_(wanted, pc.greater(rows["event_time_ms"], reached_ms))
                held += pc.sum(wanted).as_py() or 0
            found.append(HeldRun(replace(run, files=files), held, size))
        return tuple(found)

    def _entry(self, name: str) -> StepEntry:
        return self._read(f"frontier/{name}", StepEntry)

    def _done(self, name: str) -> StepDone:
        return self._read(f"done/{name}", StepDone)

    def _read(self, name: str, kind: type[_Found]) -> _Found:
        found = read_document(self._storage, name, partial(load, kind))
        if found is None:
            raise FileNotFoundError(name)
        return found


def _step(entry: StepEntry, done: StepDone | None) -> dict[str, Any]:
    if done is None:
        return {"step": entry.step, "kind": entry.kind.value, "done": False}
    return {**step_summary(entry, done), "done": True}
