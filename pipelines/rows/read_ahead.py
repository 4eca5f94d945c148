"""Row groups that are read at once: beside each other in a file, and some files of a store."""

from __future__ import annotations

import functools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from sequitur.pipelines.store.files import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from sequitur.pipelines.rows.run_rows import RowGroup

_READERS: Final = 8
"""So many files of an object store are read at once: each answer takes a while to begin."""


@functools.cache
def readers() -> ThreadPoolExecutor:
    """Return this process's threads that wait for an object store."""
    return ThreadPoolExecutor(_READERS, thread_name_prefix="rows")


def size_of(groups: Iterable[RowGroup]) -> int:
    """Return the bytes of row groups."""
    return sum(group.size_bytes for group in groups)


def side_by_side(groups: Iterable[RowGroup], most_bytes: int) -> Iterator[list[RowGroup]]:
    """Bring together row groups of one file and part, not more than so many bytes if need not be.

    Each is read with one call.
    """
    some: list[RowGroup] = []
    size = 0
    for group in groups:
        size += group.size_bytes
        is_beside = some and group.path == some[0].path and group.part is some[0].part
        if some and (not is_beside or size > most_bytes):
            yield some
            some, size = [], group.size_bytes
        some.append(group)
    if some:
        yield some


def read_ahead(
    groups: Iterable[list[RowGroup]],
    read: Callable[[Sequence[RowGroup]], pa.Table],
    most_bytes: int,
) -> Iterator[pa.Table]:
    """Read row groups in their order; where they are far away, some of them at once."""
    waiting: deque[tuple[int, Future[pa.Table]]] = deque()
    ahead = 0
    for several in groups:
        if not is_remote(several[0].path):
            yield read(several)
            continue
        size = size_of(several)
        while waiting and (ahead + size > most_bytes or len(waiting) >= _READERS):
            freed, rows = waiting.popleft()
            ahead -= freed
            yield rows.result()
        waiting.append((size, readers().submit(read, several)))
        ahead += size
    while waiting:
        yield waiting.popleft()[1].result()
