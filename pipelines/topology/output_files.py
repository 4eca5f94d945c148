"""The files of records that a topology's outputs write, and of dead letters.

A task writes into files of its own. A reader is told their names (`store.part_files`), so nobody
reads half a file, nor one of an attempt that was given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.rows.columns import OWN_TIME, ROW_LIMITS, in_row_groups, outputs_of
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.topology.files import EVENT_SCHEMA, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TypeVar

    from sequitur.consumer.topology.engine.plan import RecordValues
    from sequitur.pipelines.store.storage import Location

    T = TypeVar("T")


OUTPUT_SCHEMA: Final = pa.schema(
    [
        *EVENT_SCHEMA,
        ("output_partition", pa.int32()),
        ("reason", pa.string()),
        ("emission", pa.int64()),
        ("root", pa.uint64()),
    ]
)
"""A record that an output wrote; place and timestamp are those of the event it came from, `root`
is the id of that event's root in the step, 0 where no event's verdict decides about the record."""
TIMED_SCHEMA: Final = OUTPUT_SCHEMA.append(pa.field(OWN_TIME, pa.int64()))
"""With the event time of a record that has one of its own: records are in the order of their events
all the same, wherever steps end."""
OUTPUT_ORDER: Final = ("event_time_ms", "topic", "partition", "offset", "emission", "root")
_RECORDS_AT_ONCE: Final = 1 << 16
"""So many records of an output wait at most to be written."""
_RECORD_BYTES_AT_ONCE: Final = 16 << 20
"""And of all outputs together so much; a task holds two or three times that."""


class OutputFiles:
    """A task's files of records, one for each topic that it writes to."""

    def __init__(
        self,
        folder: Location,
        topics: Mapping[str, tuple[str, int]],
        emissions: Iterator[int],
        schema: pa.Schema = OUTPUT_SCHEMA,
    ) -> None:
        self._schema = schema
        self._rows: dict[str, list[RecordValues]] = {name: [] for name in topics}
        self._bytes = dict.fromkeys(topics, 0)
        self._all_bytes = 0
        self._place = {name: place for name, (place, _) in topics.items()}
        self._files = {place: PartFile(folder / place, schema) for place in self._place.values()}
        known = {count: KeyPartitioner(count) for _, count in topics.values()}
        self._partitioners = {name: known[count] for name, (_, count) in topics.items()}
        self._emissions = emissions
        self._failed: Exception | None = None

    def write(self, output: str, record: RecordValues) -> None:
        rows, (_, key, value, headers, _) = self._rows[output], record
        rows.append(record)
        size = len(key or b"") + len(value or b"")
        if headers:
            size += sum(len(name) + len(held or b"") for name, held in headers)
        self._bytes[output] += size
        self._all_bytes += size
        if len(rows) >= _RECORDS_AT_ONCE:
            self._flush(output)
        elif self._all_bytes >= _RECORD_BYTES_AT_ONCE:
            self._flush(max(self._bytes, key=self._bytes.__getitem__))

    def close(self) -> dict[str, Location | None]:
        """Write what is left; return where the files are, by their topic's folder."""
        for output in self._rows:
            self._flush(output)
        if self._failed is not None:
            raise self._failed
        for file in self._files.values():
            file.close()
        return {place: file.location for place, file in self._files.items()}

    @property
    def count(self) -> int:
        """Number of records in the files, once they are closed."""
        return sum(file.rows for file in self._files.values())

    def _flush(self, output: str) -> None:
        records, self._rows[output] = self._rows[output], []
        self._all_bytes -= self._bytes[output]
        self._bytes[output] = 0
        try:
            if records:
                self._write_out(output, records)
        except Exception as error:
            self._failed = self._failed or error
            raise

    def _write_out(self, output: str, records: Sequence[RecordValues]) -> None:
        roots, keys, values, headers, times_ms = zip(*records, strict=True)
        events = [one.event for one in roots]
        places = ([one[at] for one in events] for at in range(3, 8))
        rows = table_of(keys, values, headers, *places)
        outputs = outputs_of(self._partitioners[output], keys, rows["partition"].to_numpy())
        more = {
            "output_partition": pa.array(outputs, pa.int32()),
            "reason": pa.nulls(len(records), pa.string()),
            "emission": pa.array(np.fromiter(self._emissions, np.int64, len(records))),
            "root": pa.array([one.id for one in roots], pa.uint64()),
        }
        if OWN_TIME in self._schema.names:
            more[OWN_TIME] = pa.array(times_ms, pa.int64())
        for name, column in more.items():
            rows = rows.append_column(name, column)
        for some in in_row_groups(rows, ROW_LIMITS):
            self._files[self._place[output]].write(some)
