"""Replay requests: events given back to a process job, by files in its checkpoint.

A dead-lettered event cannot go through the input topic again: it would be late there. To try
it once more, leave its row in the job's checkpoint::

    replays/<name>.parquet    rows to be taken in, in the columns of a run, by event time

The running job, or its next start, takes them into its pending events as first attempts, and
remembers the names of the files it has taken in. Names sort by the time they were written at, and
none is given twice.

Which dead letters the job was given back stands in `replayed/<number>` of its checkpoint. A
document is created exclusively, before the request it is about. So of two commands at once one sees
what the other has taken. A command whose request cannot be written gives its letters back. One that
dies in between leaves them noted as replayed. In the other order they would come twice.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from sequitur.base.stored import dump, load
from sequitur.consumer.reorder.event_time import identity_of
from sequitur.errors import CheckpointError
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA
from sequitur.pipelines.store.documents import read_document
from sequitur.pipelines.store.epochs import folder_of_epoch, newest_epoch
from sequitur.pipelines.store.job_identity import check_identity
from sequitur.pipelines.store.part_files import is_rows_file
from sequitur.pipelines.store.storage import files_in, open_file, storage_at, sync, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.pipelines.store.storage import Location, Storage


REPLAYS_FOLDER: Final = "replays"
_REQUIRED: Final = ("topic", "partition", "offset", "event_time_ms")
_IN_ORDER: Final = ("event_time_ms", "topic", "partition", "offset")
"""The order of events everywhere: ties of event time go by where they came from."""


def checkpoint_of(settings: ReorderSettings) -> Storage:
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
        "event_time": identity_of(settings.event_time),
        "output_topic": settings.output_topic,
    }
    check_identity(location, found, wanted)
    if found.get("topology") is None:
        raise CheckpointError(f"{location}: no topology runs there that events could be given to")
    return storage


def replays_folder(settings: ReorderSettings) -> Location:
    """Return the folder of requests to the job with these settings; it may not exist yet."""
    return checkpoint_of(settings).location(REPLAYS_FOLDER)


def write_request(folder: Location, rows: pa.Table) -> Location:
    """Write a request, whole or not at all; when this returns, it survives a power cut."""
    if not len(rows):
        raise ValueError("a request needs an event")
    rows = rows.select(RUN_ARROW_SCHEMA.names).cast(RUN_ARROW_SCHEMA)
    for name in _REQUIRED:
        if rows[name].null_count:
            raise ValueError(f"an event without {name} cannot be replayed")
    rows = rows.sort_by([(name, "ascending") for name in _IN_ORDER])
    request = folder / f"{time.time_ns():020d}-{uuid4().hex}.parquet"
    content = io.BytesIO()
    pq.write_table(rows, content, compression="none", store_schema=False)
    try:
        write_whole(request, content.getvalue())
    except OSError as error:
        try:
            request.unlink(missing_ok=True)  # a store whose answer was lost may hold it
        except OSError as also:
            raise RequestInDoubtError(f"{request} may be written or not: {also}") from error
        raise CheckpointError(f"{folder} cannot be written: {error}") from error
    return request


class RequestInDoubtError(CheckpointError):
    """The store did not say whether a request was written, and did not let it be deleted."""


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
    """Return all but the timestamp, which in a dead letter is the time of its writing."""
    key, value, headers, *place = event[:7]
    return (key, value, tuple(headers or ()), *place)


def requests(folder: Location) -> tuple[Location, ...]:
    """Return the requests in a folder, oldest first; empty if there is no folder."""
    return tuple(path for path in files_in(folder) if is_rows_file(path.name))


def read_request(path: Location) -> pa.Table:
    """Return the rows of a request, in the columns of `RUN_ARROW_SCHEMA`, by event time."""
    try:
        with open_file(path) as file:
            found = pq.ParquetFile(file).read()
        return found.select(RUN_ARROW_SCHEMA.names).cast(RUN_ARROW_SCHEMA)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise CheckpointError(f"{path} is not a replay request: {error}") from error


class ReplayIntake:
    """The requests of a job that no step has taken yet."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._found: tuple[Location, ...] | None = None

    def are_there(self, taken: Collection[str]) -> bool:
        self._found = tuple(path for path in requests(self._folder) if path.name not in taken)
        return bool(self._found)

    def take(self) -> tuple[Location, ...]:
        """Return the requests that the last look found, or else those that are there now."""
        found, self._found = self._found, None
        return requests(self._folder) if found is None else found

    def delete(self, taken: Collection[str]) -> None:
        """Delete the requests that a done step has taken."""
        for name in taken:
            (self._folder / name).unlink(missing_ok=True)
        if taken:
            sync(self._folder)  # a request that came back would be taken again
        if self._found is not None:
            self._found = tuple(path for path in self._found if path.name not in taken)


