"""Deletes the folders that no document of a checkpoint names any more.

A life of the job deletes a folder once a newer document stands that no longer names it. It leaves
what later steps or newer lives have made. Each step looks again: a task of a former life may write
late, into a folder that was deleted, and what it wrote goes with the next step.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from sequitur.pipelines.store.spark_part import FIRST_SPARK_FOLDER
from sequitur.pipelines.store.storage import is_remote

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sequitur.pipelines.store.ownership import Ownership
    from sequitur.pipelines.store.storage import SparkFolder, Storage


_PAUSE_S: Final = 1.0
"""So long a store has peace from a sweep to the next."""


class Sweeper:
    """Deletes folders; requests to a store run beside the job, which does not wait for them."""

    def __init__(self, storage: Storage, spark_folder: SparkFolder, ownership: Ownership) -> None:
        self._storage = storage
        self._spark_folder = spark_folder
        self._ownership = ownership
        is_far = is_remote(storage.location(""))
        self._thread = ThreadPoolExecutor(1, "sweeper") if is_far else None
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[int, Collection[str]]] = {}
        self._files: list[str] = []
        self._source = ""
        self._is_waiting = self._is_away = False
        self._closing = threading.Event()

    def keep(self, step: int, kept: Mapping[str, Collection[str]]) -> None:
        """Delete what a step no longer needs, once its document is there."""
        self._add({folder: (step, names) for folder, names in kept.items()}, ())

    def delete(self, names: Sequence[str]) -> None:
        """Delete files that nothing needs; readers of their folder may find some for a while."""
        self._add({}, names)

    def keep_source(self, source: str) -> None:
        """Delete all of Spark's folders except this one."""
        if source == self._source:
            return
        for name in self._spark_folder.names(""):
            is_one = name.startswith(FIRST_SPARK_FOLDER) and name != source
            owner = _owner_of(name.removeprefix(FIRST_SPARK_FOLDER).removeprefix("-"))
            if is_one and owner <= self._ownership.generation:
                self._spark_folder.delete(name)
        self._source = source

    def close(self) -> None:
        """Finish what was begun, or leave it to the next life if the store does not answer."""
        if self._thread is not None:
            self._closing.set()
            self._thread.shutdown()

    def _add(self, kept: Mapping[str, tuple[int, Collection[str]]], files: Sequence[str]) -> None:
        """Delete more; for a folder only what the newest step keeps counts."""
        with self._lock:
            self._kept |= kept
            self._files += files
            is_waiting, self._is_waiting = self._is_waiting, True
        if self._thread is None:
            self._sweep()
        elif not is_waiting:
            self._thread.submit(self._try_to_sweep)

    def _try_to_sweep(self) -> None:
        """Delete for several steps at once; the next call deletes what this one could not."""
        self._closing.wait(_PAUSE_S)
        if self._closing.is_set() and self._is_away:
            return
        try:
            self._sweep()
            self._is_away = False
        except OSError:
            self._is_away = True

    def _sweep(self) -> None:
        with self._lock:
            kept, files, self._kept, self._files = self._kept, self._files, {}, []
            self._is_waiting = False
        owner = self._ownership.generation
        over = [
            f"{folder}/{name}"
            for folder, (step, names) in kept.items()
            for name in self._storage.names(folder)
            if name not in names and _owner_of(name) <= owner and _step_of(name) <= step
        ]
        self._storage.delete_folders(over)
        self._storage.delete_files(files)


def _step_of(name: str) -> int:
    step = name.partition("-")[0]
    return int(step) if step.isdecimal() else -1


def _owner_of(name: str) -> int:
    parts = name.split("-")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 0
