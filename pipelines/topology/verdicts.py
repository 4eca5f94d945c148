"""Files of what becomes of events that are not done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sequitur.consumer.topology.step.events import EventVerdict
from sequitur.pipelines.topology.acker_files import read_table, write_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.pipelines.store.files import Location

VERDICTS_SCHEMA = pa.schema(
    [
        ("id", pa.uint64()),
        ("attempts", pa.int32()),
        ("retry_at_ms", pa.int64()),
        ("is_dead", pa.bool_()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("path", pa.string()),
    ]
)
"""See `EventVerdict`."""


def write_verdicts(folder: Location, verdicts: Sequence[EventVerdict]) -> Location:
    """Write verdicts into a file of their own; where it is."""
    columns = list(zip(*verdicts, strict=True)) or [()] * len(VERDICTS_SCHEMA)
    arrays = [pa.array(one, part.type) for one, part in zip(columns, VERDICTS_SCHEMA, strict=True)]
    return write_table(folder, pa.table(arrays, schema=VERDICTS_SCHEMA))


def read_verdicts(path: Location) -> list[EventVerdict]:
    """Read what `write_verdicts` wrote."""
    columns = read_table(path).to_pydict().values()
    return [EventVerdict(*told) for told in zip(*columns, strict=True)]
