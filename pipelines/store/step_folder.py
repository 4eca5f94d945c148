"""How a step is written down: one order of documents, for the reorder job and the Spark sink.

::

    staged/<step>  which rows it has, in files; from then on nobody need give them again
    plans/<step>   under which sequences its rows go out, written before any does
    done/<step>    what went out, written once brokers have acknowledged all of it

Each document is created once, and only after the files it names are on the disk. A life that begins
reads the newest step that is logged and the newest done mark. If the two are of different steps,
the step between them is finished first, from its documents and files alone.

The sink stages one batch at a time, and a batch that is staged is logged. The job stages ahead, so
it decides later what a step releases: its step is logged by a document of its own, `frontier/`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

from sequitur.base.stored import dump, load
from sequitur.errors import CheckpointError
from sequitur.pipelines.store.owned_folder import OwnedFolder, step_name
from sequitur.pipelines.store.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sequitur.pipelines.store.storage import SparkFolder, Storage


class StepDocument(Protocol):
    @property
    def step(self) -> int:
        """Number of the step, from 0, without a gap."""


_Entry = TypeVar("_Entry", bound=StepDocument)
_Done = TypeVar("_Done", bound=StepDocument)
KEPT_STEPS: Final = 100


class StepFolder(OwnedFolder, Generic[_Entry, _Done]):
    """An owned folder with the log of steps and the files that its documents name."""

    _LOG: ClassVar[str]  # the folder of the documents that log steps
    _BY_STEP: ClassVar[Sequence[str]]  # folders with a document a step; the newest are kept
    _PUT_BACK: ClassVar[str]  # what to do if part of the log is gone

    def __init__(self, storage: Storage, spark_folder: SparkFolder | None = None) -> None:
        super().__init__(storage)
        self._sweeper = Sweeper(storage, spark_folder or storage, self._ownership)

    def latest(self) -> tuple[_Entry | None, _Done]:
        """Return the newest logged step, and the newest done mark."""
        raise NotImplementedError

    def write_entry(self, entry: _Entry) -> None:
        """Log a step, once all files it names outlast a power cut."""
        raise NotImplementedError

    def write_done(self, done: _Done) -> None:
        """Mark a step as done, and forget one that is long over."""
        self._write_step("done", done)
        if (over := done.step - KEPT_STEPS) >= 0:
            self.sweep([f"{folder}/{step_name(over)}" for folder in self._BY_STEP])

    def drop_attempt(self, name: str) -> None:
        """Delete a folder of an attempt at staging that failed: no document names it.

        In an object store, which may be why the attempt failed, it goes once a step is logged.
        """
        if isinstance(self.location(), Path):
            self._storage.delete(name)

    def sweep(self, names: Sequence[str]) -> None:
        """Delete files that nothing needs; in an object store this runs beside the job."""
        self._sweeper.delete(names)

    def close(self) -> None:
        """Release the folder, so that the next life need not wait."""
        self._sweeper.close()
        super().close()

    def _newest_steps(
        self, kind: type[_Entry], kind_done: type[_Done], nothing_done: _Done
    ) -> tuple[_Entry | None, _Done]:
        # The done mark first: an earlier life may still be at work, and mark a step in between.
        done = self._newest("done", partial(load, kind_done)) or nothing_done
        entry = self._newest(self._LOG, partial(load, kind))
        step = -1 if entry is None else entry.step
        if done.step > step:
            raise self._torn(f"step {done.step} is done, but the last in {self._LOG}/ is {step}")
        return entry, done

    def _torn(self, found: str) -> CheckpointError:
        return CheckpointError(f"{self.root}: {found}: part of the log is gone. {self._PUT_BACK}")

    def _write_step(self, folder: str, document: StepDocument, after: Sequence[str] = ()) -> None:
        self.write_document(f"{folder}/{step_name(document.step)}", dump(document), after)

    def _gone(self, folder: str, files: Collection[str]) -> list[str]:
        return sorted({*files} - {*self._storage.names(folder)})


class LogEnd(Generic[_Entry, _Done]):
    """The newest logged step and the newest done mark, as they are on disk."""

    def __init__(self, folder: StepFolder[_Entry, _Done]) -> None:
        self._folder = folder
        self.entry, self.done = folder.latest()

    @property
    def is_entry_done(self) -> bool:
        """Whether all of the newest logged step is written."""
        return self.entry is None or self.done.step >= self.entry.step

    def write(self, entry: _Entry) -> None:
        self._folder.write_entry(entry)
        self.entry = entry

    def mark_done(self, done: _Done) -> None:
        self._folder.write_done(done)
        self.done = done
