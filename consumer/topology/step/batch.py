"""What the tasks of a step share, whoever runs them.

A step gives events to a topology. In a job it runs in tasks, in a tester in the process of the
test. Both run the same tasks (`step.tasks`, `step.verdicts`) in the same order (`step.run`).
They differ in their `StepBatch` alone: how tasks leave what others read, which clock they read, and
whose random numbers they draw. What a task leaves is named by a *handle*, read by the batch alone.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

from sequitur.consumer.topology.api.bolt import Moment
from sequitur.consumer.topology.engine.plan import STAGE_BITS, TASK_BITS
from sequitur.consumer.topology.settling.outcomes import EventOutcome
from sequitur.consumer.topology.settling.root import first_offset, is_made, turn_of
from sequitur.consumer.topology.transactional.attempt import Phase
from sequitur.consumer.topology.transactional.builder import (
    TransactionalTopology,
    writes_states_only,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology.api.builder import Topology, TreeFailure
    from sequitur.consumer.topology.engine.executor import Executor
    from sequitur.consumer.topology.engine.key_store import KeyChanges, KeyStore
    from sequitur.consumer.topology.engine.keyed import KeyLog
    from sequitur.consumer.topology.engine.plan import Plan, RecordValues, Rules, Sent, Stage
    from sequitur.consumer.topology.engine.runner import Instances
    from sequitur.consumer.topology.engine.task_output import Trace
    from sequitur.consumer.topology.settling.root import Order, Root, TimerPlace
    from sequitur.consumer.topology.transactional.attempt import BatchOutcome, Transaction


_HOLDS_NOTHING: Final = (1 << 63) - 1
_TASK_BITS: Final = 48
_NEW: Final = 1 << 47
"""Roots are numbered through a step: by task, then those that wait, then the new ones."""
_PATH_SEPARATOR: Final = " > "

Window: TypeAlias = "tuple[int, int | None]"
"""Places of new events: of the first, and of the one behind the last; None for all."""


class PendingEvent(NamedTuple):
    """An event that waits for another attempt, or for another event."""

    event: tuple[Any, ...]  # its values, those of `EventValues`
    attempts: int  # how often it has been tried
    retry_at_ms: int | None  # when it is tried again; None for a held event
    reason: str | None = None  # why it failed last, as a `FailReason`
    detail: str | None = None
    path: str | None = None  # the components that the failed tuple had come through


class EventVerdict(NamedTuple):
    id: int
    attempts: int  # how often it has been tried; an attempt in which it was held does not count
    retry_at_ms: int | None  # when it is tried again; None for a held or dead event
    is_dead: bool  # whether it is given up
    reason: str | None  # why it failed; None for a held event
    detail: str | None
    path: str | None  # the components that the failed tuple had come through

    @classmethod
    def of(
        cls,
        root: int,
        outcome: EventOutcome,
        *,
        attempts: int,
        retry_at_ms: int,
        failure: TreeFailure | None,
    ) -> EventVerdict:
        is_dead, retry = outcome == EventOutcome.DEAD, retry_at_ms or None
        if failure is None:
            return cls(root, attempts, retry, is_dead, None, None, None)
        told = (failure.reason.value, failure.detail, _PATH_SEPARATOR.join(failure.path))
        return cls(root, attempts, retry, is_dead, *told)

    def pending_event(self, event: tuple[Any, ...]) -> PendingEvent:
        """Return the event in the form in which it waits or is given up."""
        told = (self.reason, self.detail, self.path)
        return PendingEvent(event, self.attempts, self.retry_at_ms, *told)


class EmittedRoots(NamedTuple):
    """The roots that the spouts of some tasks emitted, task after task, as columns."""

    ids: Any
    attempts: Any
    keys: Any  # a number for each event's key; -1 without one
    turns: Any  # see `holding_turn`
    counts: Sequence[int]  # how many each of the tasks emitted


class TaskInput(ABC):
    """The events of a first-stage task, in their order."""

    __slots__ = ()

    partition: int
    """The task's number."""

    @abstractmethod
    def waiting(self) -> list[PendingEvent]:
        """Return the events that wait."""

    @abstractmethod
    def new(self) -> Iterator[tuple[Any, ...]]:
        """Return the new events, as the values of `EventValues`."""

    @abstractmethod
    def with_waiting(self, waiting: Iterable[Handle]) -> TaskInput:
        """Return the same new events, with other events that wait."""

    @property
    def weight(self) -> int:
        """Roughly how many new events there are."""
        return 0

    @property
    def first_id(self) -> int:
        """Id of the root of the first event that waits. Those of the others follow it.

        Each id is unique among all events of a step. It is the same whenever the task runs again.
        """
        return self.partition + 1 << _TASK_BITS

    def first_new_id(self, window: Window) -> int:
        """Return the id of the first new event's root in a window. The others follow it."""
        return self.first_id + _NEW + window[0]

    def all(self, window: Window) -> Iterator[tuple[int, PendingEvent | None, tuple[Any, ...]]]:
        """Yield all events in order, with their roots' ids: those that wait, then new ones."""
        for root, waited in enumerate(self.waiting(), self.first_id):
            yield root, waited, waited.event
        new = itertools.islice(self.new(), *window)
        for root, event in enumerate(new, self.first_new_id(window)):
            yield root, None, event


