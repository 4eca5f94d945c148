"""What tasks leave in files for others: tuples for later stages, and for ackers acks of roots."""

from __future__ import annotations

import heapq
import io
import pickle
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from sequitur.consumer.topology.engine.emission import Sent, order_of
from sequitur.consumer.topology.settling.acker import acker_of
from sequitur.pipelines.store.files import is_remote, new_file, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.consumer.topology.step.batch import Sources
    from sequitur.pipelines.store.files import Location

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
    """A task's tuples for tasks of later stages."""

    def __init__(self, folder: Location) -> None:
        self.path = folder / f"tuples-{uuid4().hex}.pickle"
        self.index: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._waiting: dict[tuple[str, int], list[Sent]] = {}
        self._bytes: dict[tuple[str, int], int] = {}
        self._all_bytes = 0
        self._file: pa.NativeFile | None = None

    def send(self, component: str, task: int, sent: Sent) -> None:
        """Take a tuple in."""
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
        """Write what is left."""
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
            self._file.write(len(frame).to_bytes(_LENGTH_BYTES, "big"))
            self._file.write(frame)
        length = self._file.tell() - begin
        self.index.setdefault(place, []).append((begin, length))


def _in_frames(tuples: Sequence[Sent]) -> Iterator[Sequence[Sent]]:
    """Return tuples in stretches that are read at once; of a large tuple each is one."""
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
