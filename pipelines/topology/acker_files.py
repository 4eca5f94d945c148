"""The files by which ackers learn of roots: what each task knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from sequitur.consumer.topology.settling.acker import acker_of
from sequitur.pipelines.store.files import new_file, open_file

if TYPE_CHECKING:
    from sequitur.pipelines.store.files import Location

ACKS_SCHEMA: Final = pa.schema(
    [("root", pa.uint64()), ("value", pa.uint64()), ("flags", pa.uint8())]
)


def write_acks(folder: Location, roots: Any, values: Any, flags: Any, ackers: int) -> Location:
    """Write what a task knows of roots, a record batch for each acker; where the file is."""
    which = acker_of(roots, ackers)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(ackers + 1))
    path = folder / f"acks-{uuid4().hex}.arrow"
    with new_file(path) as file, pa.ipc.new_file(file, ACKS_SCHEMA) as writer:
        for own in np.split(order, ends[1:-1]):
            columns = [pa.array(roots[own]), pa.array(values[own]), pa.array(flags[own])]
            writer.write_batch(pa.record_batch(columns, schema=ACKS_SCHEMA))
    return path


def read_acks(path: Location, acker: int) -> tuple[Any, Any, Any]:
    """Read what a task knows of an acker's roots: ids, values, flags."""
    with open_file(path) as file:
        batch = pa.ipc.open_file(file).get_batch(acker)
        roots, values, flags = (column.to_numpy().copy() for column in batch.columns)
    return roots, values, flags
