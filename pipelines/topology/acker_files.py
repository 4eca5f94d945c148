"""The files by which ackers learn of roots, and by which the driver learns what they found."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from sequitur.consumer.topology.settling.acker import acker_of
from sequitur.consumer.topology.step.events import EmittedRoots
from sequitur.pipelines.store.part_files import PartFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sequitur.consumer.topology.settling.root import Root

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


def write_roots(folder: Path, roots: Sequence[Root]) -> str:
    """Write the events that a task gave out; the file's path."""
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


def emitted_roots(paths: Sequence[str]) -> EmittedRoots:
    """Read the roots of some files of `write_roots`."""
    tables = [read_table(path) for path in paths]
    roots = pa.concat_tables(tables)
    keys = roots["key"].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    ids, attempts = roots["id"].to_numpy(), roots["attempt"].to_numpy()
    return EmittedRoots(ids, attempts, keys, [len(table) for table in tables])


def attempts_of(path: str) -> dict[int, int]:
    """Read the roots of a file of `write_roots`: by id, which attempt this is."""
    rows = read_table(path).to_pydict()
    return dict(zip(rows["id"], rows["attempt"], strict=True))


def write_unfinished(folder: Path, roots: Sequence[int]) -> str | None:
    """Write ids of roots into a file of a folder; its hidden name."""
    with PartFile(str(folder), UNFINISHED_SCHEMA) as file:
        file.write(pa.table({"root": roots}, schema=UNFINISHED_SCHEMA))
    return file.name


def write_acks(folder: Path, roots: Any, values: Any, flags: Any, ackers: int) -> str:
    """Write what a task knows of roots, a record batch for each acker; the file's path."""
    which = acker_of(roots, ackers)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(ackers + 1))
    path = folder / f"acks-{uuid4().hex}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, ACKS_SCHEMA) as writer:
        for begin, end in itertools.pairwise(ends.tolist()):
            own = order[begin:end]
            columns = [pa.array(roots[own]), pa.array(values[own]), pa.array(flags[own])]
            writer.write_batch(pa.record_batch(columns, schema=ACKS_SCHEMA))
    return str(path)


def read_acks(path: str, acker: int) -> tuple[Any, Any, Any]:
    """Read what a task knows of an acker's roots: ids, values, flags."""
    with pa.memory_map(path) as file:
        batch = pa.ipc.open_file(file).get_batch(acker)
        roots, values, flags = (column.to_numpy().copy() for column in batch.columns)
    return roots, values, flags


def write_table(folder: Path, rows: pa.Table) -> str:
    """Write a table into a file of its own; its path."""
    path = folder / f"rows-{uuid4().hex}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return str(path)


def read_table(path: str) -> pa.Table:
    """Read what `write_table` wrote."""
    with pa.OSFile(path, "rb") as file:
        return pa.ipc.open_file(file).read_all()
