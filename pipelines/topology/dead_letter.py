"""Makes dead letters that fit their topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sequitur.consumer import (
    OVERSIZED_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.consumer.topology import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_COMPONENT_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_PATH_HEADER,
    DEAD_REASON_HEADER,
    DEAD_STREAM_HEADER,
    DEAD_TIME_HEADER,
    DEAD_TOPOLOGY_HEADER,
    OutputRecord,
)
from sequitur.consumer.topology.settling.made_tuple import component_of, is_made, readable
from sequitur.consumer.topology.settling.root import Root
from sequitur.pipelines.rows.oversized import MOST_KEY_BYTES, write_oversized
from sequitur.pipelines.topology.event_files import EVENT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from sequitur.consumer.topology.step.events import PendingEvent
    from sequitur.pipelines.topology.batch import FileBatch

    _Headers: TypeAlias = "Sequence[tuple[str, bytes | None]]"

_SHORT_DETAIL: Final = 1 << 10


def dead_letter(one: PendingEvent, batch: FileBatch) -> OutputRecord:
    """An event given up, as its topic takes it: with less of its traceback, or whole in a file."""
    if is_made(one.event):
        return _made(one, batch)
    key, value, headers = one.event[:3]
    for detail in (one.detail, one.detail and one.detail[-_SHORT_DETAIL:]):
        added = _added(one, batch, detail)
        if _fits(batch, key, value, [*headers, *added]):
            return OutputRecord(Root(1, one.event), key, value, [*headers, *added])
    file = _in_file(one, batch)
    kept = key if key is not None and len(key) <= MOST_KEY_BYTES else None
    if not _fits(batch, kept, None, [*added, file]):
        kept, added = None, _added(one._replace(path=None), batch, None)
    return OutputRecord(Root(1, one.event), kept, None, [*added, file])


def _made(one: PendingEvent, batch: FileBatch) -> OutputRecord:
    """A tuple that a bolt made: to be read in its topic, and to be given back from its file."""
    stream, said = readable(one.event, batch.topology)
    key, file = one.event[4].encode(), _in_file(one, batch)
    own = [
        (DEAD_COMPONENT_HEADER, component_of(one.event).encode()),
        (DEAD_STREAM_HEADER, stream.encode()),
        file,
    ]
    short = one.detail and one.detail[-_SHORT_DETAIL:]
    for value, detail in ((said, one.detail), (said, short), (None, short)):
        added = [*_added(one, batch, detail), *own]
        if _fits(batch, key, value, added):
            return OutputRecord(Root(1, one.event), key, value, added)
    added = [*_added(one._replace(path=None), batch, None), *own]
    return OutputRecord(Root(1, one.event), None, None, added)


def _in_file(one: PendingEvent, batch: FileBatch) -> tuple[str, bytes]:
    """Write an event whole into a file; the header that names it."""
    names = (*EVENT_COLUMNS, "reason", "detail")
    row = dict(zip(names, (*one.event, one.reason, one.detail), strict=True))
    row["headers"] = [{"key": name, "value": said} for name, said in one.event[2]]
    return OVERSIZED_HEADER, write_oversized(batch.root, row).encode()


def _fits(batch: FileBatch, key: bytes | None, value: bytes | None, headers: _Headers) -> bool:
    parts = [part for name, said in headers for part in (name.encode(), said)]
    return batch.letter_limit.takes((key, value, *parts), len(headers))


def _added(one: PendingEvent, batch: FileBatch, detail: str | None) -> _Headers:
    """The headers of a dead letter behind the event's own."""
    time_ms, topic, partition, offset = one.event[3:7]
    told = {
        DEAD_REASON_HEADER: one.reason,
        DEAD_DETAIL_HEADER: detail,
        DEAD_ATTEMPTS_HEADER: one.attempts,
        DEAD_PATH_HEADER: one.path,
        DEAD_TOPOLOGY_HEADER: batch.topology.name,
        DEAD_TIME_HEADER: batch.now_ms,
        DEAD_EVENT_TIME_HEADER: time_ms,
        SOURCE_TOPIC_HEADER: topic,
        SOURCE_PARTITION_HEADER: partition,
        SOURCE_OFFSET_HEADER: offset,
    }
    return [(name, str(said).encode()) for name, said in told.items() if said is not None]
