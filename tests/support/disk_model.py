"""A disk that loses, at a power cut, whatever was not synced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from sequitur.base import process
from sequitur.pipelines.store import durable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


class DiskModel:
    """What of the files below a folder would be left.

    It stands behind `sequitur.pipelines.store.durable`, through which all that is to last is
    synced: of a file it remembers the bytes, of a folder the names that were in it when it was last
    synced.

    Args:
        root: The folder; it is there.
        monkeypatch: Puts it in place.
        on_sync: Told after each sync.
    """

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        on_sync: Callable[[], None] = lambda: None,
    ) -> None:
        self.syncs = 0
        self._root = root
        self._on_sync = on_sync
        self._kept: list[int] = []  # files held open, so that their numbers are not given again
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        for room in (durable, process):
            monkeypatch.setattr(room, "sync", self._sync)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._kept:
            os.close(descriptor)

    def left(self, to: Path) -> Path:
        """Write what would be left of the folder to another one."""
        self._write_out(self._root.stat().st_ino, to)
        return to

    def _sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        self._kept.append(descriptor)
        number = os.fstat(descriptor).st_ino
        if path.is_dir():
            self._names[number] = {entry.name: entry.inode() for entry in os.scandir(path)}
            self._kept += [os.open(entry.path, os.O_RDONLY) for entry in os.scandir(path)]
        else:
            self._bytes[number] = path.read_bytes()
        self.syncs += 1
        self._on_sync()

    def _write_out(self, number: int, to: Path) -> None:
        to.mkdir(parents=True)
        for name, below in self._names.get(number, {}).items():
            if below in self._names or below not in self._bytes:
                # Of a file whose bytes were never synced none may be left: a folder stands for it.
                self._write_out(below, to / name)
            else:
                (to / name).write_bytes(self._bytes[below])
