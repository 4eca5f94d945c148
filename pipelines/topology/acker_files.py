"""The files by which ackers learn of roots, and by which the driver learns what they found."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from sequitur.consumer.topology import acker_of
from sequitur.consumer.topology.step.events import EmittedRoots
from sequitur.pipelines.store.files import new_file, open_file
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology import Root
    from sequitur.pipelines.store.files import Location

ROOTS_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("id", pa.uint64()), ("attempt", pa.int32())]
)
"""The events that a task gave out, in their order."""

ACKS_SCHEMA: Final = pa.schema(
    [("root", pa.uint64()), ("value", pa.uint64()), ("flags", pa.uint8())]
)

UNFINISHED_SCHEMA: Final = pa.schema([("root", pa.uint64())])
"""Ids of roots whose records may not go out. Not their places: a place may be there twice in a
step, as a dead letter that is replayed and as an event that is read again."""


def write_roots(folder: Location, roots: Sequence[Root]) -> Location:
    """Write the events that a task gave out; where the file is."""
    tracked = [root for root in roots if root.is_tracked]
    return write_table(
        folder,
        pa.table(
            {
                "key": [root.event[0] for root in tracked],
                "id": [root.id for root in tracked],
                "attempt": [root.attempt for root in tracked],
            },
            schema=ROOTS_SCHEMA,
        ),
    )


def emitted_roots(paths: Sequence[Location]) -> EmittedRoots:
    """Read the roots of some files of `write_roots`."""
    tables = [read_table(path) for path in paths]
    roots = pa.concat_tables(tables)
    keys = roots["key"].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    ids, attempts = roots["id"].to_numpy(), roots["attempt"].to_numpy()
    return EmittedRoots(ids, attempts, keys, [len(table) for table in tables])


def attempts_of(path: Location) -> dict[int, int]:
    """Read the roots of a file of `write_roots`: by id, which attempt this is."""
    rows = read_table(path).to_pydict()
    return dict(zip(rows["id"], rows["attempt"], strict=True))


def write_unfinished(folder: Location, roots: Sequence[int]) -> Location | None:
    """Write ids of roots into a file of a folder; where it is."""
    with PartFile(folder, UNFINISHED_SCHEMA) as file:
        file.write(pa.table({"root": roots}, schema=UNFINISHED_SCHEMA))
    return file.location


def write_acks(folder: Location, roots: Any, values: Any, flags: Any, ackers: int) -> Location:
    """Write what a task knows of roots, a record batch for each acker; where the file is."""
    which = acker_of(roots, ackers)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(ackers + 1))
    path = folder / f"acks-{uuid4().hex}.arrow"
    with new_file(path) as file, pa.ipc.new_file(file, ACKS_SCHEMA) as writer:
        for begin, end in itertools.pairwise(ends.tolist()):
            own = order[begin:end]
            columns = [pa.array(roots[own]), pa.array(values[own]), pa.array(flags[own])]
            writer.write_batch(pa.record_batch(columns, schema=ACKS_SCHEMA))
    return path


def read_acks(path: Location, acker: int) -> tuple[Any, Any, Any]:
    """Read what a task knows of an acker's roots: ids, values, flags."""
    with open_file(path) as file:
        batch = pa.ipc.open_file(file).get_batch(acker)
        roots, values, flags = (column.to_numpy().copy() for column in batch.columns)
    return roots, values, flags


def write_table(folder: Location, rows: pa.Table) -> Location:
    """Write a table into a file of its own; where it is."""
    path = folder / f"rows-{uuid4().hex}.arrow"
    with new_file(path) as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return path


def read_table(path: Location) -> pa.Table:
    """Read what `write_table` wrote."""
    with open_file(path) as file:
        return pa.ipc.open_file(file).read_all()
