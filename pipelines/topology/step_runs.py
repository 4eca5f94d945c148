"""Runs of a step of a topology: what it is given, in which folder, and what became of it."""

from __future__ import annotations

import functools
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
from msgspec import structs

from sequitur.base.time_format import BEFORE_ALL_TIME_MS
from sequitur.consumer.reorder.step_log import StepKind
from sequitur.consumer.topology.api.bolt import ticks_due, watermark_after
from sequitur.consumer.topology.engine.plan import plan
from sequitur.consumer.topology.settling.outcomes import due_ms
from sequitur.consumer.topology.settling.root import is_made, is_own
from sequitur.consumer.topology.step.batch import PendingEvent
from sequitur.consumer.topology.step.room import Room
from sequitur.consumer.topology.step.run import CountedRuns, StepRun, latest
from sequitur.consumer.topology.transactional.builder import TransactionalTopology
from sequitur.errors import ConservationError
from sequitur.kafka.partition import KeyPartitioner
from sequitur.pipelines.rows.columns import outputs_of
from sequitur.pipelines.store.storage import (
    delete_all,
    new_folder,
)
from sequitur.pipelines.topology.batch import DEAD_LETTERS, FileBatch, FileInput
from sequitur.pipelines.topology.files import events, read_pending, write_waiting
from sequitur.pipelines.topology.kept_keys import (
    KEYS_FOLDER,
    KeyMerges,
    counted,
    divided,
    with_changes,
)
from sequitur.pipelines.topology.processed import Processed, ProcessTotals
from sequitur.pipelines.topology.replays import each_once, read_request
from sequitur.pipelines.topology.surviving_tasks import SurvivingTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sequitur.consumer.reorder.clock import EventClock
    from sequitur.consumer.reorder.step_log import StepEntry
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.consumer.topology.step.run import StepResult, Tasks
    from sequitur.kafka.record_format import RecordLimit
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.sink.sink import OutputTopic
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from sequitur.pipelines.store.storage import Location
    from sequitur.pipelines.workers import Workers


class Replayed(NamedTuple):
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
    # The task of a bolt gives out what the bolt made; any task does if that one is elsewhere.
    # A timer is of its key's task.
    keys = [None if is_made(event) else event[0] for event in found]
    places = outputs_of(KeyPartitioner(partitions), keys, numbers)
    given: list[list[PendingEvent]] = [[] for _ in range(partitions)]
    for place, event in zip(places.tolist(), found, strict=True):
        given[place].append(PendingEvent(event, 0, None))
    written = [write_waiting(folder, some) for some in given]
    return [
        Replayed(len(some), sum(is_own(one.event) for one in some), [] if file is None else [file])
        for some, file in zip(given, written, strict=True)
    ]


_FOLDERS: Final = ("outputs", "waiting", "unfinished", "states", "inputs", "work")


@dataclass(frozen=True, slots=True)
class StepWork:
    entry: StepEntry
    due: Selection | None  # the events that it releases; None without any
    before: Processed  # what became of the step before
    requests: Sequence[Location]  # replay requests that it takes in
    ticks: Mapping[str, int]  # the bolts that are given a tick, and their intervals in ms
    only_retries: bool  # all is released, and the run ends: only failed events are tried again
    has_retries: bool  # whether an event that waits is due
    has_timers: bool = False  # whether a timer of a key is due
    closes: bool = False  # whether all windows are closed, though their time has not come

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
        logged_ms = entry.logged_ms
        retry_ms = due_ms(before.next_due_ms, logged_ms, policy=settings.retry)
        # A tick would make more that may fail: with steps as long as its interval the run would
        # never end. A transaction is tried again whole.
        ends = (
            entry.kind in {StepKind.DRAIN, StepKind.CLOSE}
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
            has_timers=before.has_timers(reached_ms(entry)),
            closes=entry.kind is StepKind.CLOSE,
        )

    @property
    def is_empty(self) -> bool:
        """Whether bolts have nothing to do."""
        has_more = self.has_retries or self.requests or self.ticks or self.has_timers
        return self.due is None and not has_more and not self.closes

    def nothing(self) -> Processed:
        return self.over(
            structs.replace(
                self.before, step=self.entry.step, taken=0, records={}, dead=(), unfinished=()
            )
        )

    def over(self, processed: Processed) -> Processed:
        """Return what became of the events, with the times that this reaches."""
        before, logged_ms = self.before, self.entry.logged_ms
        time_ms = logged_ms if before.time_ms is None else before.time_ms
        return structs.replace(
            processed,
            # A tick that was not given is still due.
            time_ms=time_ms if self.only_retries else max(logged_ms, time_ms),
            watermark_ms=watermark_after(
                before.watermark_ms, reached_ms(self.entry), processed.least_waiting_ms
            ),
        )


@dataclass(frozen=True, slots=True)
class StepTry:
    name: str  # name of the folder that it writes
    batch: FileBatch  # what its tasks share
    givens: Sequence[FileInput]  # the events of each task of the first stage
    tasks: Tasks
    # how many dead letters are among these events; and how many tuples that bolts made
    replayed: tuple[int, int]
    begun_s: float  # when it began, monotonic


