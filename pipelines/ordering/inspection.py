"""A look at a checkpoint without Spark: only reading, and of a running job's, too.

The state is JSON and Parquet, so pyarrow reads it, from a local path or from where its own file
systems reach (`file:`, `s3://`, `gs://`, `abfs://`, `hdfs://`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from sequitur.consumer import (
    BEFORE_ALL_TIME_MS,
    NOTHING_DONE,
    Run,
    StagedStep,
    StepDone,
    StepEntry,
)
from sequitur.pipelines._errors import CheckpointError
from sequitur.pipelines.ordering.progress import counts, promised_and_achieved, step_summary
from sequitur.pipelines.store.documents import understood
from sequitur.pipelines.store.job_identity import check_format
from sequitur.pipelines.store.object_path import object_path
from sequitur.pipelines.store.storage import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer import Fold

STEPS_SHOWN: Final = 10
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run, and how many of its rows are not out yet."""

    run: Run
    held: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FolderSize:
    """Parquet files in a folder.

    Attributes:
        files: How many.
        rows: Their rows.
        size_bytes: Their bytes.
    """

    files: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """What a checkpoint holds.

    Attributes:
        root: The folder.
        job: Whose it is, as it stands in `format.json`.
        entry: The newest step; None before the first.
        done: The newest step that is done, with all counts.
        runs: The runs that hold rows.
        keys: The keys' last event times.
        steps: The last steps, oldest first; the newest may not be done.
        staged: The steps behind these that are read, and not decided yet.
    """

    root: str
    job: Mapping[str, Any]
    entry: StepEntry | None
    done: StepDone
    runs: tuple[HeldRun, ...]
    keys: FolderSize
    steps: tuple[tuple[StepEntry, StepDone | None], ...]
    staged: tuple[StagedStep, ...] = ()

    @property
    def frontier_ms(self) -> int:
        """The frontier; `BEFORE_ALL_TIME_MS` before it first moves."""
        return BEFORE_ALL_TIME_MS if self.entry is None else self.entry.frontier_ms

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values, for `json.dumps`."""
        entry = self.entry
        return {
            "checkpoint": self.root,
            "job": dict(self.job),
            "frontier_ms": self.frontier_ms,
            "totals": counts(self.done.totals),
            "partitions": [] if entry is None else entry.clock.to_document()["partitions"],
            "learned": None if entry is None else promised_and_achieved(entry.learned) or None,
            "runs": [
                {**asdict(found.run), "held": found.held, "size_bytes": found.size_bytes}
                for found in self.runs
            ],
            "keys": asdict(self.keys),
            "folds": [asdict(fold) for fold in _folds(entry)],
            "steps": [_step(entry, done) for entry, done in self.steps],
            "staged": [{"step": one.step, "read": one.staged.read} for one in self.staged],
        }


def inspect_checkpoint(location: str) -> CheckpointReport:
    """Read what a checkpoint holds.

    Args:
        location: The folder, as a path or URI.

    Raises:
        CheckpointError: There is none, it cannot be read, or it is of something else or of a newer
            version.
    """
    files, root = _open(location)
    folder = _Folder(files, root, location)
    try:
        return folder.report()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{location} changed while it was read: a job runs on it, so try again ({error})"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"{location} cannot be read: {error}") from error


def _open(location: str) -> tuple[fs.FileSystem, str]:
    local = local_path(location)
    if local is not None:
        return fs.LocalFileSystem(), str(local)
    objects = object_path(location, lambda _: None)
    if objects is not None:
        return objects.bucket.files(), objects.path
    try:
        files, root = fs.FileSystem.from_uri(location)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise CheckpointError(
            f"{location}: only local paths, and what pyarrow reaches without Spark (s3, gs, hdfs), "
            f"can be inspected: {error}"
        ) from error
    return files, root


class _Folder:
    def __init__(self, files: fs.FileSystem, root: str, location: str) -> None:
        self._files = files
        self._root = root
        self._location = location

    def report(self) -> CheckpointReport:
        job = self._job()
        entries, done = self._names("frontier"), self._names("done")
        entry = self._entry(entries[-1]) if entries else None
        last = self._done(done[-1]) if done else NOTHING_DONE
        return CheckpointReport(
            root=self._location,
            job=job,
            entry=entry,
            done=last,
            runs=() if entry is None else self._runs(entry, is_done=last.step >= entry.step),
            keys=_size_of(_folds(entry)),
            steps=self._steps(entries, set(done)),
            staged=self._staged(entries[-1] if entries else ""),
        )

    def _job(self) -> dict[str, Any]:
        try:
            found = self._read("format.json", meaning=dict)
        except FileNotFoundError:
            raise CheckpointError(f"{self._location} is not a reorder job's checkpoint") from None
        check_format(self._location, found)
        return {name: value for name, value in found.items() if name not in {"format", "kind"}}

    def _steps(
        self, entries: list[str], done: set[str]
    ) -> tuple[tuple[StepEntry, StepDone | None], ...]:
        return tuple(
            (self._entry(name), self._done(name) if name in done else None)
            for name in entries[-STEPS_SHOWN:]
        )

    def _staged(self, newest: str) -> tuple[StagedStep, ...]:
        names = self._names("staged") if self._is_there("staged") else []
        return tuple(
            self._read("staged", name, meaning=StagedStep.from_document)
            for name in names
            if name > newest
        )

    def _runs(self, entry: StepEntry, *, is_done: bool) -> tuple[HeldRun, ...]:
        from pyarrow.dataset import dataset  # noqa: PLC0415 - loads pandas: half a second

        runs = entry.live_runs if is_done else entry.runs
        found = []
        for run in runs:
            # What a step staged itself and has not released yet is all held.
            own = run.step == entry.step and not is_done
            reached = entry.frontier_ms if is_done else entry.previous_frontier_ms
            held = pc.field("reason").is_null()
            if not own:
                held &= pc.field("event_time_ms") > reached
            # Others are of tasks that were given up.
            below = self._parquet("runs", run.name)
            parquet = [file for file in below if file.base_name in run.files]
            table = dataset(
                [file.path for file in parquet], filesystem=self._files, format="parquet"
            )
            rows = table.count_rows(filter=held) if parquet else 0
            found.append(HeldRun(run, rows, sum(file.size for file in parquet)))
        return tuple(found)

    def _is_there(self, name: str) -> bool:
        info = self._files.get_file_info(self._path(name))
        return bool(info.type == fs.FileType.Directory)

    def _parquet(self, *parts: str) -> list[Any]:
        """Parquet files below a folder, without temporary ones."""
        below = self._files.get_file_info(fs.FileSelector(self._path(*parts), recursive=True))
        start = len(self._path(*parts))
        return [
            file
            for file in below
            if file.is_file
            and file.extension == "parquet"
            and not any(part.startswith((".", "_")) for part in file.path[start:].split("/"))
        ]

    def _names(self, folder: str) -> list[str]:
        listed = self._files.get_file_info(fs.FileSelector(self._path(folder)))
        return sorted(file.base_name for file in listed if not file.base_name.startswith("."))

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def _entry(self, name: str) -> StepEntry:
        return self._read("frontier", name, meaning=StepEntry.from_document)

    def _done(self, name: str) -> StepDone:
        return self._read("done", name, meaning=StepDone.from_document)

    def _read(self, *parts: str, meaning: Callable[[dict[str, Any]], _Found]) -> _Found:
        with self._files.open_input_stream(self._path(*parts)) as stream:
            return understood("/".join((self._location, *parts)), stream.read(), meaning)


def _folds(entry: StepEntry | None) -> tuple[Fold, ...]:
    return () if entry is None or entry.keys is None else entry.keys.folds


def _size_of(folds: Sequence[Fold]) -> FolderSize:
    """What the log says of them: in their folders files of tasks that were given up may be, too."""
    return FolderSize(
        files=sum(len(fold.files) for fold in folds),
        rows=sum(fold.keys for fold in folds),
        size_bytes=sum(fold.size_bytes for fold in folds),
    )


def _step(entry: StepEntry, done: StepDone | None) -> dict[str, Any]:
    if done is None:
        return {"step": entry.step, "kind": entry.kind.value, "done": False}
    return {**step_summary(entry, done), "done": True}
