"""How a job's tasks are given a step, and leave what others read: in files."""

from __future__ import annotations

import itertools
import pickle
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from sequitur.base.copy_headers import (
    DEAD_ATTEMPTS_HEADER,
    DEAD_COMPONENT_HEADER,
    DEAD_DETAIL_HEADER,
    DEAD_EVENT_TIME_HEADER,
    DEAD_PATH_HEADER,
    DEAD_REASON_HEADER,
    DEAD_STREAM_HEADER,
    DEAD_TIME_HEADER,
    DEAD_TOPOLOGY_HEADER,
    SOURCE_OFFSET_HEADER,
    SOURCE_PARTITION_HEADER,
    SOURCE_TOPIC_HEADER,
)
from sequitur.consumer.reorder.reasons import OVERSIZED_HEADER
from sequitur.consumer.topology.engine.key_groups import shown_key
from sequitur.consumer.topology.engine.plan import OutputRecord, random_ids
from sequitur.consumer.topology.engine.runner import Instances
from sequitur.consumer.topology.settling.root import (
    Root,
    component_of,
    is_made,
    is_timer,
    readable,
    timer_of,
)
from sequitur.consumer.topology.settling.timer_holds import line_of
from sequitur.consumer.topology.step.batch import (
    EmittedRoots,
    StepBatch,
    TaskInput,
    holding_turn,
)
from sequitur.errors import ConservationError
from sequitur.kafka.record_format import RecordLimit
from sequitur.pipelines.rows.left_out import Roots
from sequitur.pipelines.rows.oversized import MOST_KEY_BYTES, write_oversized
from sequitur.pipelines.store.part_files import PartFile
from sequitur.pipelines.store.storage import (
    new_folder,
    open_file,
    sync,
    write_aside,
    write_new,
    written,
)
from sequitur.pipelines.topology.files import (
    EVENT_COLUMNS,
    ExchangeFile,
    events,
    read_acks,
    read_pending,
    tuples_in_order,
    write_acks,
    write_waiting,
)
from sequitur.pipelines.topology.kept_keys import INLINE_BYTES, KeptKeys, KeyFile
from sequitur.pipelines.topology.key_files import KeyFiles, write_changes
from sequitur.pipelines.topology.output_files import (
    OUTPUT_SCHEMA,
    TIMED_SCHEMA,
    OutputFiles,
)
from sequitur.pipelines.topology.watchdog import ending_overrun_calls

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from sequitur.consumer.topology.engine.executor import Executor
    from sequitur.consumer.topology.engine.key_store import KeyChanges
    from sequitur.consumer.topology.engine.keyed import KeyLog
    from sequitur.consumer.topology.engine.plan import Sent
    from sequitur.consumer.topology.step.batch import EventVerdict, PendingEvent, Sources
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.store.storage import Location

    _Headers: TypeAlias = "Sequence[tuple[str, bytes | None]]"


_SHORT_DETAIL: Final = 1 << 10


def dead_letter(one: PendingEvent, batch: FileBatch) -> OutputRecord:
    """Return a given-up event as its topic takes it: with less of its traceback, or from a file."""
    if is_made(one.event):
        return _made(one, batch)
    if is_timer(one.event):
        return _timer(one, batch)
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
    """Return a tuple that a bolt made, for its topic; a replay takes it back from its file."""
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


def _timer(one: PendingEvent, batch: FileBatch) -> OutputRecord:
    """Return a timer, for the topic; a replay takes it back from its file."""
    place, at_ms = timer_of(one.event)
    said: bytes | None = one.event[1]
    one = one._replace(event=place.event(at_ms, is_replayed=True))
    own = [(DEAD_COMPONENT_HEADER, place.component.encode()), _in_file(one, batch)]
    short = one.detail and one.detail[-_SHORT_DETAIL:]
    is_by_field = place.component in batch.topology.stores_by_field
    shown = shown_key(place.key) if is_by_field else place.key
    for key, value, detail in (
        (shown, said, one.detail),
        (shown, said, short),
        (None, None, short),
    ):
        added = [*_added(one, batch, detail), *own]
        if _fits(batch, key, value, added):
            return OutputRecord(Root(1, one.event), key, value, added)
    return OutputRecord(Root(1, one.event), None, None, [*_added(one, batch, None), *own])


