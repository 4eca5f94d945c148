"""Tasks on the keys of rows: judging the rows behind the frontier, and folding runs.

Rows that are out are folded into one row a key. The keys of the few rows behind the frontier are
looked up in runs and folds. Either task reads two columns, in latest mode four, and only rows that
can matter.

A key's rows all go to one output partition, so each task finds all it has to know among the rows of
its own partitions. `sequitur.consumer.reorder.key_state` says what is kept, and why that suffices;
`sequitur.consumer.reorder.lateness.LateJudge` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder import ReorderMode
from sequitur.pipelines.rows.columns import (
    RELEASE_ORDER,
    ROW_LIMITS,
    RUN_ARROW_SCHEMA,
    in_row_groups,
)
from sequitur.pipelines.rows.left_out import Places
from sequitur.pipelines.rows.row_order import comparable, order_of
from sequitur.pipelines.rows.run_rows import RunRows
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sequitur.consumer.reorder.lateness import LateJudge
    from sequitur.pipelines.rows.columns import RowLimits
    from sequitur.pipelines.rows.run_rows import Part
    from sequitur.pipelines.store.storage import Location

    Longs = np.ndarray[Any, np.dtype[np.int64]]


_BEHIND_SCHEMA: Final = RUN_ARROW_SCHEMA.append(pa.field("last_released_ms", pa.int64()))
_FOLD_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("event_time_ms", pa.int64()),
        # Known only in latest mode, where places break ties.
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("output_partition", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class JudgeTask:
    folder: Location
    behind: Part  # these rows
    # released rows and folds of them; none is older than what matters
    released: tuple[Part, ...]
    judge: LateJudge
    duplicates: tuple[Location, ...] = ()  # files with the places of rows to leave out
    limits: RowLimits = ROW_LIMITS
    keeps: bool = False  # as of `RunWriter`

    def __call__(self, partitions: range) -> WrittenFile:
        left_out = Places(self.duplicates, self.limits)
        late, rows = 0, self.limits.row_group_rows
        with PartFile(self.folder, _BEHIND_SCHEMA, rows, keeps=self.keeps) as file:
            behind = RunRows((self.behind,), partitions, RUN_ARROW_SCHEMA.names, self.limits)
            for block in behind.blocks():
                last = self._last_released(block.partitions)
                for found in block.pieces():
                    judged = self._judged(left_out.without(found), last)
                    for some in in_row_groups(judged, self.limits):
                        file.write(some)
                    late += len(judged) - judged["reason"].null_count
        return WrittenFile(file.name, file.size_bytes, file.rows, late)

    def _judged(self, rows: pa.Table, last: pa.Table) -> pa.Table:
        """Add the reason of late rows, and the last released event time of their keys."""
        keys = rows["key"].combine_chunks()
        found = last.take(pc.index_in(keys, last["key"].combine_chunks()))
        last_ms = found["event_time_ms"].combine_chunks()
        has_last = _mask(last_ms.is_valid())
        place, last_place = self._places(rows, found, has_last)
        is_late = self.judge.is_late(
            event_time_ms=rows["event_time_ms"].to_numpy(),
            has_key=_mask(keys.is_valid()),
            place=place,
            last=last_place,
            has_last=has_last,
        )
        reasons = pc.if_else(pa.array(is_late), self.judge.reason, pa.scalar(None, pa.string()))
        number = rows.schema.get_field_index("reason")
        return rows.set_column(number, "reason", reasons).append_column("last_released_ms", last_ms)

    def _places(self, rows: pa.Table, last: pa.Table, has_last: Any) -> tuple[Longs, Longs]:
        """Return numbers that compare like the places of rows and of their keys' last rows."""
        names = place_columns(self.judge.mode)
        some = pa.array(has_last)
        both = pa.concat_tables([one.select(names).filter(some) for one in (rows, last)])
        columns = [comparable(both[name]) for name in names]
        order = np.lexsort(columns[::-1])
        is_another = np.zeros(len(order), np.bool_)
        for column in columns:
            is_another[1:] |= np.diff(column[order]) != 0
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.cumsum(is_another)
        places = np.zeros((2, len(rows)), np.int64)
        places[:, has_last] = ranks.reshape(2, -1)
        return places[0], places[1]

    def _last_released(self, partitions: range | None) -> pa.Table:
        wanted, more = pa.array([], pa.binary()), pa.array([], pa.binary())
        asked = ("key", "event_time_ms")
        for rows in RunRows((self.behind,), partitions, asked, self.limits).pieces():
            asking = self.judge.asks_key(rows["event_time_ms"].to_numpy())
            more = pa.concat_arrays([more, rows.filter(pa.array(asking))["key"].unique()])
            if len(more) >= len(wanted):  # so that each key is looked at only a few times
                wanted, more = pa.concat_arrays([wanted, more]).unique(), more[:0]
        wanted = pa.concat_arrays([wanted, more]).unique().drop_null()
        place = place_columns(self.judge.mode)
        parts = self.released if len(wanted) else ()
        rows = RunRows(parts, partitions, ("key", *place), self.limits, keys=wanted)
        return _last_of_keys(rows.pieces(), place)


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Combines runs and folds into one row for each key."""

    folder: Location  # where the fold is written to
    released: tuple[Part, ...]  # the runs and folds, from the horizon on
    mode: ReorderMode = ReorderMode.ORDERED  # what is known of a key's last row
    limits: RowLimits = ROW_LIMITS
    keeps: bool = False  # as of `RunWriter`

    def __call__(self, partitions: range) -> WrittenFile:
        last_ms = BEFORE_ALL_TIME_MS
        columns = ("key", "output_partition", *place_columns(self.mode))
        most = self.limits.row_group_rows
        with PartFile(self.folder, _FOLD_SCHEMA, most, keeps=self.keeps) as file:
            for block in RunRows(self.released, partitions, columns, self.limits).blocks():
                fold = self._folded(block)
                for some in in_row_groups(fold, self.limits):
                    file.write(some)
                    last_ms = max(last_ms, pc.max(some["event_time_ms"]).as_py())
        return WrittenFile(file.name, file.size_bytes, file.rows, last_ms=last_ms)

    def _folded(self, rows: RunRows) -> pa.Table:
        place, where = place_columns(self.mode), ("output_partition",)
        pieces = (some.filter(some["key"].is_valid()) for some in rows.pieces())
        keys = _last_of_keys(pieces, place, alike=where)
        columns = {
            name: keys[name] if name in keys.column_names else pa.nulls(len(keys), field_type)
            for name, field_type in zip(_FOLD_SCHEMA.names, _FOLD_SCHEMA.types, strict=True)
        }
        return pa.Table.from_pydict(columns, schema=_FOLD_SCHEMA)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    file: str | None = None  # name of the file; None when there was nothing to write
    size_bytes: int = 0
    rows: int = 0
    late: int = 0  # late rows among these, including those found to be duplicates later
    last_ms: int = BEFORE_ALL_TIME_MS  # greatest event time of a fold


def place_columns(mode: ReorderMode) -> tuple[str, ...]:
    """Return the columns that show which row of a key was released last."""
    return RELEASE_ORDER if mode is ReorderMode.LATEST else RELEASE_ORDER[:1]


def files_of(written: Iterable[WrittenFile]) -> dict[str, int]:
    """Return the files that tasks wrote and the rows of each, as the log names them."""
    return {one.file: one.rows for one in written if one.file is not None}


def _mask(truths: pa.BooleanArray) -> Any:
    return truths.to_numpy(zero_copy_only=False)


def _last_of_keys(
    pieces: Iterable[pa.Table], place: Sequence[str], alike: Sequence[str] = ()
) -> pa.Table:
    schema = pa.schema([_FOLD_SCHEMA.field(name) for name in ("key", *place, *alike)])
    return one_of_each("key", pieces, schema, by=place, last=True, alike=alike)


def one_of_each(
    name: str,
    pieces: Iterable[pa.Table],
    schema: pa.Schema,
    *,
    by: Sequence[str],
    last: bool,
    alike: Sequence[str] = (),
) -> pa.Table:
    """Return one row of each value of a column: the first or the last of its rows in an order.

    Rows are brought together each time there are as many new ones: so each is looked at a few
    times, and no more are in memory than twice the values and a piece.
    """

    def merged(tables: Sequence[pa.Table]) -> pa.Table:
        return _one_of_each(name, pa.concat_tables(tables), by, last=last, alike=alike)

    found, more = schema.empty_table(), schema.empty_table()
    for rows in pieces:
        more = pa.concat_tables([more, rows.select(schema.names)])
        if len(more) >= len(found):
            found, more = merged([found, more]), schema.empty_table()
    return merged([found, more]) if len(more) else found


def _one_of_each(
    name: str, rows: pa.Table, by: Sequence[str], *, last: bool, alike: Sequence[str]
) -> pa.Table:
    names = [name, *by, *alike]
    if rows.column_names == names and len(by) == 1:  # twice as quick
        which = "max" if last else "min"
        grouped = rows.group_by(name, use_threads=False).aggregate(
            [(one, which) for one in names[1:]]
        )
        return grouped.select([name, *(f"{one}_{which}" for one in names[1:])]).rename_columns(
            names
        )
    encoded = rows[name].combine_chunks().dictionary_encode()
    order = order_of(rows, by)[:: 1 if last else -1]
    kept = np.empty(len(encoded.dictionary), np.int64)
    # If several rows have one value, the last one here stays.
    kept[encoded.indices.to_numpy()[order]] = order
    return rows.take(pa.array(kept))
