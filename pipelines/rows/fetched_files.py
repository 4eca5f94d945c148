"""What a process has read of files last, so that it is not read anew by each task.

A file is written once, under a name of its own, so what was read of it stays true. Python workers
live on from task to task.

A step of some thousand rows reads what the steps of the last seconds have staged: dozens of small
files, the same ones from step to step. By ranges each would cost several requests in each task, so
small ones of an object store are fetched once, whole.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import pyarrow as pa

from sequitur.pipelines.store.files import is_remote, open_file

if TYPE_CHECKING:
    from sequitur.pipelines.store.files import Location

_SMALL_BYTES: Final = 2 << 20
"""A file up to this size is fetched as a whole: a step of 50,000 rows writes some of these."""
_KEPT_BYTES: Final = 64 << 20
"""Of files that a process keeps."""
_T = TypeVar("_T")


class KeptValues(Generic[_T]):
    """Values by file, the oldest of which go first; the newest one is always kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[Location, tuple[_T, int]] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, path: Location) -> _T | None:
        """Return a file's value; None where it is not kept."""
        found = self._kept.get(path)
        return None if found is None else found[0]

    def keep(self, path: Location, value: _T, size_bytes: int) -> None:
        """Keep a file's value, unless another thread has done so."""
        with self._lock:
            if path in self._kept:
                return
            self._kept[path] = value, size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > self._most_bytes and len(self._kept) > 1:
                self._size_bytes -= self._kept.pop(next(iter(self._kept)))[1]


_fetched: Final = KeptValues[pa.Buffer](_KEPT_BYTES)


def open_rows(path: Location) -> pa.NativeFile:
    """Open a file of rows for reading at any place in it."""
    if not is_remote(path):
        return open_file(path)
    content = _fetched.get(path)
    if content is None:
        file = open_file(path)
        if file.size() > _SMALL_BYTES:
            return file
        with file:
            content = file.read_buffer()
        _fetched.keep(path, content, content.size)
    return pa.BufferReader(content)