def _in_file(one: PendingEvent, batch: FileBatch) -> tuple[str, bytes]:
    """Write an event whole into a file; return the header that names the file."""
    names = (*EVENT_COLUMNS, "reason", "detail")
    row = dict(zip(names, (*one.event, one.reason, one.detail), strict=True))
    row["headers"] = [{"key": name, "value": said} for name, said in one.event[2]]
    return OVERSIZED_HEADER, write_oversized(batch.root, row).encode()


def _fits(batch: FileBatch, key: bytes | None, value: bytes | None, headers: _Headers) -> bool:
    parts = [part for name, said in headers for part in (name.encode(), said)]
    return batch.letter_limit.takes((key, value, *parts), len(headers))


def _added(one: PendingEvent, batch: FileBatch, detail: str | None) -> _Headers:
    """Return the headers that a dead letter has behind the event's own."""
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


DEAD_LETTERS: Final = "dead-letters"
"""Their folder in `outputs`; those of topics are numbers."""
_ROOTS_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("id", pa.uint64()),
        ("attempt", pa.int32()),
        ("turn", pa.int64()),
    ]
)
_UNFINISHED_SCHEMA: Final = pa.schema([("root", pa.uint64())])
"""Ids and not places: a place may be there twice in a step, as a dead letter that is replayed and
as an event that is read again."""

_kept: Final[dict[Location, tuple[str, Instances]]] = {}
"""By checkpoint, the life of a job there, and its bolts. A task's process runs one at a time, and
Spark gives a task to whichever is free: what became of a bolt's state elsewhere sees `Instances`.
"""