def holding_turn(event: tuple[Any, ...]) -> int:
    """Return the turn behind which an event or a timer holds timers, while it waits.

    What tasks made holds none.
    """
    return _HOLDS_NOTHING if is_made(event) else turn_of(event[3], event[4])


def components_of(path: str | None) -> tuple[str, ...]:
    """Return the components of a written path."""
    return tuple(path.split(_PATH_SEPARATOR)) if path else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a task knows of its trees, where ackers decide on them.

    A made tuple is one that the task made by itself, without an event.
    """

    roots_file: Handle = None  # the roots of the events that it emitted
    made_file: Handle = None  # its made tuples
    made_roots_file: Handle = None  # the roots of its made tuples, those in `undone` included
    timers_file: Handle = None  # the timers that it called, as their roots' ids and events
    # ids of the roots of made tuples that count for nothing: their `finish_batch` raised
    undone: frozenset[int] = frozenset()
    acks_file: Handle = None  # what it knows of roots
    failures: Mapping[int, TreeFailure] = field(default_factory=dict)  # why roots failed
    shared: Sequence[tuple[int, ...]] = ()  # the roots of each output of several events
    # in a transaction: the order of the first event that waits, by key
    blocked: Mapping[bytes, Order] = field(default_factory=dict)


@dataclass(slots=True)
class TaskResult:
    """What a task did. A made tuple is one that a task made by itself, without an event."""

    taken: int = 0  # new events it took in
    has_more: bool = False  # whether there are new events behind its window
    acked: int = 0  # events and made tuples that are done
    failed: dict[str, int] = field(default_factory=dict)  # attempts that failed, by reason
    dead: int = 0  # events given up
    waiting: int = 0  # events that wait
    made: int = 0  # new made tuples
    # the order of each task's last made tuple, by the task's key
    last_made: Mapping[bytes, Order] = field(default_factory=dict)
    made_tried: int = 0  # made tuples of earlier steps that waited and were tried again
    made_left: int = 0  # made tuples, new or tried again, that are not done
    made_dead: int = 0  # made tuples that are given up
    made_waiting: int = 0  # made tuples that wait
    next_due_ms: int | None = None  # when the next event or made tuple is due; None without any
    least_waiting_ms: int | None = None  # least event time of events that wait; None without any
    # and their first turn, by `keeper_of`, where bolts are keyed by a field
    waiting_turns: dict[str, int] = field(default_factory=dict)
    late_acks: int = 0
    untracked_failures: int = 0
    emitted: int = 0  # records that bolts emitted
    outputs: int = 0  # records that were written
    # bolts whose `finish_batch` raised, and what
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    # the records, by the name of their place
    files: Mapping[str, Handle] = field(default_factory=dict)
    dead_file: Handle = None
    waiting_file: Handle = None  # the events that wait
    unfinished_file: Handle = None  # ids of roots that are not done
    # the snapshots of bolts, by component and task
    states: Mapping[tuple[str, int], Handle] = field(default_factory=dict)
    # what it has changed of the keys of keyed bolts, by component and task: if all is done that
    # it was given, where ackers decide on it
    keys: Mapping[tuple[str, int], Handle] = field(default_factory=dict)
    key_log: Handle = None  # what undoes that
    # the bolts that are keyed by a field call timers up to the oldest event that waits. By
    # `keeper_of`: its turn, as far as this task knows
    waits: Mapping[str, int] = field(default_factory=dict)
    # and the same of the oldest that was not tried, with its retry
    not_tried: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # timers of these bolts that wait, with the ids of their roots
    waiting_timers: Sequence[tuple[int, TimerPlace]] = ()
    next_timer_ms: int | None = None  # when the next timer of a key is due; None without any
    next_turn: int | None = None  # the turn of that timer, where the bolt is keyed by a field
    # event times up to which it has closed windows before their time, by bolt
    closed_ms: Mapping[str, int] = field(default_factory=dict)
    is_cut: bool = False  # whether something was left to the next step for want of memory
    is_open: bool = False  # whether it was to close a window that stood behind a failed event
    # how many events were late for a window, by bolt: if all is done, where ackers decide on it
    late_for_window: Mapping[str, int] = field(default_factory=dict)
    blocked: Collection[bytes] = ()  # the keys of events that wait
    # the order of each task's last made tuple that waited, by the task's key
    behind: Mapping[bytes, Order] = field(default_factory=dict)
    told: Told = field(default_factory=Told)  # empty if no ackers decide
    tuples_file: Handle = None  # the tuples that it sent to later stages
    # the places of the tuples in this file, by the component and task that they are for
    tuples: Mapping[tuple[str, int], Any] = field(default_factory=dict)
    # whether a `finish_batch` failed several events, one of which has no further attempt: some of
    # them may be innocent
    has_to_blame: bool = False
    # whether nothing of it counts except which events failed
    is_rehearsal: bool = False
    # how the try at a transaction went here; None in other topologies
    batch: BatchOutcome | None = None


Handle: TypeAlias = Any
"""Names what a task has left; a batch makes and reads it."""
Sources: TypeAlias = "Sequence[tuple[Handle, Mapping[str, Any]]]"
"""What tasks have sent, each with the places of the tuples for a task, by component."""


_RECORD_BITS: Final = 26
_MAX_WAVE: Final = (1 << 63 - STAGE_BITS - TASK_BITS - _RECORD_BITS) - 1


def emissions(wave: int, stage: int, task: int, *, is_again: bool = False) -> Iterator[int]:
    """Number a task's records, so that no two records of one place have the same order.

    A task that runs again has other numbers than before.
    """
    assert stage < 1 << STAGE_BITS, "`plan` refuses so many stages"
    assert task < 1 << TASK_BITS, "`plan` refuses so many tasks"
    of_wave = min(wave, _MAX_WAVE) << STAGE_BITS | stage
    first = (of_wave << TASK_BITS | task) << _RECORD_BITS
    return itertools.count(first | (1 << _RECORD_BITS - 1 if is_again else 0))


class OutputWriter(Protocol):
    def write(self, output: str, record: RecordValues, /) -> None:
        """Take a record."""

    def close(self) -> Mapping[str, Handle]:
        """Return the records, by the name of their place. All of them are written."""

    @property
    def count(self) -> int:
        """How many records were written. It is known once this is closed."""


class NoOutputs:
    """Drops a task's records, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, output: str, record: RecordValues, /) -> None:
        del output, record
        self.count += 1

    @staticmethod
    def close() -> Mapping[str, Handle]:
        return {}


