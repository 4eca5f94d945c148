"""The files of runs and folds, held against the log: each that it names is there.

Others may be there, too: those of tasks that were given up. Readers are told the names of the log,
so these count for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.pipelines._errors import CheckpointError
from sequitur.pipelines.store.documents import BEGIN_ANEW
from sequitur.pipelines.store.part_files import is_rows_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer import Fold, Run, StepEntry
    from sequitur.pipelines.store.storage import Storage


class HeldFiles:
    """What stands in `runs/` and `keys/`.

    Args:
        storage: The checkpoint's folder.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def run_folder(self, name: str) -> str:
        """Return where a run stands."""
        return f"{self._storage.root}/runs/{name}"

    def keys_folder(self, name: str) -> str:
        """Return where a fold stands."""
        return f"{self._storage.root}/keys/{name}"

    def whole_run(self, run: Run) -> list[str]:
        """Return the files of a run, once all of them are seen to be there.

        Raises:
            CheckpointError: One is not.
        """
        return self._whole(self.run_folder(run.name), run.files)

    def whole_fold(self, fold: Fold) -> list[str]:
        """Return the files of a fold, likewise."""
        return self._whole(self.keys_folder(fold.name), fold.files)

    def check_whole(self, entry: StepEntry, *, is_done: bool) -> None:
        """Check that all is there that a step, or those behind it, will read.

        Args:
            entry: The newest step.
            is_done: Whether it is done.

        Raises:
            CheckpointError: Something is gone.
        """
        for run in entry.kept_runs if is_done else entry.runs:
            self.whole_run(run)
        for fold in () if entry.keys is None else entry.keys.folds:
            self.whole_fold(fold)

    def _whole(self, folder: str, files: Mapping[str, int]) -> list[str]:
        """Hold a listing against the log."""
        there = set(filter(is_rows_file, self._storage.names(below(self._storage.root, folder))))
        if gone := sorted(files.keys() - there):
            raise CheckpointError(
                f"{folder}/{gone[0]}, with {files[gone[0]]} rows that were read and are still "
                f"needed, is gone; files that are: {len(gone)} of {len(files)}. Put the folder "
                f"back, or {BEGIN_ANEW}"
            )
        return [f"{folder}/{name}" for name in files]


def below(root: str, folder: str) -> str:
    """Return the name that something in a checkpoint has there; a name is one already."""
    return folder.removeprefix(root).removeprefix("/")
