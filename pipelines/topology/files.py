"""The files that the stages of a step hand on: events that wait, tuples, and acks."""

from __future__ import annotations

import heapq
import io
import itertools
import pickle
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.consumer.topology.engine.plan import Sent, order_of
from sequitur.consumer.topology.settling.acker import acker_of
from sequitur.consumer.topology.step.batch import PendingEvent
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA
from sequitur.pipelines.store.durable import naming
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.store.storage import is_remote, new_file, open_file, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeVar

    from sequitur.consumer.topology.step.batch import Sources
    from sequitur.pipelines.store.storage import Location

    T = TypeVar("T")


EVENT_COLUMNS: Final = (
    "key", "value", "headers", "event_time_ms", "topic", "partition", "offset", "timestamp_ms",
)  # fmt: skip
EVENT_SCHEMA: Final = pa.schema([RUN_ARROW_SCHEMA.field(name) for name in EVENT_COLUMNS])
PENDING_SCHEMA: Final = pa.schema(
    [
        *EVENT_SCHEMA,
        ("attempts", pa.int32()),
        ("retry_at_ms", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("path", pa.string()),
    ]
)
"""An event that waits: `retry_at_ms` of one that failed, null of one that is held for another."""

_TOLD: Final = PENDING_SCHEMA.names[len(EVENT_SCHEMA) :]
_ROWS_AT_ONCE: Final = 1 << 16


def events(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table as the values of events, in the order of `EventValues`."""
    headers = rows["headers"]
    lists: Iterable[Any] = itertools.repeat((), len(rows))
    if headers.null_count < len(rows):
        lists = (
            () if not several else [(one["key"], one["value"]) for one in several]
            for several in headers.to_pylist()
        )
    return zip(
        # With NumPy, which does not make an Arrow scalar for each.
        rows["key"].to_numpy().tolist(),
        rows["value"].to_numpy().tolist(),
        lists,
        rows["event_time_ms"].to_numpy().tolist(),
        _texts(rows["topic"]),
        rows["partition"].to_numpy().tolist(),
        rows["offset"].to_numpy().tolist(),
        rows["timestamp_ms"].to_numpy().tolist(),
        strict=True,
    )


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Return the texts of a column; equal texts are one object."""
    encoded = column.combine_chunks().dictionary_encode()
    different = encoded.dictionary.to_pylist()
    if len(different) == 1:
        same: list[str] = different * len(column)
        return same
    texts: list[str] = [different[place] for place in encoded.indices.to_numpy().tolist()]
    return texts


def table_of(
    key: Sequence[bytes | None], value: Sequence[bytes | None], headers: Sequence[Any], *rest: Any
) -> pa.Table:
    """Make a table of `EVENT_SCHEMA` from its columns."""
    lists: Sequence[Any] = [None] * len(headers)
    if any(headers):
        lists = [[{"key": name, "value": said} for name, said in several] for several in headers]
    columns = zip((key, value, lists, *rest), EVENT_SCHEMA.types, strict=True)
    return pa.table([pa.array(column, of) for column, of in columns], schema=EVENT_SCHEMA)


def write_waiting(folder: Location, waiting: Sequence[PendingEvent]) -> Location | None:
    """Write events that wait into a file of a folder; return where it is, None without any."""
    with PartFile(folder, PENDING_SCHEMA) as file:
        for begin in range(0, len(waiting), _ROWS_AT_ONCE):
            some = waiting[begin : begin + _ROWS_AT_ONCE]
            _, *told = zip(*some, strict=True)
            rows = table_of(*zip(*(one.event for one in some), strict=True))
            for name, column in zip(_TOLD, told, strict=True):
                of = PENDING_SCHEMA.field(name)
                rows = rows.append_column(of, pa.array(column, of.type))
            file.write(rows)
    return file.location


def read_pending(paths: Iterable[Location]) -> list[PendingEvent]:
    """Read the events of files of `write_waiting`, in order."""
    found = []
    for path in paths:
        with open_file(path) as file, pq.ParquetFile(file) as parquet:
            rows = parquet.read(use_threads=False)
        told = zip(*(rows[name].to_pylist() for name in _TOLD), strict=True)
        found += [
            PendingEvent(event, *rest) for event, rest in zip(events(rows), told, strict=True)
        ]
    return sorted(found, key=lambda one: one.event[3:7])


ACKS_SCHEMA: Final = pa.schema(
    [("root", pa.uint64()), ("value", pa.uint64()), ("flags", pa.uint8())]
)
_TUPLES_AT_ONCE: Final = 1 << 12
_BYTES_AT_ONCE: Final = 32 << 20
"""So much waits at most to be written, of all tasks of readers together."""
_TUPLES_A_FRAME: Final = 1 << 6
"""So many tuples of each stretch of a file are read at once, of the `_TUPLES_AT_ONCE` it has."""
_BYTES_A_FRAME: Final = 1 << 18
"""And so much of them, or one that is larger."""
_LENGTH_BYTES: Final = 4
_READ_AHEAD: Final = 1 << 18
"""Of a stretch that is far away so many bytes are read at once, where a frame has less."""


class ExchangeFile:
    def __init__(self, folder: Location) -> None:
        self.path = folder / f"tuples-{uuid4().hex}.pickle"
        self.index: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._waiting: dict[tuple[str, int], list[Sent]] = {}
        self._bytes: dict[tuple[str, int], int] = {}
        self._all_bytes = 0
        self._file: pa.NativeFile | None = None

    def send(self, component: str, task: int, sent: Sent) -> None:
        place, size = (component, task), len(sent.values)
        waiting = self._waiting.setdefault(place, [])
        waiting.append(sent)
        self._bytes[place] = self._bytes.get(place, 0) + size
        self._all_bytes += size
        if len(waiting) >= _TUPLES_AT_ONCE:
            self._flush(place)
        elif self._all_bytes >= _BYTES_AT_ONCE:
            self._flush(max(self._bytes, key=self._bytes.__getitem__))

    def close(self) -> None:
        for place in self._waiting:
            self._flush(place)
        if self._file is not None:
            self._file.close()

    def _flush(self, place: tuple[str, int]) -> None:
        waiting = self._waiting[place]
        if not waiting:
            return
        self._waiting[place] = []
        self._all_bytes -= self._bytes[place]
        self._bytes[place] = 0
        waiting.sort(key=order_of)
        if self._file is None:
            self._file = new_file(self.path)
        begin = self._file.tell()
        for tuples in _in_frames(waiting):
            frame = pickle.dumps([tuple(sent) for sent in tuples], 5)
            with naming(self.path):
                self._file.write(len(frame).to_bytes(_LENGTH_BYTES, "big"))
                self._file.write(frame)
        length = self._file.tell() - begin
        self.index.setdefault(place, []).append((begin, length))


def _in_frames(tuples: Sequence[Sent]) -> Iterator[Sequence[Sent]]:
    """Yield tuples in stretches that are read at once; a large tuple is a stretch of its own."""
    begin = size = 0
    for at, sent in enumerate(tuples):
        size += len(sent.values)
        if at > begin and (at - begin == _TUPLES_A_FRAME or size > _BYTES_A_FRAME):
            yield tuples[begin:at]
            begin, size = at, len(sent.values)
    yield tuples[begin:]


def tuples_in_order(sources: Sources) -> Iterator[tuple[str, Sent]]:
    """Read tuples of some files in the order of their events, each with its component.

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


def _stretch(path: Location, component: str, begin: int, end: int) -> Iterator[tuple[str, Sent]]:
    while begin < end:
        for frame in _frames(path, begin, end):
            begin += _LENGTH_BYTES + len(frame)
            tuples = pickle.load(io.BytesIO(frame))  # noqa: S301 - our own tasks' tuples; values are packed
            for sent in tuples:
                yield component, Sent(*sent)


def _frames(path: Location, begin: int, end: int) -> list[bytes]:
    """Read the next frames of a stretch: one, or as many as are read ahead; the file is closed."""
    with open_file(path) as file:
        ahead = file.read_at(min(_READ_AHEAD, end - begin), begin) if is_remote(path) else b""
        frames: list[bytes] = []
        while begin < end:
            if frames and len(ahead) < _LENGTH_BYTES:
                break
            head, ahead = ahead[:_LENGTH_BYTES], ahead[_LENGTH_BYTES:]
            length = int.from_bytes(head or file.read_at(_LENGTH_BYTES, begin), "big")
            if frames and len(ahead) < length:
                break
            frame, ahead = ahead[:length], ahead[length:]
            begin += _LENGTH_BYTES
            frames.append(frame + file.read_at(length - len(frame), begin + len(frame)))
            begin += length
            if not ahead:
                break
    return frames


def write_acks(folder: Location, roots: Any, values: Any, flags: Any, ackers: int) -> Location:
    """Write what a task knows of roots, a record batch for each acker; return where it is."""
    which = acker_of(roots, ackers)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(ackers + 1))
    path = folder / f"acks-{uuid4().hex}.arrow"
    with written(path) as file, pa.ipc.new_file(file, ACKS_SCHEMA) as writer:
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
