"""How far keys have been released: the tasks of `_local_runs`, one for each output partition.

A key's rows all go to one output partition, so each task finds all it has to know among the rows of
its own. What is decided, and by what, is as in `_keys`, which says the same in Spark's terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumer import LATE
from pipelines._run_rows import Part, RunRows
from pipelines._run_writer import RUN_ARROW_SCHEMA, write_part
from pipelines._selection import Places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        horizon_ms: Rows behind it are late.
        repeats: Folder with the places of rows to leave out, if there are any.
    """

    folder: str
    behind: Part
    released: tuple[Part, ...]
    horizon_ms: int
    repeats: str | None

    def __call__(self, partition: int) -> Written:
        """Judge the rows of an output partition."""
        found = RunRows((self.behind,), partition, RUN_ARROW_SCHEMA.names).all()
        if found is None:
            return Written()
        rows = Places(self.repeats).without(found)
        if not len(rows):
            return Written()
        keys = rows["key"].combine_chunks()
        times = rows["event_time_ms"].combine_chunks()
        last = self._last_released(partition, keys.filter(pc.greater_equal(times, self.horizon_ms)))
        place = pc.index_in(keys, last["key"].combine_chunks())
        last_ms = last["event_time_ms"].combine_chunks().take(place)
        passes = pc.and_(
            pc.and_(keys.is_valid(), pc.greater_equal(times, self.horizon_ms)),
            pc.fill_null(pc.greater_equal(times, last_ms), True),
        )
        reasons = pc.if_else(passes, pa.scalar(None, pa.string()), LATE)
        number = rows.schema.get_field_index("reason")
        judged = rows.set_column(number, "reason", reasons).append_column(
            "last_released_ms", last_ms
        )
        name, size = write_part(self.folder, judged.cast(_BEHIND_SCHEMA))
        late = len(rows) - int(pc.sum(passes).as_py())
        return Written(name, size, len(rows), late, int(pc.max(times).as_py()))

    def _last_released(self, partition: int, keys: pa.BinaryArray) -> pa.Table:
        wanted = keys.unique().drop_null()
        return _greatest(
            rows.filter(pc.is_in(rows["key"], wanted))
            for rows in RunRows(self.released, partition, _KEY_COLUMNS).slices()
        )


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Puts runs and folds into one row a key.

    Attributes:
        folder: Where the fold is written to.
        released: The runs and folds, from the horizon on.
    """

    folder: str
    released: tuple[Part, ...]

    def __call__(self, partition: int) -> Written:
        """Fold the rows of an output partition."""
        rows = RunRows(self.released, partition, _KEY_COLUMNS).slices()
        keys = _greatest(some.filter(some["key"].is_valid()) for some in rows)
        if not len(keys):
            return Written()
        count = len(keys)
        fold = pa.Table.from_pydict(
            {
                **{name: keys[name] for name in _KEY_COLUMNS},
                **{
                    name: pa.nulls(count, _FOLD_SCHEMA.field(name).type)
                    for name in ("topic", "partition", "offset")
                },
                "output_partition": pa.array(np.full(count, partition, np.int32)),
            },
            schema=_FOLD_SCHEMA,
        )
        name, size = write_part(self.folder, fold)
        last = pc.max(keys["event_time_ms"]).as_py()
        return Written(name, size, count, last_ms=int(last))


def _greatest(slices: Iterable[pa.Table]) -> pa.Table:
    """The greatest event time of each key; a slice at a time is in memory, and one row a key."""
    so_far = pa.table({"key": pa.array([], pa.binary()), "event_time_ms": pa.array([], pa.int64())})
    for rows in _joined(slices):
        both = pa.concat_tables([so_far, rows.select(_KEY_COLUMNS)])
        grouped = both.group_by("key", use_threads=False).aggregate([("event_time_ms", "max")])
        so_far = grouped.select(["key", "event_time_ms_max"]).rename_columns(_KEY_COLUMNS)
    return so_far


_GROUPED_ROWS: Final = 1_000_000


def _joined(slices: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Slices put together: grouping costs a pass over all keys so far each time."""
    waiting: list[pa.Table] = []
    for rows in slices:
        waiting.append(rows)
        if sum(map(len, waiting)) >= _GROUPED_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
