"""Files of rows on their way into a task: small ones of an object store are fetched once, whole.

A step of some thousand rows reads what the steps of the last seconds have staged: dozens of small
files, the same ones from step to step. By ranges each would cost several requests in each task. A
file is written once, under a name of its own, so what a process has fetched of it stays true.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sequitur.pipelines.store.files import is_remote, open_file

if TYPE_CHECKING:
    from sequitur.pipelines.store.files import Location

_SMALL_BYTES: Final = 2 << 20
"""A file up to this size is fetched as a whole: a step of 50,000 rows writes some of these."""
_KEPT_BYTES: Final = 64 << 20
"""Of files that a process keeps."""


class _Fetched:
    """Files that this process has fetched last."""

    def __init__(self) -> None:
        self._kept: dict[Location, pa.Buffer] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()

    def open(self, path: Location) -> pa.NativeFile:
        content = self._kept.get(path)
        if content is not None:
            return pa.BufferReader(content)
        file = open_file(path)
        if file.size() > _SMALL_BYTES:
            return file
        with file:
            content = file.read_buffer()
        with self._lock:
            if path not in self._kept:
                self._kept[path] = content
                self._size_bytes += content.size
            while self._size_bytes > _KEPT_BYTES:
                self._size_bytes -= self._kept.pop(next(iter(self._kept))).size
        return pa.BufferReader(content)


_fetched: Final = _Fetched()


def open_rows(path: Location) -> pa.NativeFile:
    """Open a file of rows for reading at any place in it.

    Raises:
        FileNotFoundError: It is not there.
    """
    return _fetched.open(path) if is_remote(path) else open_file(path)