class Exchange(Protocol):
    """Takes a task's tuples for tasks of later stages."""

    @property
    def path(self) -> Handle:
        """The handle of the tuples that it has taken."""

    @property
    def index(self) -> Mapping[tuple[str, int], Any]:
        """The places of the tuples for each component's task."""

    def send(self, component: str, task: int, sent: Sent, /) -> None:
        """Take a tuple."""

    def close(self) -> None:
        """End it: no more tuples come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch(ABC):
    """What all tasks of a step share."""

    runs_inline: ClassVar[bool] = False
    """Whether calls that might run side by side are run one by one."""

    topology: Topology
    plan: Plan
    rules: Rules  # what the executor keeps to
    ackers: int  # how many ackers; 0 tracks nothing
    now_ms: int  # the step's time
    seed: tuple[int, ...]  # of the step's random numbers; the first is the step's own number
    # every event up to this event time was done when the step began
    watermark_ms: int | None = None
    # the bolts that get a tick, and their intervals in ms
    ticks: Mapping[str, int] = field(default_factory=dict)
    only_retries: bool = False  # at the end of a run: only what failed is tried again
    # every event up to this event time comes in this step, or came before; None: none is known
    reached_ms: int | None = None
    closes: bool = (
        False  # at the end of a drain: windows are closed, though their time has not come
    )
    # event times up to which earlier drains have closed windows, by bolt
    closed_ms: Mapping[str, int] = field(default_factory=dict)
    room: int = 1  # see `Room`
    transaction: Transaction | None = None
    run: str = ""  # names this run of the step; unique in a life of the job
    counted: frozenset[str] = frozenset()  # the newest runs of earlier steps whose results counted

    @property
    def is_commit(self) -> bool:
        return self.transaction is not None and self.transaction.phase is Phase.COMMIT

    @property
    def can_try_commit(self) -> bool:
        """Whether everything that committers write can be rolled back."""
        topology = self.topology
        return isinstance(topology, TransactionalTopology) and writes_states_only(topology)

    @property
    def writers(self) -> int:
        """How many commits the commit phase has: one for each task and database."""
        if not isinstance(self.topology, TransactionalTopology):
            return 0
        return sum(
            self.plan.tasks[component] * len({state.store for state in states.values()})
            for component, states in self.topology.states.items()
        )

    def offsets(self, before: Iterable[Order]) -> Iterator[int] | None:
        """Number the tuples that a task makes by itself; None in a transaction.

        There they belong to the batch, which is tried again as a whole.
        """
        if self.transaction is not None:
            return None
        return itertools.count(first_offset(self.seed[0], before))

    def is_rehearsal(self, stage: Stage) -> bool:
        """Return whether a stage gets tuples before the commit phase completes its batch."""
        return stage.is_commit and not self.is_commit

    @property
    def moment(self) -> Moment:
        return Moment(
            self.seed[0],
            self.now_ms,
            self.watermark_ms,
            self.ticks,
            self.only_retries,
            self.reached_ms,
            self.closes,
            self.closed_ms,
        )

    def ticks_of(self, stage: Stage) -> tuple[str, ...]:
        """Return the bolts of a stage that get a tick. Ticks come first."""
        return tuple(bolt for bolt in self.ticks if bolt in stage.components)

    @property
    @abstractmethod
    def clock(self) -> Callable[[], float]:
        """A clock in seconds. Calls and trees time out by it."""

    @abstractmethod
    def time_ms(self) -> int:
        """Return the time now, by the clock that `now_ms` was read from."""

    @abstractmethod
    def ids(self, stage: int, task: int) -> Callable[[], int]:
        """Return the source of a task's edges. It draws 64 random bits a call, never 0."""

    @property
    def instances(self) -> Instances | None:
        """The bolts that are ready from the step before; None if each step makes its own."""
        return None

    @property
    def trace(self) -> Trace | None:
        """The trace that gets each step of each tree; None without one."""
        return None

    def watched(self, executor: Executor) -> contextlib.AbstractContextManager[None]:
        """Return the context manager in which an executor runs."""
        del executor
        return contextlib.nullcontext()

    @abstractmethod
    def outputs(self, emissions: Iterator[int]) -> OutputWriter:
        """Return the writer of a task's records."""

    @abstractmethod
    def exchange(self, *, is_kept: bool = False) -> Exchange:
        """Return the exchange for the tuples that a task sends."""

    @abstractmethod
    def tuples_in_order(self, sources: Sources) -> Iterator[tuple[str, Sent]]:
        """Read the tuples for a task in the order of their events, each with its component."""

    def weight(self, sources: Sources) -> int:
        """Roughly how large the tuples are."""
        del sources
        return 0

    @abstractmethod
    def write_waiting(self, waiting: Sequence[PendingEvent]) -> Handle:
        """Leave the events that wait. `TaskInput` reads them."""

    @abstractmethod
    def write_dead(self, dead: Sequence[PendingEvent]) -> Handle:
        """Leave dead letters."""

    @abstractmethod
    def write_unfinished(self, roots: Sequence[int]) -> Handle:
        """Leave the ids of roots whose records may not go out."""

    @abstractmethod
    def read_unfinished(self, unfinished: Sequence[Handle]) -> frozenset[int]:
        """Read what `write_unfinished` left."""

    @abstractmethod
    def write_states(
        self, states: Mapping[tuple[str, int], bytes], kept: Mapping[tuple[str, int], Handle]
    ) -> Mapping[tuple[str, int], Handle]:
        """Leave the snapshots of bolts."""

    @abstractmethod
    def read_state(self, state: Handle) -> bytes:
        """Read a bolt's snapshot, pickled."""

    @abstractmethod
    def key_store(self, place: tuple[str, int], keys: Sequence[Handle]) -> KeyStore:
        """Return what a task of a keyed bolt keeps: what it kept before, and changes since."""

    @abstractmethod
    def write_changes(self, changes: KeyChanges, wave: int = 0) -> Handle:
        """Leave what a wave of a step has changed of a task's keys."""

    @abstractmethod
    def write_key_log(self, log: KeyLog) -> Handle:
        """Leave what undoes a step's changes, until it is known which events are done."""

    @abstractmethod
    def read_key_log(self, log: Handle) -> KeyLog:
        """Read what `write_key_log` left."""

    @abstractmethod
    def write_roots(self, roots: Sequence[Root]) -> Handle:
        """Leave the tracked roots that a task emitted, in the order of their events."""

    @abstractmethod
    def emitted_roots(self, roots: Sequence[Handle]) -> EmittedRoots:
        """Read the roots that some tasks emitted."""

    @abstractmethod
    def attempts_of(self, roots: Handle) -> Mapping[int, int]:
        """Return the attempt of each root that a task emitted, by the root's id."""

    @abstractmethod
    def write_made(self, made: Sequence[tuple[int, tuple[Any, ...]]]) -> Handle:
        """Leave the tuples that a task made by itself, each as its root's id and its event."""

    @abstractmethod
    def read_made(self, made: Handle) -> Sequence[tuple[int, tuple[Any, ...]]]:
        """Read what `write_made` left."""

    @abstractmethod
    def write_acks(self, ids: Any, values: Any, flags: Any) -> Handle:
        """Leave what a task knows of roots, as columns for each acker."""

    @staticmethod
    @abstractmethod
    def read_acks(acks: Handle, acker: int) -> tuple[Any, Any, Any]:
        """Read what a task knows of an acker's roots: ids, values, flags."""

    @abstractmethod
    def write_verdicts(self, verdicts: Sequence[EventVerdict]) -> Handle:
        """Leave the verdicts on a task's events that are not done."""

    @abstractmethod
    def read_verdicts(self, verdicts: Handle) -> list[EventVerdict]:
        """Read what `write_verdicts` left."""

    def publish(self, kind: str, left: Handle) -> list[Handle]:
        """Publish what a task left, because its result counts. Return how readers find it."""
        del kind
        return [] if left is None else [left]
