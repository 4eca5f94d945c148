"""What the tasks of a topology leave in files: outputs, events that wait, acks, tuples for others.

All but the tuples are tables. A task writes into files of its own, under hidden names where it is
for the driver to show them (`store.part_files`), so whatever becomes of a task, no half of a file
and no file of an attempt that was given up is ever read.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.consumer.topology import Sent, acker_of
from sequitur.consumer.topology.engine.emission import order_of
from sequitur.consumer.topology.step.events import EmittedRoots, PendingEvent
from sequitur.pipelines.store.part_files import PartFile
from sequitur.producer.batching.partitioner import KeyPartitioner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology import OutputRecord, Root
    from sequitur.consumer.topology.step.batch import Sources

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_PLACE: Final = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]

OUTPUT_SCHEMA: Final = pa.schema(
    [
        *_PLACE,
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("output_partition", pa.int32()),
        ("event_time_ms", pa.int64()),
        ("reason", pa.string()),
        ("emission", pa.int64()),
        ("root", pa.uint64()),
    ]
)
"""A record that a topology put out; place and timestamp are those of the event it came from, `root`
is the id of that event's root in the step, 0 where no event's verdict decides about the record."""
OUTPUT_ORDER: Final = ("event_time_ms", "topic", "partition", "offset", "emission", "root")

PENDING_SCHEMA: Final = pa.schema(
    [
        *_PLACE,
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("event_time_ms", pa.int64()),
        ("attempts", pa.int32()),
        ("retry_at_ms", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("path", pa.string()),
    ]
)
"""An event that waits: `retry_at_ms` of one that failed, null of one that is held for another."""

ROOTS_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("id", pa.uint64()), ("attempt", pa.int32())]
)
"""The events that a task gave out, in their order."""

ACKS_SCHEMA: Final = pa.schema(
    [("root", pa.uint64()), ("value", pa.uint64()), ("flags", pa.uint8())]
)

UNFINISHED_SCHEMA: Final = pa.schema([("root", pa.uint64())])
"""Ids of roots whose records may not go out. Not their places: a place may be there twice in a
step, as a dead letter that is given back and as an event that is read anew."""

_ROWS_AT_ONCE: Final = 1 << 16
_TUPLES_AT_ONCE: Final = 1 << 12
_TUPLES_A_FRAME: Final = 1 << 6
"""So many tuples of each stretch of a file are read at once, of the `_TUPLES_AT_ONCE` it has."""


class OutputFiles:
    """A task's files of records, one for each topic that it writes to.

    Args:
        folder: Where they are written; each topic has a folder in it, which is there.
        topics: Folder and number of partitions by output.
        number: Of the task: makes the order of records that have one event total.
    """

    def __init__(self, folder: Path, topics: Mapping[str, tuple[str, int]], number: int) -> None:
        self._rows: dict[str, list[OutputRecord]] = {name: [] for name in topics}
        self._place = {name: place for name, (place, _) in topics.items()}
        self._files = {
            place: PartFile(str(folder / place), OUTPUT_SCHEMA) for place in self._place.values()
        }
        known = {count: KeyPartitioner(count) for _, count in topics.values()}
        self._partitioners = {name: known[count] for name, (_, count) in topics.items()}
        self._emissions = itertools.count(number << 40)
        self._failed: Exception | None = None

    def write(self, output: str, record: OutputRecord) -> None:
        """Take a record in."""
        rows = self._rows[output]
        rows.append(record)
        if len(rows) >= _ROWS_AT_ONCE:
            self._flush(output)

    def close(self) -> dict[str, str | None]:
        """Write what is left; the hidden names of the files, by their topic's folder.

        Raises:
            Exception: What an earlier write raised: into a bolt's call, which may have gone on.
        """
        for output in self._rows:
            self._flush(output)
        if self._failed is not None:
            raise self._failed
        for file in self._files.values():
            file.close()
        return {place: file.name for place, file in self._files.items()}

    @property
    def count(self) -> int:
        """How many records the files have, once they are closed."""
        return sum(file.rows for file in self._files.values())

    def _flush(self, output: str) -> None:
        records, self._rows[output] = self._rows[output], []
        try:
            if records:
                self._write_out(output, records)
        except Exception as error:
            self._failed = self._failed or error
            raise

    def _write_out(self, output: str, records: Sequence[OutputRecord]) -> None:
        partitioner = self._partitioners[output]
        given = [record.root.event for record in records]
        keys = [record.key for record in records]
        numbers = np.array([event[5] for event in given], np.int64)
        outputs = numbers % partitioner.partitions
        if keyed := [place for place, key in enumerate(keys) if key is not None]:
            outputs[keyed] = partitioner.each([key for key in keys if key is not None])
        emissions = np.fromiter(self._emissions, np.int64, len(records))
        table = pa.table(
            {
                "topic": pa.array([event[4] for event in given], pa.string()),
                "partition": pa.array(numbers.astype(np.int32)),
                "offset": pa.array([event[6] for event in given], pa.int64()),
                "timestamp_ms": pa.array([event[7] for event in given], pa.int64()),
                "key": pa.array(keys, pa.binary()),
                "value": pa.array([record.value for record in records], pa.binary()),
                "headers": _headers([record.headers for record in records]),
                "output_partition": pa.array(outputs.astype(np.int32)),
                "event_time_ms": pa.array([event[3] for event in given], pa.int64()),
                "reason": pa.nulls(len(records), pa.string()),
                "emission": pa.array(emissions),
                "root": pa.array([record.root.id for record in records], pa.uint64()),
            }
        )
        file = self._files[self._place[output]]
        if outputs.min() == outputs.max():
            file.write(table)
            return
        order = np.argsort(outputs, kind="stable")
        table = table.take(pa.array(order))
        bounds = [0, *(np.flatnonzero(np.diff(outputs[order])) + 1).tolist(), len(order)]
        for begin, end in itertools.pairwise(bounds):
            file.write(table.slice(begin, end - begin))


def write_waiting(folder: Path, waiting: Sequence[PendingEvent]) -> str | None:
    """Write events that wait into a file of a folder; its hidden name."""
    with PartFile(str(folder), PENDING_SCHEMA) as file:
        for begin in range(0, len(waiting), _ROWS_AT_ONCE):
            some = waiting[begin : begin + _ROWS_AT_ONCE]
            columns = list(zip(*(one.event for one in some), strict=True))
            key, value, headers, times, topics, partitions, offsets, timestamps = columns
            file.write(
                pa.table(
                    {
                        "topic": pa.array(topics, pa.string()),
                        "partition": pa.array(partitions, pa.int32()),
                        "offset": pa.array(offsets, pa.int64()),
                        "timestamp_ms": pa.array(timestamps, pa.int64()),
                        "key": pa.array(key, pa.binary()),
                        "value": pa.array(value, pa.binary()),
                        "headers": _headers(headers),
                        "event_time_ms": pa.array(times, pa.int64()),
                        "attempts": pa.array([one.attempts for one in some], pa.int32()),
                        "retry_at_ms": pa.array([one.retry_at_ms for one in some], pa.int64()),
                        "reason": pa.array([one.reason for one in some], pa.string()),
                        "detail": pa.array([one.detail for one in some], pa.string()),
                        "path": pa.array([one.path for one in some], pa.string()),
                    }
                )
            )
    return file.name


def read_pending(paths: Iterable[str]) -> list[PendingEvent]:
    """The events of some files of `write_waiting`, in their order."""
    found = [
        one for path in paths for one in waiting_events(pq.read_table(path, use_threads=False))
    ]
    found.sort(key=lambda one: (*one.event[3:7],))
    return found


def waiting_events(rows: pa.Table) -> Iterator[PendingEvent]:
    """The events of a table of `PENDING_SCHEMA`."""
    more = [rows[name].to_pylist() for name in PENDING_SCHEMA.names[-5:]]
    for event, *rest in zip(events(rows), *more, strict=True):
        yield PendingEvent(event, *rest)


def events(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows of a table as the values of events, in the order of `EventValues`."""
    headers = rows["headers"]
    lists: Iterable[Any] = itertools.repeat((), len(rows))
    if headers.null_count < len(rows):
        lists = (
            () if not several else [(one["key"], one["value"]) for one in several]
            for several in headers.to_pylist()
        )
    return zip(
        _objects(rows["key"]),
        _objects(rows["value"]),
        lists,
        rows["event_time_ms"].to_numpy().tolist(),
        _texts(rows["topic"]),
        rows["partition"].to_numpy().tolist(),
        rows["offset"].to_numpy().tolist(),
        rows["timestamp_ms"].to_numpy().tolist(),
        strict=True,
    )


