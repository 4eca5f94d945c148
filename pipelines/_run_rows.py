"""Reading rows of runs in Spark's tasks: those of one output partition, slice after slice of time.

A run's row groups say which event times and output partitions they hold, so only those are read
that matter. What a step releases may be far more than fits into memory (a drain, a long delay): so
it is read in slices of event time that are small enough, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines._run_writer import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Bools = np.ndarray[Any, np.dtype[np.bool_]]

ALL_TIME: Final = (-(1 << 63), (1 << 63) - 1)
_SLICE_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of some folders.

    Attributes:
        folders: Local folders of Parquet files.
        first_ms: Rows with an event time from here on.
        last_ms: And up to here, itself included.
        reasons: Rows with one of these reasons; None: without one; empty: whatever it is.
        untimed: Rows without an event time, and no others.
    """

    folders: tuple[str, ...]
    first_ms: int = ALL_TIME[0]
    last_ms: int = ALL_TIME[1]
    reasons: tuple[str, ...] | None = None
    untimed: bool = False


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group that may hold rows wanted."""

    path: str
    metadata: pq.FileMetaData
    number: int
    part: Part
    size_bytes: int
    first_ms: int
    last_ms: int


class RunRows:
    """The rows of some parts that go to one output partition.

    Args:
        parts: The parts.
        partition: The output partition; None for all.
        columns: What is wanted of a row; event time, reason and output partition are read anyway
            where they are needed.
    """

    def __init__(
        self, parts: Iterable[Part], partition: int | None, columns: Sequence[str]
    ) -> None:
        self._partition = partition
        self._columns = tuple(columns)
        self._groups = [group for part in parts for group in self._matching(part)]

    def slices(self) -> Iterator[pa.Table]:
        """The rows, in tables that follow each other in event time; not sorted within."""
        first = min((group.first_ms for group in self._groups), default=0)
        for last in _cuts(self._groups):
            rows = self.between(first, last)
            if rows is not None:
                yield rows
            first = last + 1

    def all(self) -> pa.Table | None:
        """All rows in one table; None without any."""
        return self.between(*ALL_TIME)

    def between(self, first_ms: int, last_ms: int) -> pa.Table | None:
        """The rows between two event times, both included; None without any."""
        tables = []
        files: dict[tuple[str, Part], list[_Group]] = {}
        for group in self._groups:
            if group.first_ms <= last_ms and group.last_ms >= first_ms:
                files.setdefault((group.path, group.part), []).append(group)
        for (path, part), groups in files.items():
            rows = self._read(path, part, groups, first_ms, last_ms)
            if len(rows):
                tables.append(rows)
        return pa.concat_tables(tables) if tables else None

    def _matching(self, part: Part) -> Iterator[_Group]:
        for folder in part.folders:
            for path in sorted(Path(folder).iterdir()):
                if path.suffix == SUFFIX and not path.name.startswith("."):
                    yield from self._matching_in(str(path), part)

    def _matching_in(self, path: str, part: Part) -> Iterator[_Group]:
        metadata = pq.read_metadata(path)
        places = _places(metadata)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            times = _statistics(group, places.get("event_time_ms"))
            first, last = _reach(times)
            if part.untimed:
                if times is not None and times.null_count == 0:
                    continue
            elif first > part.last_ms or last < part.first_ms:
                continue
            if self._partition is not None:
                low, high = _reach(_statistics(group, places.get("output_partition")))
                if not low <= self._partition <= high:
                    continue
            yield _Group(
                path=path,
                metadata=metadata,
                number=number,
                part=part,
                size_bytes=group.total_byte_size,
                first_ms=max(first, part.first_ms),
                last_ms=min(last, part.last_ms),
            )

    def _read(
        self, path: str, part: Part, groups: Sequence[_Group], first_ms: int, last_ms: int
    ) -> pa.Table:
        metadata = groups[0].metadata
        known = _places(metadata)
        needed = (*self._columns, "event_time_ms", "output_partition", "reason")
        with pq.ParquetFile(path, metadata=metadata) as file:
            rows = file.read_row_groups(
                [group.number for group in groups],
                columns=[name for name in dict.fromkeys(needed) if name in known],
                use_threads=False,
            )
        wanted = np.ones(len(rows), np.bool_)
        if "event_time_ms" in known:
            bounds = max(first_ms, part.first_ms), min(last_ms, part.last_ms)
            wanted &= _in_time(rows["event_time_ms"], bounds, untimed=part.untimed)
        if self._partition is not None:
            wanted &= rows["output_partition"].to_numpy() == self._partition
        if part.reasons is None:
            wanted &= rows["reason"].is_null().to_numpy()
        elif part.reasons:
            among = pc.is_in(rows["reason"], pa.array(part.reasons, pa.string()))
            wanted &= among.to_numpy()
        rows = rows.select(self._columns)
        return rows if wanted.all() else rows.filter(pa.array(wanted))


def _in_time(times: pa.ChunkedArray, bounds: tuple[int, int], *, untimed: bool) -> Bools:
    """Which event times lie within bounds, or which are missing."""
    if untimed:
        missing: Bools = times.is_null().to_numpy()
        return missing
    wanted = times.is_valid().to_numpy()
    numbers = times.fill_null(bounds[0]).to_numpy()
    within: Bools = wanted & (numbers >= bounds[0]) & (numbers <= bounds[1])
    return within


def _places(metadata: pq.FileMetaData) -> dict[str, int]:
    """Where the flat columns stand in the file, and the first part of each nested one."""
    places: dict[str, int] = {}
    for number in range(metadata.num_columns):
        places.setdefault(metadata.schema.column(number).path.partition(".")[0], number)
    return places


def _statistics(group: pq.RowGroupMetaData, place: int | None) -> pq.Statistics | None:
    return None if place is None else group.column(place).statistics


def _reach(statistics: pq.Statistics | None) -> tuple[int, int]:
    """Smallest and greatest number of a column; all there are where the file does not say."""
    if statistics is None or not statistics.has_min_max:
        return ALL_TIME
    return statistics.min, statistics.max


def _cuts(groups: Sequence[_Group]) -> list[int]:
    """The last event time of each slice, so that slices have about `_SLICE_BYTES`.

    The rows of a group are taken to be spread evenly over its time.
    """
    if not groups:
        return []
    first = np.array([group.first_ms for group in groups], np.float64)
    last = np.array([group.last_ms for group in groups], np.float64)
    size = np.array([group.size_bytes for group in groups], np.float64)
    end = int(max(group.last_ms for group in groups))
    slices = int(size.sum() // _SLICE_BYTES)
    if not slices:
        return [end]
    times = np.unique(np.concatenate((first, last)))
    times = np.unique(np.concatenate((times, np.linspace(times[0], times[-1], 4 * slices + 2))))
    spread = np.maximum(last - first, 1.0)
    reached = np.array([(np.clip((at - first) / spread, 0, 1) * size).sum() for at in times])
    wanted = np.arange(1, slices + 1) * _SLICE_BYTES
    cuts = np.floor(np.interp(wanted, reached, times)).astype(np.int64)
    return [*np.unique(cuts[cuts < end]).tolist(), end]
