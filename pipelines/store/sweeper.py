"""Deleting what no document of a checkpoint names any more.

A folder is deleted once a newer document stands that no longer names it, by a life that wrote that
document. What later steps or newer lives have made stays. Each step looks anew: so what a task of a
life that is over writes late, into a folder that was deleted, goes with the next step.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sequitur.pipelines.store.files import is_remote
from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sequitur.pipelines.store.ownership import Ownership
    from sequitur.pipelines.store.storage import SparkFolder, Storage


class Sweeper:
    """Deletes folders; where that takes requests beside the job, which does not wait for it."""

    def __init__(self, storage: Storage, spark_folder: SparkFolder, ownership: Ownership) -> None:
        self._storage = storage
        self._spark_folder = spark_folder
        self._ownership = ownership
        is_far = is_remote(storage.location(""))
        self._thread = ThreadPoolExecutor(1, "sweeper") if is_far else None
        self._is_away = self._is_closing = False

    def keep(self, step: int, kept: Mapping[str, Collection[str]]) -> None:
        """Delete what a step no longer needs, whose document stands."""
        if self._thread is None:
            self._sweep(step, kept)
        else:
            self._thread.submit(self._try_to_sweep, step, kept)

    def keep_sources(self, names: Collection[str]) -> None:
        """Delete all folders of Spark's but these."""
        for name in self._spark_folder.names(""):
            is_one = name.startswith(FIRST_SPARK_FOLDER) and name not in names
            owner = _owner_of(name.removeprefix(FIRST_SPARK_FOLDER).removeprefix("-"))
            if is_one and owner <= self._ownership.generation:
                self._spark_folder.delete(name)

    def close(self) -> None:
        """Finish what was begun, or leave it to the next life where the store does not answer."""
        if self._thread is not None:
            self._is_closing = True
            self._thread.shutdown()

    def _try_to_sweep(self, step: int, kept: Mapping[str, Collection[str]]) -> None:
        """What one call fails to delete, the next one finds again."""
        if self._is_closing and self._is_away:
            return
        try:
            self._sweep(step, kept)
            self._is_away = False
        except OSError:
            self._is_away = True

    def _sweep(self, step: int, kept: Mapping[str, Collection[str]]) -> None:
        owner = self._ownership.generation
        for folder, names in kept.items():
            for name in self._storage.names(folder):
                is_ours = _owner_of(name) <= owner and _step_of(name) <= step
                if is_ours and name not in names:
                    self._storage.delete(f"{folder}/{name}")


def _step_of(name: str) -> int:
    """Return the step that a folder's name holds."""
    step = name.partition("-")[0]
    return int(step) if step.isdecimal() else -1


def _owner_of(name: str) -> int:
    """Return the generation that a folder's name holds."""
    parts = name.split("-")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 0
