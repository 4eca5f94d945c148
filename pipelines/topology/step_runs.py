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
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.event_time import identity_of
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.consumer.topology.api.bolt import ticks_due, watermark_after
from sequitur.consumer.topology.engine.plan import plan
from sequitur.consumer.topology.settling.outcomes import due_ms
from sequitur.consumer.topology.settling.root import is_made
from sequitur.consumer.topology.step.batch import PendingEvent
from sequitur.consumer.topology.step.run import CountedRuns, StepRun
from sequitur.consumer.topology.transactional.builder import TransactionalTopology
from sequitur.errors import CheckpointError, ConservationError, StateFormatError
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.rows.columns import RUN_ARROW_SCHEMA, outputs_of
from sequitur.pipelines.store.documents import (
    check_format,
    folder_of_epoch,
    newest_epoch,
    read_document,
)
from sequitur.pipelines.store.job_identity import check_identity
from sequitur.pipelines.store.part_files import is_rows_file
from sequitur.pipelines.store.storage import (
    delete_all,
    files_in,
    new_folder,
    open_file,
    storage_at,
    sync,
    write_whole,
)
from sequitur.pipelines.topology.batch import DEAD_LETTERS, FileBatch, FileInput
from sequitur.pipelines.topology.files import SurvivingTasks, events, read_pending, write_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.consumer.reorder.step_log import StepEntry
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.consumer.topology.step.run import SentTuples, StepResult, Tasks
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.sink.sink import OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.storage import Location, Storage
    from sequitur.pipelines.workers import Workers


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
        "event_time": identity_of(settings.event_time),
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
    """The store did not say whether a request was written, nor let it be deleted."""


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
# sees what the other has taken. A command whose request cannot be written gives its letters back;
# one that dies in between leaves them noted as replayed. In the other order they would come twice.

_FOLDER: Final = "replayed"
_REPLAYED_FORMAT: Final = 1

Letter = tuple[int, int]
"""Its partition and offset in the dead-letter topic."""


class ReplayedLetters:
    """The dead letters of one topic that were replayed."""

    def __init__(self, storage: Storage, topic_id: str) -> None:
        self._storage = storage
        self._topic_id = topic_id
        self._read: set[str] = set()
        self._taken: str | None = None

    def new(self, letters: Collection[Letter]) -> set[Letter]:
        """Return those of letters that were not replayed before."""
        self._read.clear()
        return self._left(set(letters))

    def take(self, letters: Collection[Letter]) -> set[Letter]:
        """Note letters as replayed, and return those that were not before."""
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
            # Its number stays: who has read it already would not read another document there.
            self._storage.replace(self._taken, self._document(()))
            self._taken = None

    def _left(self, letters: set[Letter]) -> set[Letter]:
        """Return letters that no document notes which has not been read yet."""
        names = set(self._storage.names(_FOLDER))
        for name in names - self._read:
            spans = read_document(self._storage, f"{_FOLDER}/{name}", self._spans) or ()
            letters = {one for one in letters if not _is_in(one, spans)}
        self._read |= names
        return letters

    def _document(self, letters: Iterable[Letter]) -> str:
        said = {"format": _REPLAYED_FORMAT, "topic": self._topic_id, "letters": _spans_of(letters)}
        return json.dumps(said)

    def _spans(self, document: dict[str, Any]) -> list[list[int]]:
        check_format(document, _REPLAYED_FORMAT)
        spans: list[list[int]] = document["letters"]
        return spans if document["topic"] == self._topic_id else []


class Requested(NamedTuple):
    """What became of letters."""

    path: Location | None  # the request; None where all of them were replayed before
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


# What became of a step's events, as it stands in the checkpoint.
#
# Files are named from the checkpoint's folder in the document, and by location in memory: so a
# checkpoint can be moved.


PROCESSED_FORMAT: Final = 5
"""No release had 1 to 4. They are refused, and none is used again."""


