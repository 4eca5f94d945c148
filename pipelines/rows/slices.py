"""Where rows are cut into slices that fit into memory: by row groups, or by what was counted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from sequitur.pipelines.rows.columns import sources
from sequitur.pipelines.spark.partition_blocks import stretches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from sequitur.kafka.partition import SourcePartition

    Longs = np.ndarray[Any, np.dtype[np.int64]]


SourceRanges: TypeAlias = "Mapping[SourcePartition, tuple[int, int]]"
"""Offsets of source partitions: the first and the last that are meant."""
_BLOCK_BITS: Final = 6
"""Offsets are counted by blocks of 64: what is known of many rows has to be small."""


@dataclass(frozen=True, slots=True)
class TimeSlice:
    first_ms: int  # the smallest event time
    last_ms: int
    size_bytes: int  # about so much


def time_cuts(spans: Sequence[tuple[int, int, int]], limit: int) -> list[int]:
    """Return the last event time of each slice, so that slices have about `limit` bytes.

    Rows are taken to be spread evenly over the time of their row group.
    """
    if not spans:
        return []
    first, last, size = np.array(spans, np.float64).T
    end = max(one[1] for one in spans)
    slices = int(size.sum() // limit)
    if not slices:
        return [end]
    times = np.unique(np.concatenate((first, last)))
    times = np.unique(np.concatenate((times, np.linspace(times[0], times[-1], 4 * slices + 2))))
    spread = np.maximum(last - first, 1.0)
    reached = np.array([(np.clip((at - first) / spread, 0, 1) * size).sum() for at in times])
    wanted = np.arange(1, slices + 1) * limit
    cuts = np.floor(np.interp(wanted, reached, times)).astype(np.int64)
    return [*np.unique(cuts[cuts < end]).tolist(), end]


def counted_times(pieces: Iterable[pa.Table], row_bytes: float, limit: int) -> Iterator[TimeSlice]:
    """Cut rows by event time; only a slice of a single event time is larger than `limit`."""
    found = [np.unique(rows["event_time_ms"].to_numpy(), return_counts=True) for rows in pieces]
    if not found:
        return
    times, place = np.unique(np.concatenate([one for one, _ in found]), return_inverse=True)
    counts = np.bincount(place, np.concatenate([count for _, count in found]))
    ends = np.cumsum(counts * row_bytes)
    for begin, end in pairwise(bounds_of(ends, limit)):
        size = ends[end - 1] - (ends[begin - 1] if begin else 0)
        yield TimeSlice(int(times[begin]), int(times[end - 1]), int(size))


def counted_sources(
    pieces: Iterable[pa.Table], row_bytes: float, limit: int
) -> Iterator[SourceRanges]:
    """Cut rows by source, in the order of topic (its bytes), partition, offset."""
    found: dict[SourcePartition, list[tuple[Longs, Longs]]] = {}
    for rows in pieces:
        offsets = rows["offset"].to_numpy()
        for source, place in sources(rows):
            blocks, counts = np.unique(offsets[place] >> _BLOCK_BITS, return_counts=True)
            found.setdefault(source, []).append((blocks, counts))
    if not found:
        return
    ordered = sorted(found, key=lambda source: (source.topic.encode(), source.partition))
    owners: list[Longs] = []
    several_blocks: list[Longs] = []
    sizes: list[np.ndarray[Any, Any]] = []
    for number, source in enumerate(ordered):
        blocks, counts = (np.concatenate(column) for column in zip(*found[source], strict=True))
        own, place = np.unique(blocks, return_inverse=True)
        owners.append(np.full(len(own), number))
        several_blocks.append(own)
        sizes.append(np.bincount(place, counts) * row_bytes)
    owner, block = np.concatenate(owners), np.concatenate(several_blocks)
    for begin, end in pairwise(bounds_of(np.cumsum(np.concatenate(sizes)), limit)):
        own = block[begin:end]
        yield {
            ordered[number]: (
                int(own[here][0]) << _BLOCK_BITS,
                ((int(own[here][-1]) + 1) << _BLOCK_BITS) - 1,
            )
            for number, here in stretches(owner[begin:end])
        }


def bounds_of(ends: np.ndarray[Any, Any], limit: int, most: int | None = None) -> list[int]:
    """Return where slices begin, and where the last one ends; each has at least one element."""
    bounds = [0]
    while (begin := bounds[-1]) < len(ends):
        reached = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, reached + limit, side="right")), begin + 1)
        bounds.append(end if most is None else min(end, begin + most))
    return bounds