def _objects(column: pa.ChunkedArray) -> list[bytes | None]:
    """Bytes of a column: by NumPy, which makes no scalar of Arrow's for each."""
    made: list[bytes | None] = column.to_numpy().tolist()
    return made


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Texts of a column, each different one made once."""
    encoded = column.combine_chunks().dictionary_encode()
    different = encoded.dictionary.to_pylist()
    if len(different) == 1:
        same: list[str] = different * len(column)
        return same
    texts: list[str] = [different[place] for place in encoded.indices.to_numpy().tolist()]
    return texts


EVENT_COLUMNS: Final = (
    "key", "value", "headers", "event_time_ms", "topic", "partition", "offset", "timestamp_ms",
)  # fmt: skip


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
    """The roots of a file of `write_roots`, by id, and which attempt this is of each."""
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
    """What a task knows of an acker's roots: ids, values, flags."""
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


class ExchangeFile:
    """A task's tuples for tasks of later stages.

    Args:
        folder: Where it is written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"tuples-{uuid4().hex}.pickle"
        self.index: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._waiting: dict[tuple[str, int], list[Sent]] = {}

    def send(self, component: str, task: int, sent: Sent) -> None:
        """Take a tuple in."""
        waiting = self._waiting.setdefault((component, task), [])
        waiting.append(sent)
        if len(waiting) >= _TUPLES_AT_ONCE:
            self._flush(component, task)

    def close(self) -> None:
        """Write what is left."""
        for component, task in self._waiting:
            self._flush(component, task)

    def _flush(self, component: str, task: int) -> None:
        waiting = self._waiting[component, task]
        if not waiting:
            return
        self._waiting[component, task] = []
        waiting.sort(key=order_of)
        with self.path.open("ab") as file:
            begin = file.tell()
            for at in range(0, len(waiting), _TUPLES_A_FRAME):
                frame = [tuple(sent) for sent in waiting[at : at + _TUPLES_A_FRAME]]
                pickle.dump(frame, file, protocol=5)
            length = file.tell() - begin
        self.index.setdefault((component, task), []).append((begin, length))


def tuples_in_order(sources: Sources) -> Iterator[tuple[str, Sent]]:
    """Tuples of some files, and for which component each is, in the order of their events.

    Each stretch of a file is in order, so they are merged: of each only a frame is in memory.
    """
    return heapq.merge(
        *(
            _stretch(path, component, begin, begin + length)
            for path, blobs in sources
            for component, places in blobs.items()
            for begin, length in places
        ),
        key=lambda one: order_of(one[1]),
    )


def _stretch(path: str, component: str, begin: int, end: int) -> Iterator[tuple[str, Sent]]:
    while begin < end:
        with Path(path).open("rb") as file:
            file.seek(begin)
            frame = pickle.load(file)  # noqa: S301 - our own tasks' tuples; values are packed
            begin = file.tell()
        for sent in frame:
            yield component, Sent(*sent)


def _headers(lists: Sequence[Any]) -> pa.Array:
    if not any(lists):
        return pa.nulls(len(lists), HEADERS_TYPE)
    made = [[{"key": name, "value": value} for name, value in several] for several in lists]
    return pa.array(made, HEADERS_TYPE)