_FOLDER: Final = "replayed"

Letter = tuple[int, int]
"""Its partition and offset in the dead-letter topic."""


class _Taken(Struct, frozen=True, tag_field="format", tag=1):
    TITLE: ClassVar = "replayed letters"

    topic: str  # its id
    letters: Sequence[tuple[int, int, int]]  # spans: a partition, first and last offset


class ReplayedLetters:
    def __init__(self, storage: Storage, topic_id: str) -> None:
        self._storage = storage
        self._topic_id = topic_id
        self._read: set[str] = set()
        self._taken: str | None = None

    def new(self, letters: Collection[Letter]) -> set[Letter]:
        """Return the letters that were not replayed before."""
        self._read.clear()
        return self._left(set(letters))

    def take(self, letters: Collection[Letter]) -> set[Letter]:
        """Note letters as replayed; return those that were not before."""
        self._storage.make_folder(_FOLDER)
        new = self.new(letters)
        while new:
            number = 1 + max((int(name) for name in self._read), default=-1)
            name = f"{_FOLDER}/{number:06d}"
            if self._storage.create(name, self._document(new)):
                self._taken = name
                break
            new = self._left(new)
        return new

    def give_back(self) -> None:
        """Note the letters that were taken last as not replayed: nothing requests them."""
        if self._taken is not None:
            # Its number stays: a process that has read it would not read another document there.
            self._storage.replace(self._taken, self._document(()))
            self._taken = None

    def _left(self, letters: set[Letter]) -> set[Letter]:
        """Return the letters that the unread documents do not note."""
        names = set(self._storage.names(_FOLDER))
        for name in names - self._read:
            taken = read_document(self._storage, f"{_FOLDER}/{name}", partial(load, _Taken))
            if taken is not None and taken.topic == self._topic_id:
                letters = {one for one in letters if not _is_in(one, taken.letters)}
        self._read |= names
        return letters

    def _document(self, letters: Iterable[Letter]) -> str:
        return json.dumps(dump(_Taken(self._topic_id, _spans_of(letters))))


class Requested(NamedTuple):
    path: Location | None  # the request; None if all letters were replayed before
    events: int
    letters: int


def request_letters(
    storage: Storage,
    topic_id: str,
    letters: Collection[Letter],
    rows_of: Callable[[set[Letter]], pa.Table],
    *,
    again: bool = False,
) -> Requested:
    """Request letters that were not replayed before, or all of them.

    No letter counts as replayed whose request cannot be written.

    Args:
        storage: The job's checkpoint.
        topic_id: The id of the dead-letter topic.
        letters: What is requested.
        rows_of: Gives the rows of letters.
        again: Request also letters that were replayed before.
    """
    replayed = ReplayedLetters(storage, topic_id)
    new = replayed.take(letters)
    try:
        requested = set(letters) if again else new
        if not requested:
            return Requested(None, 0, 0)
        rows = rows_of(requested)
        path = write_request(storage.location(REPLAYS_FOLDER), rows)
        return Requested(path, len(rows), len(requested))
    except RequestInDoubtError:
        raise
    except BaseException:
        replayed.give_back()
        raise


def _spans_of(letters: Iterable[Letter]) -> list[tuple[int, int, int]]:
    spans: list[tuple[int, int, int]] = []
    for partition, offset in sorted(letters):
        first = offset
        if spans and spans[-1][0] == partition and spans[-1][2] == offset - 1:
            first = spans.pop()[1]
        spans.append((partition, first, offset))
    return spans


def _is_in(letter: Letter, spans: Iterable[tuple[int, int, int]]) -> bool:
    partition, offset = letter
    return any(one == partition and first <= offset <= last for one, first, last in spans)