_stores: Final[dict[Location, tuple[str, dict[tuple[str, int], KeyFiles]]]] = {}
"""By checkpoint, the life of a job there, and the keys of its tasks that this process has read."""
WAVES: Final = 1 << 20
"""A step's changes are numbered by step and wave: it has fewer waves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch(StepBatch):
    # where the step's files are written: `outputs`, `waiting`, `states` and `work`
    folder: Location
    topics: Mapping[str, tuple[str, int]]  # folder in `outputs` and number of partitions, by output
    dead_letters: tuple[str, int]
    root: Location  # the checkpoint, where a dead letter too large for its topic is left whole
    # what the dead-letter topic takes of one record
    letter_limit: RecordLimit = field(default_factory=RecordLimit)
    life: str = ""  # name of this run of the job: bolts of another run are not used again
    key_folder: Location | None = None  # where files of keys are written; None without any
    key_memory_bytes: int = 64 << 20  # what a process may keep of keys in memory

    @property
    def clock(self) -> Callable[[], float]:
        return time.monotonic

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ids(self, stage: int, task: int) -> Callable[[], int]:
        return random_ids((*self.seed, stage, task))

    @property
    def instances(self) -> Instances | None:
        """The bolts that this process keeps of the job; those of earlier lives are cleaned up."""
        if not self.life:
            return None
        life, instances = _kept.get(self.root, ("", None))
        if instances is None or life != self.life:
            if instances is not None:
                instances.close()
            instances = Instances()
            _kept[self.root] = self.life, instances
        return instances

    def watched(self, executor: Executor) -> contextlib.AbstractContextManager[None]:
        return ending_overrun_calls(executor, self.rules.call_timeout_s)

    def outputs(self, emissions: Iterator[int]) -> OutputFiles:
        schema = TIMED_SCHEMA if self.topology.is_keyed else OUTPUT_SCHEMA
        return OutputFiles(self.folder / "outputs", self.topics, emissions, schema)

    def exchange(self, *, is_kept: bool = False) -> ExchangeFile:
        return ExchangeFile(self.folder / ("inputs" if is_kept else "work"))

    def tuples_in_order(self, sources: Sources) -> Iterator[tuple[str, Sent]]:
        return tuples_in_order(sources)

    def weight(self, sources: Sources) -> int:
        return sum(
            length for _, blobs in sources for places in blobs.values() for _, length in places
        )

    def write_waiting(self, waiting: Sequence[PendingEvent]) -> Location | None:
        return write_waiting(self.folder / "waiting", waiting)

    def write_dead(self, dead: Sequence[PendingEvent]) -> Location | None:
        letters = OutputFiles(
            self.folder / "outputs", {DEAD_LETTERS: self.dead_letters}, itertools.count()
        )
        for one in dead:
            letters.write(DEAD_LETTERS, dead_letter(one, self))
        file = letters.close()[self.dead_letters[0]]
        if letters.count != len(dead):
            raise ConservationError(f"{len(dead)} dead letters, and {letters.count} are written")
        return file

    def write_unfinished(self, roots: Sequence[int]) -> Location | None:
        with PartFile(self.folder / "unfinished", _UNFINISHED_SCHEMA) as file:
            file.write(pa.table({"root": roots}, schema=_UNFINISHED_SCHEMA))
        return file.location

    def read_unfinished(self, unfinished: Sequence[Location]) -> frozenset[int]:
        return Roots(tuple(unfinished)).ids

    def write_states(
        self, states: Mapping[tuple[str, int], bytes], kept: Mapping[tuple[str, int], Location]
    ) -> dict[tuple[str, int], Location]:
        """Write states; unchanged ones are not written again, if files have links."""
        paths = {}
        for place, state in states.items():
            path = self.folder / "states" / f"{uuid4().hex}.pickle"
            if not (place in kept and _is_linked(kept[place], path, state)):
                write_new(path, state)
            sync(path)
            paths[place] = path
        return paths

    def read_state(self, state: Location) -> bytes:
        return state.read_bytes()

    def key_store(self, place: tuple[str, int], keys: Sequence[KeptKeys | KeyFile]) -> KeyFiles:
        """Return a task's keys. This process goes on with what it has of them in memory."""
        base: KeyFile | None = None
        changes: list[KeyFile] = []
        for one in keys:
            if isinstance(one, KeptKeys):
                base, changes = one.base, list(one.changes)
            else:
                changes.append(one)
        sources = None if base is None else base.source, [one.source for one in changes]
        life, stores = _stores.get(self.root, ("", {}))
        if life != self.life or not life:
            life, stores = _stores[self.root] = self.life, {}
        store = stores.get(place)
        if store is None or (store.run != self.run and store.run not in self.counted):
            # What it has in memory may be of a try at a step whose result did not count.
            store = stores[place] = KeyFiles(*sources, memory_bytes=0)
        else:
            store.follow(*sources)
        store.run = self.run
        for own in stores.values():
            own.memory_bytes = self.key_memory_bytes // len(stores)
        return store

    def write_changes(self, changes: KeyChanges, wave: int = 0) -> KeyFile:
        keys, timers = changes.keys, changes.timers
        content = write_changes(changes.rows, self.seed[0] * WAVES + wave)
        if len(content) <= INLINE_BYTES:
            return KeyFile(inline=content, more_keys=keys, more_timers=timers)
        assert self.key_folder is not None
        new_folder(self.key_folder, may_be_there=True)
        path = self.key_folder / f"changes-{uuid4().hex}"
        write_new(path, content)
        sync(path)
        return KeyFile(path, len(content), more_keys=keys, more_timers=timers)

    def write_key_log(self, log: KeyLog) -> Location:
        return self._write_pickled("keys", log)

    def read_key_log(self, log: Location) -> KeyLog:
        found: KeyLog = pickle.loads(log.read_bytes())  # noqa: S301 - our own
        return found

    def write_roots(self, roots: Sequence[Root]) -> Location:
        by_field = self.topology.stores_by_field
        found = [
            (line_of(root.event, by_field), root.id, root.attempt, holding_turn(root.event))
            for root in roots
            if root.is_tracked
        ]
        columns = zip(*found, strict=True) if found else [()] * len(_ROOTS_SCHEMA)
        path = self.folder / "work" / f"roots-{uuid4().hex}.arrow"
        with written(path) as file, pa.ipc.new_file(file, _ROOTS_SCHEMA) as writer:
            rows = dict(zip(_ROOTS_SCHEMA.names, columns, strict=True))
            writer.write_table(pa.table(rows, schema=_ROOTS_SCHEMA))
        return path

    def emitted_roots(self, roots: Sequence[Location]) -> EmittedRoots:
        tables = [_roots(path) for path in roots]
        rows = pa.concat_tables(tables)
        keys = rows["key"].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
        ids, attempts, turns = (rows[name].to_numpy() for name in ("id", "attempt", "turn"))
        return EmittedRoots(ids, attempts, keys, turns, [len(table) for table in tables])

    def attempts_of(self, roots: Location) -> dict[int, int]:
        rows = _roots(roots).to_pydict()
        return dict(zip(rows["id"], rows["attempt"], strict=True))

    def write_made(self, made: Sequence[tuple[int, tuple[Any, ...]]]) -> Location:
        return self._write_pickled("made", list(made))

    def read_made(self, made: Location) -> Sequence[tuple[int, tuple[Any, ...]]]:
        found: list[tuple[int, tuple[Any, ...]]] = pickle.loads(made.read_bytes())  # noqa: S301 - our own
        return found

    def write_acks(self, ids: Any, values: Any, flags: Any) -> Location:
        return write_acks(self.folder / "work", ids, values, flags, self.ackers)

    @staticmethod
    def read_acks(acks: Location, acker: int) -> tuple[Any, Any, Any]:
        return read_acks(acks, acker)

    def write_verdicts(self, verdicts: Sequence[EventVerdict]) -> Location:
        return self._write_pickled("verdicts", list(verdicts))

    def _write_pickled(self, name: str, found: Any) -> Location:
        path = self.folder / "work" / f"{name}-{uuid4().hex}.pickle"
        write_aside(path, pickle.dumps(found))
        return path

    def read_verdicts(self, verdicts: Location) -> list[EventVerdict]:
        found: list[EventVerdict] = pickle.loads(verdicts.read_bytes())  # noqa: S301 - our own
        return found