class StepRuns:
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
        self._room = Room()
        self._merges = KeyMerges(checkpoint)
        folders = {name: str(number) for number, name in enumerate(outputs)}
        self._folders = {folder: name for name, folder in folders.items()}
        self._topics = {
            one.id: (folders[topic.name], topic.partitions)
            for one in topology.outputs
            if one.output is not None
            for topic in [outputs[one.output.topic or default.name]]
        }
        self.tasks = self._plan.tasks
        # the same by the names under which keyed bolts keep their keys
        self.tasks_of_keys = {
            name: self.tasks[component] for name, component in topology.key_stores.items()
        }

    def run(self, work: StepWork) -> tuple[Processed, str]:
        """Run a step; return what became of its events, and the name of its folder."""
        one = self.begin(work)
        work = self.with_keys(work, one)
        states, keys = work.before.states_by_task(), work.before.keys_by_task()
        result = StepRun(one.batch, one.givens, states, one.tasks, keys).run()
        self.count(work, result)
        delete_all(one.batch.folder / "work")
        return self.processed(work, one, result), one.name

    def with_keys(self, work: StepWork, one: StepTry) -> StepWork:
        """Return the work with the keys of the tasks that bolts have now."""
        before = work.before
        assert one.batch.key_folder is not None
        kept = divided(before.keys, before.tasks, self.tasks_of_keys, one.batch.key_folder)
        return replace(work, before=structs.replace(before, keys=tuple(kept)))

    def keep(self, processed: Processed) -> set[str]:
        """Begin merges of keys, once a document names them; return the folders with keys."""
        self._merges.begin(processed.step, processed.keys)
        return processed.key_folders() | self._merges.folders

    def close(self) -> None:
        self._merges.close()

    def count(self, work: StepWork, result: StepResult) -> None:
        """Let a result count: bolts go on from the runs that it comes from."""
        self._counted.add(work.entry.step, result.runs)
        self._room.take_in(result)

    def begin(self, work: StepWork, *, has_events: bool = True) -> StepTry:
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
            reached_ms=reached_ms(entry) if self._topology.is_keyed else None,
            closes=work.closes,
            closed_ms=before.closed_ms,
            room=self._room.times,
            key_folder=self._checkpoint.location(f"{KEYS_FOLDER}/{name}"),
            key_memory_bytes=self._key_memory_bytes,
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

    @functools.cached_property
    def _key_memory_bytes(self) -> int:
        """What a process may keep of keyed bolts in memory."""
        if not self._topology.is_keyed:
            return 0
        return self._settings.state_memory // self._workers.processes_a_host

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
        blocked = counted(result.blocked, self._topology)
        by_field = self._topology.stores_by_field
        kept = self._merges.take_in(before.keys)
        keys = with_changes(kept, result.keys, blocked, by_field, result.tied)
        processed = Processed(
            step=work.entry.step,
            taken=result.counts["taken"],
            totals=totals,
            next_due_ms=result.next_due_ms,
            requests=(*before.requests, *(path.name for path in work.requests)),
            records=self._by_topic(result),
            dead=tuple(result.dead),
            unfinished=tuple(result.unfinished),
            waiting={place: tuple(paths) for place, paths in result.waiting.items()},
            states=tuple((*where, path) for where, path in result.states.items()),
            tasks={component: self.tasks[component] for component, _ in result.states}
            | {one.component: self.tasks_of_keys[one.component] for one in keys},
            keys=tuple(keys),
            next_timer_ms=result.next_timer_ms,
            closed_ms=latest(before.closed_ms, result.closed_ms),
            late_for_window=dict(Counter(before.late_for_window) + result.late_for_window),
            least_waiting_ms=result.least_waiting_ms,
            transaction_id=before.transaction_id,
            committers=before.committers,
        )
        return work.over(processed)

    def with_commit(self, prepared: Processed, committed: StepResult) -> Processed:
        """Return what became of a step's events, with what their commit has added."""
        commit_phase, added = self._topology.commit_phase, self._by_topic(committed)
        states = [one for one in prepared.states if one[0] not in commit_phase]
        states += [(*where, path) for where, path in committed.states.items()]
        counts = {name: committed.counts[name] for name in ("outputs", "crashes")}
        counts["waiting"] = prepared.totals.pending
        counts["made_waiting"] = prepared.totals.made_pending
        return structs.replace(
            prepared,
            records={
                topic: (*prepared.records.get(topic, ()), *added.get(topic, ()))
                for topic in {**prepared.records, **added}
            },
            unfinished=(*prepared.unfinished, *committed.unfinished),
            states=tuple(states),
            # Another life may have prepared it, with other numbers of tasks.
            tasks={component: self.tasks[component] for component, _, _ in states}
            | {one.component: prepared.tasks[one.component] for one in prepared.keys},
            totals=_added(prepared.totals, counts),
        )

    def _by_topic(self, result: StepResult) -> dict[str, tuple[Location, ...]]:
        return {
            self._folders[place]: tuple(paths)
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
    return reached_by(entry.clock, has_held=bool(entry.live_runs))


def reached_by(clock: EventClock, *, has_held: bool) -> int | None:
    """Return the event time that clocks reach; `has_held` says whether rows are held."""
    if clock.frontier_ms == BEFORE_ALL_TIME_MS:
        return None
    idle_ms = [one.idle_at_ms for one in clock.partitions.values() if one.was_idle]
    if has_held or not idle_ms or len(idle_ms) < len(clock.partitions):
        return clock.frontier_ms
    silent_ms = clock.seen_ms - max(one or clock.seen_ms for one in idle_ms)
    return clock.frontier_ms + max(0, silent_ms)


def _added(before: ProcessTotals, counts: Mapping[str, int], **more: int) -> ProcessTotals:
    """Return the counts with those of a step added; one of these is how many wait now."""
    pending = {
        "pending": counts["waiting"] - before.pending,
        "made_pending": counts["made_waiting"] - before.made_pending,
    }
    added = {**counts, **more, **pending}
    return ProcessTotals(
        **{name: count + added.get(name, 0) for name, count in structs.asdict(before).items()}
    )