@dataclass(frozen=True, slots=True)
class ProcessTotals:
    """Counts of events since the checkpoint began."""

    taken: int = 0  # events that came out of the reorder stage
    replayed: int = 0  # dead letters that were given back
    acked: int = 0  # events whose trees are done
    dead: int = 0  # events given up, and in the dead-letter topic
    pending: int = 0  # events that wait: taken + replayed = acked + dead + pending
    # tuples that bolts have made by themselves, at ticks and at ends of batches, for other bolts;
    # they are counted apart from events
    made: int = 0
    made_replayed: int = 0  # those of them that were given up, and given back
    made_acked: int = 0  # those whose trees are done
    made_dead: int = 0  # those that were given up, and are in the dead-letter topic
    made_pending: int = 0  # those that wait: made + replayed = acked + dead + pending, likewise
    failed: int = 0  # attempts that failed, of both
    outputs: int = 0  # records that bolts emitted, those of failed trees included
    late_acks: int = 0  # acks that came too late, and were ignored
    untracked_failures: int = 0
    crashes: int = 0  # how often a task's process died
    busy_ms: int = 0  # how long the topology ran

    @property
    def waiting(self) -> int:
        """How many events and tuples wait."""
        return self.pending + self.made_pending

    @property
    def settled(self) -> int:
        """How many events and tuples are done, or given up."""
        return self.acked + self.dead + self.made_acked + self.made_dead

    @property
    def are_balanced(self) -> bool:
        """Whether each event, and each tuple that a bolt has made, is accounted for."""
        events = self.acked + self.dead + self.pending
        made = self.made_acked + self.made_dead + self.made_pending
        return (self.taken + self.replayed, self.made + self.made_replayed) == (events, made)