def _roots(path: Location) -> pa.Table:
    with open_file(path) as file:
        return pa.ipc.open_file(file).read_all()


def _is_linked(kept: Location, path: Location, state: bytes) -> bool:
    """Hard-link the file if it has this content; return whether that was done."""
    if not isinstance(kept, Path) or not isinstance(path, Path):
        return False  # an object store has no links
    if kept.stat().st_size != len(state) or kept.read_bytes() != state:
        return False
    try:
        path.hardlink_to(kept)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class FileInput(TaskInput):
    """The events of a task of the first stage, in order."""

    selection: Selection | None  # the new events; None without any
    pending: tuple[Location, ...]  # files of those that wait
    partition: int  # the task's number

    @property
    def weight(self) -> int:
        """About how many new events there are."""
        return 0 if self.selection is None else self.selection.rows_at_most(self.partition)

    def waiting(self) -> list[PendingEvent]:
        return read_pending(self.pending)

    def new(self) -> Iterator[tuple[Any, ...]]:
        """Return the new events as the values of `EventValues`."""
        if self.selection is None:
            return iter(())
        tables = self.selection.tables(self.partition, EVENT_COLUMNS)
        return itertools.chain.from_iterable(map(events, tables))

    def with_waiting(self, waiting: Iterable[Location]) -> FileInput:
        """Return the same new events, with others that wait."""
        return replace(self, pending=tuple(waiting))
