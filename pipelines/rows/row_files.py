"""Reading files of rows: their footers, and their row groups, as few requests as may be.

A file is written once, under a name of its own, so what was read of it stays true. Python workers
live on from task to task, and keep what they have read last.

A step of some thousand rows reads what the steps of the last seconds have staged: dozens of small
files, the same ones from step to step. Reading each by ranges would cost several requests in each
task, so small files of an object store are fetched once, whole.
"""

from __future__ import annotations

import functools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.base.portions import portions
from sequitur.pipelines.store.part_files import (
    FOOTERS_BYTES,
    KeptValues,
    footer_bytes,
    newest_footers,
)
from sequitur.pipelines.store.storage import is_remote, open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from sequitur.pipelines.rows.run_rows import RowGroup
    from sequitur.pipelines.store.storage import Location


ALL_TIME: Final = (-(1 << 63), (1 << 63) - 1)
_UNKNOWN: Final = -1
_SMALL_BYTES: Final = 16 << 20
"""A file up to this size is fetched as a whole: a step of 50,000 rows writes 10 MiB."""
_KEPT_BYTES: Final = 64 << 20
"""Of files that a process keeps."""
_READERS: Final = 8
"""So many files of an object store are read at once: each answer takes a while to begin."""


class GroupFacts(NamedTuple):
    rows: int
    size_bytes: int
    first_ms: int  # smallest event time
    last_ms: int
    untimed: int  # rows without event time; -1 if the file does not say
    unmarked: int  # rows without a reason; -1 if the file does not say
    first_partition: int  # smallest output partition
    last_partition: int


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    metadata: pq.FileMetaData
    places: dict[str, int]  # where columns stand in it
    reach_ms: tuple[int, int]  # smallest and greatest event time of all row groups
    groups: tuple[GroupFacts, ...]

    def statistics(self, number: int, name: str) -> pq.Statistics | None:
        """Return a column's statistics in a row group; None if the file has none."""
        return _statistics(self.metadata.row_group(number), self.places.get(name))


_fetched: Final = KeptValues[pa.Buffer](_KEPT_BYTES)
_known: Final = KeptValues[Footer](FOOTERS_BYTES)


def open_rows(path: Location) -> pa.NativeFile:
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


def footer_of(path: Location) -> Footer:
    footer = _known.get(path)
    if footer is None:
        metadata = newest_footers.get(path)
        if metadata is None:
            with open_rows(path) as file:
                metadata = pq.read_metadata(file)
        footer = _read(metadata)
        _known.keep(path, footer, footer_bytes(metadata))
    return footer


def reach(statistics: pq.Statistics | None) -> tuple[int, int]:
    """Return the smallest and greatest number of a column; all numbers if the file does not say."""
    if statistics is None or not statistics.has_min_max:
        return ALL_TIME
    return statistics.min, statistics.max


def only_value(statistics: pq.Statistics | None) -> Any:
    """Return the value that a column has in all rows, if the file says so."""
    if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
        return None
    return statistics.min


def _read(metadata: pq.FileMetaData) -> Footer:
    places: dict[str, int] = {}
    for number in range(metadata.num_columns):
        # Flat columns, and the first part of each nested one.
        places.setdefault(metadata.schema.column(number).path.partition(".")[0], number)
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        times = _statistics(group, places.get("event_time_ms"))
        reasons = _statistics(group, places.get("reason"))
        facts = GroupFacts(
            group.num_rows,
            group.total_byte_size,
            *reach(times),
            _nulls(times),
            _nulls(reasons),
            *reach(_statistics(group, places.get("output_partition"))),
        )
        found.append(facts)
    reach_ms = ALL_TIME
    if found:
        reach_ms = min(one.first_ms for one in found), max(one.last_ms for one in found)
    return Footer(metadata, places, reach_ms, tuple(found))


def _statistics(group: pq.RowGroupMetaData, place: int | None) -> pq.Statistics | None:
    return None if place is None else group.column(place).statistics


def _nulls(statistics: pq.Statistics | None) -> int:
    if statistics is None or not statistics.has_null_count:
        return _UNKNOWN
    nulls: int = statistics.null_count
    return nulls


@functools.cache
def readers() -> ThreadPoolExecutor:
    """Return this process's threads that wait for an object store."""
    return ThreadPoolExecutor(_READERS, thread_name_prefix="rows")


def size_of(groups: Iterable[RowGroup]) -> int:
    return sum(group.size_bytes for group in groups)


def side_by_side(groups: Iterable[RowGroup], most_bytes: int) -> Iterator[list[RowGroup]]:
    """Bring together row groups of one file and part, not more than so many bytes if need not be.

    Each is read with one call.
    """
    return portions(
        groups,
        lambda group: group.size_bytes,
        most_bytes,
        is_beside=lambda last, group: group.path == last.path and group.part is last.part,
    )


def read_ahead(
    groups: Iterable[list[RowGroup]],
    read: Callable[[Sequence[RowGroup]], pa.Table],
    most_bytes: int,
) -> Iterator[pa.Table]:
    """Read row groups in order; read some at once if they are far away."""
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
