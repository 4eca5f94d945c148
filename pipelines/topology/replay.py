"""Replay requests: events given back to a process job, by files in its checkpoint.

A dead-lettered event cannot go through the input topic again: it would be late there. To try
it once more, leave its row in the job's checkpoint::

    replays/<name>.parquet    rows to be taken in, in the columns of a run, by event time

The running job, or its next start, takes them into its pending events as first attempts, and
remembers the names of the files it has taken in. Names sort by the time they were written at, and
none is given twice.
"""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.errors import CheckpointError
from sequitur.pipelines.rows.stage import RUN_ARROW_SCHEMA
from sequitur.pipelines.store.documents import check_format, read_document
from sequitur.pipelines.store.epochs import folder_of_epoch, newest_epoch
from sequitur.pipelines.store.files import files_in, open_file, write_whole
from sequitur.pipelines.store.job_identity import check_identity
from sequitur.pipelines.store.part_files import is_rows_file
from sequitur.pipelines.store.storage import storage_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from sequitur.consumer import ReorderSettings
    from sequitur.pipelines.store.files import Location
    from sequitur.pipelines.store.storage import Storage


REPLAYS_FOLDER: Final = "replays"
_REQUIRED: Final = ("topic", "partition", "offset", "event_time_ms")
_IN_ORDER: Final = ("event_time_ms", "topic", "partition", "offset")
"""The order of events everywhere: ties of event time go by where they came from."""


def checkpoint_of(settings: ReorderSettings) -> Storage:
    """The checkpoint of the job with these settings, to which requests are given."""
    location = settings.checkpoint
    try:
        location = folder_of_epoch(location, newest_epoch(storage_at(location)))
        storage = storage_at(location)
        found = read_document(storage, "format.json", dict)
    except OSError as error:
        raise CheckpointError(f"{location} cannot be read: {error}") from error
    if found is None:
        raise CheckpointError(f"{location} is not a job's checkpoint: has it ever run?")
    wanted: dict[str, Any] = {
        "input_topics": sorted(settings.input_topics),
        "input_pattern": settings.input_pattern,
        "event_time": str(settings.event_time),
        "output_topic": settings.output_topic,
    }
    check_identity(location, found, wanted)
    if found.get("topology") is None:
        raise CheckpointError(f"{location}: no topology runs there that events could be given to")
    return storage


def replays_folder(settings: ReorderSettings) -> Location:
    """Where the requests to the job with these settings go; it need not be there yet."""
    return checkpoint_of(settings).location(REPLAYS_FOLDER)


def write_request(folder: Location, rows: pa.Table) -> Location:
    """Write a request, whole or not at all; when this returns it survives a power cut."""
    if not len(rows):
        raise ValueError("a request needs an event")
    rows = rows.select(RUN_ARROW_SCHEMA.names).cast(RUN_ARROW_SCHEMA)
    for name in _REQUIRED:
        if rows[name].null_count:
            raise ValueError(f"an event without {name} cannot be replayed")
    rows = rows.sort_by([(name, "ascending") for name in _IN_ORDER])
    request = folder / f"{time.time_ns():020d}-{uuid4().hex}.parquet"
    try:
        content = io.BytesIO()
        pq.write_table(rows, content, compression="none", store_schema=False)
        write_whole(request, content.getvalue())
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error}") from error
    return request


def each_once(
    requested: Iterable[tuple[Any, ...]], waiting: Iterable[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    """The events of requests, but those that wait already, or come twice.

    An event is known by its place in the source and by what it says: once a topic was recreated,
    another event may stand in the same place.
    """
    known = {_said(event) for event in waiting}
    for event in requested:
        said = _said(event)
        if said not in known:
            known.add(said)
            yield event


def _said(event: tuple[Any, ...]) -> tuple[Any, ...]:
    """All but the timestamp: of a dead letter that is the time at which it was written."""
    key, value, headers, *place = event[:7]
    return (key, value, tuple(headers or ()), *place)


def requests(folder: Location) -> tuple[Location, ...]:
    """The requests in a folder, oldest first; none where there is no folder."""
    return tuple(path for path in files_in(folder) if is_rows_file(path.name))


def read_request(path: Location) -> pa.Table:
    """The rows of a request, in the columns of `RUN_ARROW_SCHEMA`, by event time."""
    try:
        with open_file(path) as file:
            found = pq.ParquetFile(file).read()
        return found.select(RUN_ARROW_SCHEMA.names).cast(RUN_ARROW_SCHEMA)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise CheckpointError(f"{path} is not a replay request: {error}") from error


# Which dead letters the job was given back: in `replayed/<number>` of its checkpoint.
#
# A document is created exclusively, before the request it is about. So of two commands at once one
# sees what the other has taken; and a command that dies in between has its letters told as
# replayed the next time, where they would be put out twice in the other order.

_FOLDER: Final = "replayed"
_FORMAT: Final = 1

Letter = tuple[int, int]
"""Its partition and offset in the dead-letter topic."""


class ReplayedLetters:
    """The dead letters of one topic that were replayed."""

    def __init__(self, storage: Storage, topic_id: str) -> None:
        self._storage = storage
        self._topic_id = topic_id

    def take(self, letters: Collection[Letter]) -> set[Letter]:
        """Note letters as replayed, and return those that were not before."""
        self._storage.make_folder(_FOLDER)
        known: set[Letter] = set()
        read: set[str] = set()
        while True:
            names = set(self._storage.names(_FOLDER))
            for name in names - read:
                spans = read_document(self._storage, f"{_FOLDER}/{name}", self._spans) or ()
                known.update(one for one in letters if _is_in(one, spans))
            read |= names
            new = set(letters) - known
            number = 1 + max((int(name) for name in read), default=-1)
            if not new or self._storage.create(f"{_FOLDER}/{number:06d}", self._document(new)):
                return new

    def _document(self, letters: Iterable[Letter]) -> str:
        said = {"format": _FORMAT, "topic": self._topic_id, "letters": _spans_of(letters)}
        return json.dumps(said)

    def _spans(self, document: dict[str, Any]) -> list[list[int]]:
        check_format(document, _FORMAT)
        spans: list[list[int]] = document["letters"]
        return spans if document["topic"] == self._topic_id else []


def _spans_of(letters: Iterable[Letter]) -> list[list[int]]:
    """Return letters as spans: partition, first and last offset of each."""
    spans: list[list[int]] = []
    for partition, offset in sorted(letters):
        if spans and spans[-1][0] == partition and spans[-1][2] == offset - 1:
            spans[-1][2] = offset
        else:
            spans.append([partition, offset, offset])
    return spans


def _is_in(letter: Letter, spans: Iterable[list[int]]) -> bool:
    partition, offset = letter
    return any(one == partition and first <= offset <= last for one, first, last in spans)