@dataclass(frozen=True, slots=True)
class Processed:
    """What became of a step's events."""

    step: int = -1
    taken: int = 0  # events that it released
    # counts of this and all earlier steps
    totals: ProcessTotals = field(default_factory=ProcessTotals)
    next_due_ms: int | None = None  # when the next event is to be tried again; None without any
    # names of the replay requests that are taken in, as long as they are there
    requests: tuple[str, ...] = ()
    # files of records by topic
    records: Mapping[str, Sequence[Location]] = field(default_factory=dict)
    dead: Sequence[Location] = ()  # files of dead letters
    unfinished: Sequence[Location] = ()  # files with ids of roots whose outputs may not go out
    # files of events that wait, by task of the first stage
    waiting: Mapping[int, Sequence[Location]] = field(default_factory=dict)
    # files of what bolts keep: component, task, path
    states: Sequence[tuple[str, int, Location]] = ()
    # how many tasks the components of these had
    tasks: Mapping[str, int] = field(default_factory=dict)
    # the step's time; None before the first. Ticks are due from there on
    time_ms: int | None = None
    # every event up to this event time is done; None as long as none is known
    watermark_ms: int | None = None
    least_waiting_ms: int | None = None  # least event time of events that wait; None without any
    transaction_id: int = 0  # the newest transaction that is committed; 0 before the first
    # committers that have committed it, and how many tasks they had
    committers: Mapping[str, int] = field(default_factory=dict)

    def to_document(self, root: Location) -> dict[str, Any]:
        """It as a JSON document."""
        moved = self._with_files(lambda path: str(path).removeprefix(f"{root}/"))
        document = asdict(moved)
        document["waiting"] = sorted(moved.waiting.items())
        return {"format": PROCESSED_FORMAT, **document}

    @classmethod
    def from_document(cls, document: Mapping[str, Any], root: Location) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Another version wrote it.
        """
        if document.get("format") != PROCESSED_FORMAT:
            raise StateFormatError(
                f"processed step of format {document.get('format')!r}, this version reads "
                f"{PROCESSED_FORMAT}"
            )
        values = {one.name: document[one.name] for one in fields(cls)}
        values["totals"] = ProcessTotals(**values["totals"])
        values["requests"] = tuple(values["requests"])
        values["waiting"] = {place: tuple(paths) for place, paths in values["waiting"]}
        values["states"] = [tuple(one) for one in values["states"]]
        found = cls(**values)
        return found._with_files(lambda path: root / path)

    def states_by_task(self) -> dict[tuple[str, int], Location]:
        """Files of what bolts keep, by component and task."""
        return {(component, task): path for component, task, path in self.states}

    def folders(self) -> set[str]:
        """Names of the folders whose files later steps need."""
        later = [path for paths in self.waiting.values() for path in paths]
        later += [path for _, _, path in self.states]
        return {path.parent.parent.name for path in later}

    def _with_files(self, moved: Callable[[Any], Any]) -> Self:
        """The same with other names of its files."""

        def each(paths: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(moved(path) for path in paths)

        return replace(
            self,
            records={topic: each(paths) for topic, paths in self.records.items()},
            dead=each(self.dead),
            unfinished=each(self.unfinished),
            waiting={place: each(paths) for place, paths in self.waiting.items()},
            states=[(component, task, moved(path)) for component, task, path in self.states],
        )


_PREPARED_FORMAT: Final = 2
"""No release had 1. It is refused, and not used again."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the processing phase of a transaction has left."""

    attempt: int
    folder: str  # name of the folder with its files
    batch: str  # names what it is: no other preparation has this name
    # what became of the step's events; of its records and of what bolts keep, all but what the
    # commit phase adds
    processed: Processed
    # the tuples for the commit phase: in which file, and where in it by component and task
    sent: Sequence[SentTuples]
    tasks: Mapping[str, int]  # how many tasks the components of the commit phase had
    # what else the commit phase takes for granted of the topology
    signature: Mapping[str, Sequence[str]]

    def to_document(self, root: Location) -> dict[str, Any]:
        """Return it as a JSON document."""
        sent = [
            {
                "file": str(file).removeprefix(f"{root}/"),
                "tuples": [(component, task, at) for (component, task), at in tuples.items()],
            }
            for file, tuples in self.sent
        ]
        return {
            "prepared_format": _PREPARED_FORMAT,
            "attempt": self.attempt,
            "folder": self.folder,
            "batch": self.batch,
            "sent": sent,
            "tasks": dict(self.tasks),
            "signature": self.signature,
            "processed": self.processed.to_document(root),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], root: Location) -> Self:
        """Read `to_document` back.

        Raises:
            StateFormatError: Another version wrote it.
        """
        if document["prepared_format"] != _PREPARED_FORMAT:
            raise StateFormatError(
                f"prepared step of format {document['prepared_format']!r}, this version reads "
                f"{_PREPARED_FORMAT}"
            )
        sent = [
            (
                root / one["file"],
                {(component, task): at for component, task, at in one["tuples"]},
            )
            for one in document["sent"]
        ]
        return cls(
            attempt=document["attempt"],
            folder=document["folder"],
            batch=document["batch"],
            processed=Processed.from_document(document["processed"], root),
            sent=sent,
            tasks=document["tasks"],
            signature=document["signature"],
        )


# Runs of a step of a topology: what it is given, in which folder, and what became of it.


