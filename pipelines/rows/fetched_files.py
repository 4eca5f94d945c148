"""Files of rows on their way into a task: small ones of an object store are fetched once, whole.

A step of some thousand rows reads what the steps of the last seconds have staged: dozens of small
files, the same ones from step to step. By ranges each would cost several requests in each task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sequitur.pipelines.rows.kept_values import KeptValues
from sequitur.pipelines.store.files import is_remote, open_file

if TYPE_CHECKING:
    from sequitur.pipelines.store.files import Location

_SMALL_BYTES: Final = 2 << 20
"""A file up to this size is fetched as a whole: a step of 50,000 rows writes some of these."""
_KEPT_BYTES: Final = 64 << 20
"""Of files that a process keeps."""


_fetched: Final = KeptValues[pa.Buffer](_KEPT_BYTES)


def open_rows(path: Location) -> pa.NativeFile:
    """Open a file of rows for reading at any place in it.

    Raises:
        FileNotFoundError: It is not there.
    """
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
