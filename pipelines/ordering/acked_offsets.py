"""Offsets of a job's rows: those that are still in it, and those that a cursor has acked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sequitur.pipelines.rows.columns import SOURCE_ORDER
from sequitur.pipelines.rows.release import Part, RunRows
from sequitur.pipelines.rows.stage import sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer import Cursor, SourcePartition, StepEntry
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.files import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


def held_offsets(
    checkpoint: Checkpoint, entry: StepEntry, waiting: Sequence[Location]
) -> dict[SourcePartition, Longs]:
    """Return the offsets of rows that are still in the job once a step is done."""
    parts = []
    if live := entry.live_runs:
        parts.append(Part(checkpoint.files(*live), entry.frontier_ms + 1))
    if waiting:
        parts.append(Part(tuple(waiting), reasons=()))
    found: dict[SourcePartition, list[Longs]] = {}
    if parts:
        for rows in RunRows(parts, None, SOURCE_ORDER).pieces():
            offsets = rows["offset"].to_numpy()
            for source, place in sources(rows):
                found.setdefault(source, []).append(offsets[place])
    return {where: np.concatenate(several) for where, several in found.items()}


def acked_between(cursor: Cursor, first: int, stop: int) -> tuple[Longs, Longs]:
    """Return what a cursor has acked from one offset to before another, as ranges."""
    firsts, stops = cursor.acked_arrays()
    firsts = np.concatenate([[0], firsts])
    stops = np.concatenate([[cursor.committed_offset], stops])
    some = (stops > first) & (firsts < stop) & (firsts < stops)
    return firsts[some], stops[some]
