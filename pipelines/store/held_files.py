"""The files of runs and folds, held against the log: each that it names is there.

Others may be there, too: those of tasks that were given up. Readers are told the names of the log,
so these count for nothing. A reader that misses one fails by itself; folders are listed at the
start, and to say by name what a step failed of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import Run
from sequitur.pipelines._errors import CheckpointError
from sequitur.pipelines.store.documents import BEGIN_ANEW
from sequitur.pipelines.store.part_files import is_rows_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer import Fold, StepEntry
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

    def files(self, held: Run | Fold) -> list[str]:
        """Return the files of a run or fold, as the log names them."""
        folder = self._folder(held)
        return [f"{folder}/{name}" for name in held.files]

    def _folder(self, held: Run | Fold) -> str:
        return (self.run_folder if isinstance(held, Run) else self.keys_folder)(held.name)

    def check_whole(self, entry: StepEntry, *, is_done: bool) -> None:
        """Check that all is there that a step, or those behind it, will read.

        Args:
            entry: The newest step.
            is_done: Whether it is done.

        Raises:
            CheckpointError: Something is gone.
        """
        self.check_there(*(entry.kept_runs if is_done else entry.runs))
        self.check_there(*(() if entry.keys is None else entry.keys.folds))

    def check_there(self, *held: Run | Fold) -> None:
        """Check that all files of runs and folds are there.

        Raises:
            CheckpointError: One is not.
        """
        for one in held:
            self._check(self._folder(one), one.files)

    def _check(self, folder: str, files: Mapping[str, int]) -> None:
        """Hold a listing against the log."""
        there = set(filter(is_rows_file, self._storage.names(below(self._storage.root, folder))))
        if gone := sorted(files.keys() - there):
            raise CheckpointError(
                f"{folder}/{gone[0]}, with {files[gone[0]]} rows that were read and are still "
                f"needed, is gone; files that are: {len(gone)} of {len(files)}. Put the folder "
                f"back, or {BEGIN_ANEW}"
            )


def below(root: str, folder: str) -> str:
    """Return the name that something in a checkpoint has there; a name is one already."""
    return folder.removeprefix(root).removeprefix("/")
