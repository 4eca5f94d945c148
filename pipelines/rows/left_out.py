"""Rows to be left out of others: duplicates, and events that a topology is not done with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sequitur.pipelines.rows.columns import ROW_LIMITS, SOURCE_ORDER, sources
from sequitur.pipelines.rows.run_rows import Part, RunRows

if TYPE_CHECKING:
    from sequitur.pipelines.rows.columns import RowLimits
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


class Places:
    """Rows to leave out, by where they came from."""

    def __init__(self, files: tuple[Location, ...], limits: RowLimits = ROW_LIMITS) -> None:
        found: dict[tuple[str, int], list[Longs]] = {}
        for rows in RunRows((Part(files, reasons=()),), None, SOURCE_ORDER, limits).pieces():
            offsets = rows["offset"].to_numpy()
            for source, place in sources(rows):
                found.setdefault(source, []).append(offsets[place])
        self._offsets = {source: np.concatenate(several) for source, several in found.items()}

    def without(self, rows: pa.Table) -> pa.Table:
        if not self._offsets or not len(rows):
            return rows
        offsets = rows["offset"].to_numpy()
        left_out = np.zeros(len(rows), np.bool_)
        for source, place in sources(rows):
            left_out[place] = np.isin(offsets[place], self._offsets.get(source, ()))
        return rows.filter(pa.array(~left_out))


class Roots:
    """Rows to leave out, by the roots of their trees."""

    def __init__(self, files: tuple[Location, ...]) -> None:
        pieces = RunRows((Part(files, reasons=()),), None, ("root",)).pieces()
        found = [rows["root"].to_numpy() for rows in pieces]
        self._roots = np.concatenate([np.empty(0, np.uint64), *found])

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(self._roots.tolist())

    def without(self, rows: pa.Table) -> pa.Table:
        if not len(self._roots) or not len(rows):
            return rows
        return rows.filter(pa.array(~np.isin(rows["root"].to_numpy(), self._roots)))
