"""How far keys have been released: the tasks of `ordering.local_runs`, by output partition.

A key's rows all go to one output partition, so each task finds all it has to know among the rows of
its own. What is decided, and by what, says `sequitur.consumer.LateJudge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.consumer import BEFORE_ALL_TIME_MS, LateJudge
from sequitur.pipelines.rows.columns import SOURCE_ORDER
from sequitur.pipelines.rows.limits import ROW_LIMITS, RowLimits
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.rows.run_writer import RUN_ARROW_SCHEMA
from sequitur.pipelines.rows.selection import Places
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEY_COLUMNS: Final = ["key", "event_time_ms"]
_BEHIND_SCHEMA: Final = RUN_ARROW_SCHEMA.append(pa.field("last_released_ms", pa.int64()))
_FOLD_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("event_time_ms", pa.int64()),
        # In latest mode alone there is more of a place; files of both kinds have the same columns.
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("output_partition", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class Written:
    """What a task wrote.

    Attributes:
        file: Name of the file, still hidden; None when there was nothing to write.
        size_bytes: Its size.
        rows: Its rows.
        late: Rows of these that are late.
        last_ms: Greatest event time in it; None without rows.
    """

    file: str | None = None
    size_bytes: int = 0
    rows: int = 0
    late: int = 0
    last_ms: int | None = None


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """Judges the rows that a step found behind the frontier.

    Attributes:
        folder: Where they are written to, judged.
        behind: These rows.
        released: Rows that are out, and folds of such; none is older than what matters.
        judge: Decides.
        duplicates: Files with the places of rows to leave out.
        limits: How much is in memory at once.
    """

    folder: str
    behind: Part
    released: tuple[Part, ...]
    judge: LateJudge
    duplicates: tuple[str, ...] = ()
    limits: RowLimits = ROW_LIMITS

    def __call__(self, partition: int) -> Written:
        """Judge the rows of an output partition."""
        last = self._last_released(partition)
        left_out = Places(self.duplicates, self.limits)
        rows, late, last_ms = 0, 0, BEFORE_ALL_TIME_MS
        with PartFile(self.folder, _BEHIND_SCHEMA, self.limits.row_group_rows) as file:
            for found in RunRows(
                (self.behind,), partition, RUN_ARROW_SCHEMA.names, self.limits
            ).pieces():
                judged = self._judged(left_out.without(found), last)
                if not len(judged):
                    continue
                file.write(judged)
                rows += len(judged)
                late += len(judged) - judged["reason"].null_count
                last_ms = max(last_ms, pc.max(judged["event_time_ms"]).as_py())
        return Written(file.name, file.size_bytes, rows, late, last_ms if rows else None)

    def _judged(self, rows: pa.Table, last: pa.Table) -> pa.Table:
        """Add the reason of late rows, and the last event time released of their keys."""
        keys = rows["key"].combine_chunks()
        times = rows["event_time_ms"].combine_chunks()
        place = pc.index_in(keys, last["key"].combine_chunks())
        last_ms = last["event_time_ms"].combine_chunks().take(place)
        event_time_ms = times.to_numpy()
        is_late = self.judge.is_late(
            event_time_ms=event_time_ms,
            has_key=_mask(keys.is_valid()),
            place=event_time_ms,
            last=last_ms.fill_null(0).to_numpy(),
            has_last=_mask(last_ms.is_valid()),
        )
        reasons = pc.if_else(pa.array(is_late), self.judge.reason, pa.scalar(None, pa.string()))
        number = rows.schema.get_field_index("reason")
        return rows.set_column(number, "reason", reasons).append_column("last_released_ms", last_ms)

    def _last_released(self, partition: int) -> pa.Table:
        """Look up the last event time released of each key that may pass."""
        wanted = pa.array([], pa.binary())
        for rows in RunRows((self.behind,), partition, _KEY_COLUMNS, self.limits).pieces():
            asking = self.judge.asks_key(rows["event_time_ms"].to_numpy())
            keys = rows.filter(pa.array(asking))["key"].unique().drop_null()
            wanted = pa.concat_arrays([wanted, keys]).unique()
        if not len(wanted):
            return _greatest(())
        return _greatest(
            rows.filter(pc.is_in(rows["key"], wanted))
            for rows in RunRows(self.released, partition, _KEY_COLUMNS, self.limits).pieces()
        )


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Puts runs and folds into one row a key.

    Attributes:
        folder: Where the fold is written to.
        released: The runs and folds, from the horizon on.
        limits: How much is in memory at once.
    """

    folder: str
    released: tuple[Part, ...]
    limits: RowLimits = ROW_LIMITS

    def __call__(self, partition: int) -> Written:
        """Fold the rows of an output partition."""
        rows = RunRows(self.released, partition, _KEY_COLUMNS, self.limits).pieces()
        keys = _greatest(some.filter(some["key"].is_valid()) for some in rows)
        if not len(keys):
            return Written()
        count = len(keys)
        fold = pa.Table.from_pydict(
            {
                **{name: keys[name] for name in _KEY_COLUMNS},
                **{name: pa.nulls(count, _FOLD_SCHEMA.field(name).type) for name in SOURCE_ORDER},
                "output_partition": pa.array(np.full(count, partition, np.int32)),
            },
            schema=_FOLD_SCHEMA,
        )
        with PartFile(self.folder, _FOLD_SCHEMA, self.limits.row_group_rows) as file:
            file.write(fold)
        last = pc.max(keys["event_time_ms"]).as_py()
        return Written(file.name, file.size_bytes, count, last_ms=int(last))


def _mask(truths: pa.BooleanArray) -> Any:
    return truths.to_numpy(zero_copy_only=False)


def _greatest(pieces: Iterable[pa.Table]) -> pa.Table:
    """Find the greatest event time of each key; a piece at a time is in memory."""
    so_far = pa.table({"key": pa.array([], pa.binary()), "event_time_ms": pa.array([], pa.int64())})
    for rows in pieces:
        both = pa.concat_tables([so_far, rows.select(_KEY_COLUMNS)])
        grouped = both.group_by("key", use_threads=False).aggregate([("event_time_ms", "max")])
        so_far = grouped.select(["key", "event_time_ms_max"]).rename_columns(_KEY_COLUMNS)
    return so_far