class ReplayIntake:
    """The requests of a job that are not taken in yet."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._found: tuple[Location, ...] | None = None

    def are_there(self, taken: Collection[str]) -> bool:
        """Look whether there are any."""
        self._found = tuple(path for path in requests(self._folder) if path.name not in taken)
        return bool(self._found)

    def take(self) -> tuple[Location, ...]:
        """Return those that the last look has found, or else those that are there now."""
        found, self._found = self._found, None
        return requests(self._folder) if found is None else found

    def delete(self, taken: Collection[str]) -> None:
        """Delete those that a step has taken in which is done."""
        for name in taken:
            (self._folder / name).unlink(missing_ok=True)
        if taken:
            sync(self._folder)  # one that came back would be taken in again
        if self._found is not None:
            self._found = tuple(path for path in self._found if path.name not in taken)


class Replayed(NamedTuple):
    """What a task of the first stage is given back."""

    events: int
    made: int  # how many of them are tuples that bolts made
    files: Sequence[Location]


def write_replayed(
    paths: Sequence[Location],
    *,
    waiting: Iterable[tuple[Any, ...]],
    folder: Location,
    partitions: int,
) -> list[Replayed]:
    """Write the events of requests to files of events that wait."""
    requested = (event for path in paths for event in events(read_request(path)))
    found = list(each_once(requested, waiting))
    numbers = np.array([event[5] for event in found], np.int64)
    # What a bolt made is given out by its own task, or where that is elsewhere by any.
    keys = [None if is_made(event) else event[0] for event in found]
    places = outputs_of(KeyPartitioner(partitions), keys, numbers)
    given: list[list[PendingEvent]] = [[] for _ in range(partitions)]
    for place, event in zip(places.tolist(), found, strict=True):
        given[place].append(PendingEvent(event, 0, None))
    written = [write_waiting(folder, some) for some in given]
    return [
        Replayed(len(some), sum(is_made(one.event) for one in some), [] if file is None else [file])
        for some, file in zip(given, written, strict=True)
    ]


_FOLDERS: Final = ("outputs", "waiting", "unfinished", "states", "inputs", "work")


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a topology is given in a step."""

    entry: StepEntry
    due: Selection | None  # the events that it releases; None without any
    before: Processed  # what became of the step before
    requests: Sequence[Location]  # replay requests that it takes in
    ticks: Mapping[str, int]  # the bolts that are given a tick, and their intervals in ms
    only_retries: bool  # all is released, and the run ends: what failed is tried again, and no more
    has_retries: bool  # whether an event that waits is due

    @classmethod
    def of(
        cls,
        entry: StepEntry,
        due: Selection | None,
        before: Processed,
        requests: Sequence[Location],
        *,
        topology: Topology,
        settings: ProcessSettings,
    ) -> StepWork:
        """Return what a step gives a topology."""
        logged_ms = entry.logged_ms
        retry_ms = due_ms(before.next_due_ms, logged_ms, policy=settings.retry)
        # A tick would make more that may fail: with steps as long as its interval the run would
        # never end. A transaction is tried again whole.
        ends = (
            entry.kind is StepKind.DRAIN
            and due is None
            and not isinstance(topology, TransactionalTopology)
        )
        return cls(
            entry=entry,
            due=due,
            before=before,
            requests=requests,
            only_retries=ends,
            ticks={} if ends else ticks_due(topology.tick_intervals_ms, before.time_ms, logged_ms),
            has_retries=retry_ms is not None and retry_ms <= logged_ms,
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing for bolts to do."""
        return self.due is None and not (self.has_retries or self.requests or self.ticks)

    def nothing(self) -> Processed:
        """Return what became of the events of a step without any."""
        return self.over(
            replace(self.before, step=self.entry.step, taken=0, records={}, dead=(), unfinished=())
        )

    def over(self, processed: Processed) -> Processed:
        """Return what became of the events, with the times that are reached by that."""
        before, logged_ms = self.before, self.entry.logged_ms
        time_ms = logged_ms if before.time_ms is None else before.time_ms
        return replace(
            processed,
            # A tick that was not given is still due.
            time_ms=time_ms if self.only_retries else max(logged_ms, time_ms),
            watermark_ms=watermark_after(
                before.watermark_ms, reached_ms(self.entry), processed.least_waiting_ms
            ),
        )


@dataclass(frozen=True, slots=True)
class StepTry:
    """What a run of a step works with."""

    name: str  # name of the folder that it writes
    batch: FileBatch  # what its tasks share
    givens: Sequence[FileInput]  # the events of each task of the first stage
    tasks: Tasks
    # how many dead letters are among these events; and how many tuples that bolts made
    replayed: tuple[int, int]
    begun_s: float  # when it began, monotonic


class StepRuns:
    """Makes runs of steps."""

    def __init__(
        self,
        workers: Workers,
        checkpoint: Checkpoint,
        *,
        topology: Topology,
        settings: ProcessSettings,
        outputs: Mapping[str, OutputTopic],
        default: OutputTopic,
        spout_tasks: int,
        dead_letters: OutputTopic,
        limit_of: Callable[[str], RecordLimit],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._workers = workers
        self._is_stopping = is_stopping
        self._checkpoint = checkpoint
        self._topology = topology
        self._settings = settings
        self._default = default
        self._dead_letters = dead_letters
        self._limit_of = limit_of
        self._spout_tasks = spout_tasks
        self._plan = plan(topology, spout_tasks)
        self._life = uuid4().hex
        self._counted = CountedRuns()
        folders = {name: str(number) for number, name in enumerate(outputs)}
        self._folders = {folder: name for name, folder in folders.items()}
        self._topics = {
            one.id: (folders[topic.name], topic.partitions)
            for one in topology.outputs
            if one.output is not None
            for topic in [outputs[one.output.topic or default.name]]
        }
        self.tasks = self._plan.tasks

    def run(self, work: StepWork) -> tuple[Processed, str]:
        """Run a step; what became of its events, and the name of the folder that it has written."""
        one = self.begin(work)
        result = StepRun(one.batch, one.givens, work.before.states_by_task(), one.tasks).run()
        self.count(work, result)
        delete_all(one.batch.folder / "work")
        return self.processed(work, one, result), one.name

    def count(self, work: StepWork, result: StepResult) -> None:
        """Have a result count: bolts go on from the runs that it comes from."""
        self._counted.add(work.entry.step, result.runs)

    def begin(self, work: StepWork, *, has_events: bool = True) -> StepTry:
        """Return what a run of a step works with, in a folder of its own."""
        begun_s = time.monotonic()
        entry, before, settings = work.entry, work.before, self._settings
        name = self._checkpoint.new_name(entry.step)
        if has_events:
            self._counted.begin(entry.step)
        folder = self._checkpoint.location(f"topology/{name}")
        records = (f"outputs/{place}" for place in (*self._folders, DEAD_LETTERS))
        for below in (*_FOLDERS, *records):
            new_folder(folder / below, may_be_there=True)
        batch = FileBatch(
            topology=self._topology,
            plan=self._plan,
            rules=replace(settings.rules, limits=self._output_limits()),
            ackers=self._spout_tasks if settings.ackers is None else settings.ackers,
            now_ms=entry.logged_ms,
            seed=(entry.step, entry.logged_ms),
            folder=folder,
            topics=self._topics,
            dead_letters=(DEAD_LETTERS, self._dead_letters.partitions),
            root=self._checkpoint.location(),
            letter_limit=self._limit_of(self._dead_letters.name),
            watermark_ms=before.watermark_ms,
            ticks=work.ticks,
            only_retries=work.only_retries,
            life=self._life,
            run=name,
            counted=self._counted.names,
        )
        givens, replayed = self._givens(work, folder) if has_events else ([], (0, 0))
        tasks = SurvivingTasks(
            self._workers,
            folder / "work",
            max_crashes=settings.max_crashes,
            is_stopping=self._is_stopping,
        )
        return StepTry(name, batch, givens, tasks, replayed, begun_s)

    def _givens(self, work: StepWork, folder: Location) -> tuple[list[FileInput], tuple[int, int]]:
        """Return the events of each task of the first stage, and how many of them are replayed.

        Tuples that bolts made are counted apart.
        """
        waiting, partitions = work.before.waiting, self._spout_tasks
        waiting_now = waiting.values() if work.requests else ()
        replayed = write_replayed(
            work.requests,
            waiting=(one.event for paths in waiting_now for one in read_pending(paths)),
            folder=folder / "waiting",
            partitions=partitions,
        )
        givens = [
            FileInput(work.due, (*waiting.get(place, ()), *replayed[place].files), place)
            for place in range(partitions)
        ]
        made = sum(one.made for one in replayed)
        return givens, (sum(one.events for one in replayed) - made, made)

    def processed(self, work: StepWork, one: StepTry, result: StepResult) -> Processed:
        """Return what became of a step's events."""
        before = work.before
        busy_ms = round(1000 * (time.monotonic() - one.begun_s))
        replayed, made_replayed = one.replayed
        totals = _added(
            before.totals,
            result.counts,
            replayed=replayed,
            made_replayed=made_replayed,
            busy_ms=busy_ms,
        )
        if not totals.are_balanced:
            raise ConservationError(
                f"step {work.entry.step}: an event is unaccounted for: {totals}"
            )
        processed = Processed(
            step=work.entry.step,
            taken=result.counts["taken"],
            totals=totals,
            next_due_ms=result.next_due_ms,
            requests=(*before.requests, *(path.name for path in work.requests)),
            records=self._by_topic(result),
            dead=result.dead,
            unfinished=result.unfinished,
            waiting=result.waiting,
            states=[(component, task, path) for (component, task), path in result.states.items()],
            tasks={component: self.tasks[component] for component, _ in result.states},
            least_waiting_ms=result.least_waiting_ms,
            transaction_id=before.transaction_id,
            committers=before.committers,
        )
        return work.over(processed)

    def with_commit(self, prepared: Processed, committed: StepResult) -> Processed:
        """Return what became of a step's events, with what their commit has added."""
        commit_phase, added = self._topology.commit_phase, self._by_topic(committed)
        states = [one for one in prepared.states if one[0] not in commit_phase]
        states += [(component, task, path) for (component, task), path in committed.states.items()]
        counts = {name: committed.counts[name] for name in ("outputs", "crashes")}
        counts["waiting"] = prepared.totals.pending
        counts["made_waiting"] = prepared.totals.made_pending
        return replace(
            prepared,
            records={
                topic: (*prepared.records.get(topic, ()), *added.get(topic, ()))
                for topic in {**prepared.records, **added}
            },
            unfinished=(*prepared.unfinished, *committed.unfinished),
            states=states,
            tasks={component: self.tasks[component] for component, _, _ in states},
            totals=_added(prepared.totals, counts),
        )

    def _by_topic(self, result: StepResult) -> dict[str, Sequence[Location]]:
        return {
            self._folders[place]: paths
            for place, paths in result.records.items()
            if place in self._folders
        }

    def _output_limits(self) -> dict[str, RecordLimit]:
        return {
            one.id: self._limit_of(one.output.topic or self._default.name)
            for one in self._topology.outputs
            if one.output is not None
        }


def reached_ms(entry: StepEntry) -> int | None:
    """Event time up to which a step has given all out; None before the first event.

    That is the frontier. In silence, when every partition is idle and nothing is held, it goes on
    with the clock from there, up to the last look at the input: a step may be decided long after
    that, or be another attempt at events that wait.
    """
    clock = entry.clock
    if clock.frontier_ms == BEFORE_ALL_TIME_MS:
        return None
    idle_ms = [one.idle_at_ms for one in clock.partitions.values() if one.was_idle]
    if entry.live_runs or not idle_ms or len(idle_ms) < len(clock.partitions):
        return clock.frontier_ms
    silent_ms = clock.seen_ms - max(one or clock.seen_ms for one in idle_ms)
    return clock.frontier_ms + max(0, silent_ms)


def _added(before: ProcessTotals, counts: Mapping[str, int], **more: int) -> ProcessTotals:
    """Return the counts with those of a step added; how many wait now is one of these."""
    pending = {
        "pending": counts["waiting"] - before.pending,
        "made_pending": counts["made_waiting"] - before.made_pending,
    }
    added = {**counts, **more, **pending}
    return ProcessTotals(
        **{name: count + added.get(name, 0) for name, count in asdict(before).items()}
    )
