"""Duplicates by their id, found in two waves of tasks.

Rows of one id may be in any output partition. So the first wave brings them together: a task for
each block of output partitions writes the ids of its rows, with their places, into a file, in
buckets by a hash of the id. A task of the second wave takes some buckets, one after the other, out
of all files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sequitur.base.json_field import JsonField
from sequitur.consumer import LATE
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.ordering.key_tasks import Written, one_of_each
from sequitur.pipelines.rows.columns import RELEASE_ORDER, SOURCE_ORDER
from sequitur.pipelines.rows.event_time_arrays import header_values
from sequitur.pipelines.rows.limits import ROW_LIMITS, RowLimits
from sequitur.pipelines.rows.run_rows import Part, RunRows
from sequitur.pipelines.rows.run_writer import RUN_ARROW_SCHEMA
from sequitur.pipelines.spark.partition_blocks import stretches
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sequitur.pipelines.store.files import Location

IdKind = Literal["header", "json"]

PLACES_SCHEMA: Final = pa.schema([RUN_ARROW_SCHEMA.field(name) for name in SOURCE_ORDER])
_IDS_SCHEMA: Final = pa.schema(
    [
        ("event_id", pa.binary()),
        ("is_new", pa.int8()),
        *(RUN_ARROW_SCHEMA.field(name) for name in RELEASE_ORDER),
        ("is_behind", pa.bool_()),
        # The bucket: what readers go by is named so in every file.
        ("output_partition", pa.int32()),
    ]
)
_FIRST: Final = ("is_new", *RELEASE_ORDER)
"""What is out stays, and of several rows that are not, the first that would go out."""
_ID_BYTES: Final = 128
"""What a row takes in memory while its bucket is looked at, about."""


def buckets_for(rows: int, tasks: int, limits: RowLimits = ROW_LIMITS) -> int:
    """Return how many buckets about so many rows are put into: one for each task, or more."""
    return max(tasks, -(-rows * _ID_BYTES // limits.slice_bytes))


@dataclass(frozen=True, slots=True)
class IdsTask:
    """Writes the ids of the rows of some output partitions into a file."""

    folder: Location
    kind: IdKind  # whether the id is in a header or in the JSON value
    name: str  # the header, or the names on the way to the field, divided by dots
    new: tuple[Part, ...]  # rows that are about to be released or judged
    out: tuple[Part, ...]  # rows of earlier steps
    buckets: int
    limits: RowLimits = ROW_LIMITS

    def __call__(self, partitions: range) -> str | None:
        """Write them; the file's name, None without rows."""
        with PartFile(self.folder, _IDS_SCHEMA, self.limits.row_group_rows) as file:
            for parts, is_new in ((self.new, True), (self.out, False)):
                column = "headers" if self.kind == "header" else "value"
                columns = (*RELEASE_ORDER, column, "reason")
                for rows in RunRows(parts, partitions, columns, self.limits).pieces():
                    for bucket in self._buckets(rows, is_new=is_new):
                        file.write(bucket)
        return file.name

    def _ids(self, rows: pa.Table) -> pa.Array:
        if self.kind == "header":
            return header_values(rows["headers"].combine_chunks(), self.name, last=False)
        field = JsonField(self.name)
        return pa.array(map(field.id_in, rows["value"].to_pylist()), pa.binary())

    def _buckets(self, rows: pa.Table, *, is_new: bool) -> Iterator[pa.Table]:
        ids = self._ids(rows)
        has_id = ids.is_valid()
        ids, rows = ids.filter(has_id), rows.filter(has_id)
        if not len(ids):
            return
        bucket = np.asarray(KeyPartitioner(self.buckets).each(ids.to_pylist()))
        order = np.argsort(bucket, kind="stable")
        bucket = bucket[order]
        found = pa.Table.from_pydict(
            {
                "event_id": ids,
                "is_new": pa.repeat(pa.scalar(int(is_new), pa.int8()), len(ids)),
                **{name: rows[name] for name in RELEASE_ORDER},
                "is_behind": pc.equal(rows["reason"], LATE).fill_null(False),
            }
        ).take(pa.array(order))
        found = found.append_column("output_partition", pa.array(bucket, pa.int32()))
        for _, own in stretches(bucket):
            yield found[own]


@dataclass(frozen=True, slots=True)
class RepeatsTask:
    """Finds the duplicates in some buckets."""

    folder: Location  # where their places are written to
    ids: tuple[Location, ...]  # the files of the first wave
    buckets: int
    tasks: int  # how many tasks share them
    limits: RowLimits = ROW_LIMITS

    def __call__(self, number: int) -> Written:
        """Find those of the buckets of a task; where their places are."""
        behind = 0
        with PartFile(self.folder, PLACES_SCHEMA, self.limits.row_group_rows) as file:
            for bucket in range(number, self.buckets, self.tasks):
                for repeats in self._repeats(bucket):
                    file.write(repeats.select(SOURCE_ORDER))
                    behind += pc.sum(repeats["is_behind"]).as_py() or 0
        return Written(file.name, rows=file.rows, late=behind)

    def _repeats(self, bucket: int) -> Iterator[pa.Table]:
        """Return the rows that are new, and not the first of their id."""
        own = range(bucket, bucket + 1)
        rows = RunRows((Part(self.ids, reasons=()),), own, _IDS_SCHEMA.names, self.limits)
        first = one_of_each("event_id", rows.pieces(), _IDS_SCHEMA, by=_FIRST, last=False)
        for some in rows.pieces():
            own = first.take(pc.index_in(some["event_id"], first["event_id"].combine_chunks()))
            is_first = np.ones(len(some), np.bool_)
            for name in _FIRST:
                same = pc.equal(some[name], own[name])
                is_first &= same.to_numpy()
            yield some.filter(pa.array(~is_first & (some["is_new"].to_numpy() > 0)))
