"""The batches of a journal that are still needed: where their frames lie, and their exact bytes.

Only the places of a batch's bytes in the files are kept: what waits may be larger than memory.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from sequitur.kafka.record_batch import Stamp, batch_of, stamped, times_of
from sequitur.kafka.record_format import HEADER_SIZE
from sequitur.producer.journal.frames import BatchFrame, BatchKey, Frame, Waiting, WaitingKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Key: TypeAlias = BatchKey | WaitingKey


class LiveBatches:
    """The batches that are still needed, by key, and for each segment the keys with a frame in it.

    A segment can be removed once it and all older ones have none.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self.waiting_count = 0
        self._live: dict[Key, Live] = {}
        self._numbered: dict[WaitingKey, BatchKey] = {}  # by their first events
        self._in_segment: defaultdict[int, dict[Key, None]] = defaultdict(dict)
        self._bytes_in: defaultdict[int, int] = defaultdict(int)
        self._bytes_of: defaultdict[str, int] = defaultdict(int)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: Key) -> bool:
        return key in self._live

    def __iter__(self) -> Iterator[Live]:
        return iter(self._live.values())

    def find(self, key: Key) -> Live | None:
        """Return a batch and the places of its frames; None once it is needed no more."""
        return self._live.get(key)

    def find_by_first_event(self, key: WaitingKey) -> Live | None:
        """Return the batch that begins with an event, whether it has numbers or not."""
        return self._live.get(self._numbered.get(key, key))

    def oldest_segment(self) -> int | None:
        """Return the oldest segment that holds something still needed."""
        return min(self._in_segment, default=None)

    def in_segment(self, segment: int, limit_bytes: int) -> list[Live]:
        """Return batches with a frame in a segment, as many as fit `limit_bytes`; at least one."""
        found: list[Live] = []
        for key in self._in_segment.get(segment, ()):
            live = self._live[key]
            limit_bytes -= live.length
            if found and limit_bytes < 0:
                break
            found.append(live)
        return found

    def bytes_in(self, segment: int) -> int:
        return self._bytes_in.get(segment, 0)

    def bytes_of(self, topic: str) -> int:
        return self._bytes_of.get(topic, 0)

    def hold(self, key: Key, live: Live) -> None:
        self._live[key] = live
        if isinstance(key, WaitingKey):
            self.waiting_count += 1
        else:
            self._numbered[_waiting_key(live)] = key
        for place in live.places:
            self._in_segment[place.segment][key] = None
            self._bytes_in[place.segment] += place.length
        self.total_bytes += live.length
        self._bytes_of[live.batch.topic] += live.length

    def forget_all(self, keys: Iterable[Key]) -> None:
        """Forget batches; unknown ones are ignored."""
        for key in keys:
            self.forget(key)

    def forget(self, key: Key) -> Live | None:
        """Forget a batch, and return it; None if it was not there."""
        live = self._live.pop(key, None)
        if live is not None:  # a mark may come twice: the broker may answer twice
            if isinstance(key, WaitingKey):
                self.waiting_count -= 1
            elif self._numbered.get(first := _waiting_key(live)) == key:
                del self._numbered[first]
            self.total_bytes -= live.length
            self._bytes_of[live.batch.topic] -= live.length
            for place in live.places:
                self._bytes_in[place.segment] -= place.length
                self._in_segment[place.segment].pop(key, None)
                if not self._in_segment[place.segment]:
                    del self._in_segment[place.segment], self._bytes_in[place.segment]
        return live


class Live(NamedTuple):
    """A batch that is still needed, without its bytes, and the places of the frames that have them.

    A batch that grew while it waited is in several frames.
    """

    batch: BatchFrame | Waiting
    places: tuple[Place, ...]

    @property
    def length(self) -> int:
        """Bytes of the frames that it is in."""
        return sum(place.length for place in self.places)


class Place(NamedTuple):
    """Where a frame lies: its segment, its first byte there, and how many bytes it has."""

    segment: int
    offset: int
    length: int


def _waiting_key(live: Live) -> WaitingKey:
    batch = live.batch
    return WaitingKey(batch.topic, batch.partition, batch.first_event_sequence)


def whole(batch: BatchFrame | Waiting, frames: Sequence[Frame]) -> BatchFrame | Waiting:
    """Return a batch with its exact bytes, as one frame, made of the frames it is in."""
    data = _data_of(frames)
    if isinstance(batch, Waiting):
        return msgspec.structs.replace(batch, piece=False, data=data)
    stamp = Stamp(batch.producer_id, batch.epoch, batch.base_sequence)
    _first_ms, last_ms = times_of(data)
    if Stamp.of(data) != stamp or batch.timestamp_ms not in {-1, last_ms}:
        data = stamped(data, stamp, None if batch.timestamp_ms == -1 else batch.timestamp_ms)
    return msgspec.structs.replace(batch, data=data)


def _data_of(frames: Sequence[Frame]) -> bytes:
    """Return a batch's bytes, from its one frame or from all frames that added to it."""
    first, *added = frames
    assert isinstance(first, BatchFrame | Waiting)
    if not added and not (isinstance(first, Waiting) and first.piece):
        return first.data
    is_piece = isinstance(first, Waiting) and first.piece
    records = [first.data if is_piece else first.data[HEADER_SIZE:]]
    last = first
    for frame in added:
        assert isinstance(frame, Waiting)
        records.append(frame.data)
        last = frame
    assert isinstance(last, Waiting)
    return batch_of(
        b"".join(records), last.record_count, first_ms=last.first_ms, last_ms=last.last_ms
    )
