"""What the tasks of a step share, are given and answer, whoever runs them.

A step gives events to a topology. In a job it runs in Spark's tasks, in a tester in the process of
the test. Both run the same tasks (`step.tasks`, `step.verdicts`) in the same order (`step.run`).
They differ in their `StepBatch` alone: how tasks leave what others read, by what clock they go, and
whose random numbers they draw. What a task leaves is named by a *handle*, read by the batch alone.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

from sequitur.consumer.topology.api.moment import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology.api.topology import Topology
    from sequitur.consumer.topology.api.tuple import Failure, Root
    from sequitur.consumer.topology.engine.emission import OutputRecord, Sent
    from sequitur.consumer.topology.engine.executor import Executor
    from sequitur.consumer.topology.engine.instances import Instances
    from sequitur.consumer.topology.engine.plan import Plan, Stage
    from sequitur.consumer.topology.engine.rules import Rules
    from sequitur.consumer.topology.engine.trace import Trace

_TASK_BITS: Final = 48
_NEW: Final = 1 << 47
"""Roots are numbered through a step: by task, then those that wait, then the new ones."""

Handle: TypeAlias = Any
"""Names what a task has left; a batch makes and reads it."""
Sources: TypeAlias = "Sequence[tuple[Handle, Mapping[str, Any]]]"
"""What tasks have sent, and where in it by component the tuples for a task are."""
Window: TypeAlias = "tuple[int, int | None]"
"""Places of new events: of the first, and of the one behind the last; None for all."""


class Waiting(NamedTuple):
    """An event that waits for another attempt, or for another event.

    Attributes:
        event: Its values, those of `EventValues`.
        attempts: How often it has been tried.
        retry_at_ms: When it is tried again; None of one that is held.
        reason: Why it failed last, as a `FailReason`.
        detail: The traceback.
        path: The components that the failed tuple had come through.
    """

    event: tuple[Any, ...]
    attempts: int
    retry_at_ms: int | None
    reason: str | None = None
    detail: str | None = None
    path: str | None = None


class Verdict(NamedTuple):
    """What becomes of an event that is not done.

    Attributes:
        id: Id of its root.
        attempts: How often it has been tried; an attempt in which it was held does not count.
        retry_at_ms: When it is tried again; None of one that is held or dead.
        is_dead: Whether it is given up.
        reason: Why it failed; None of one that is held.
        detail: The traceback.
        path: The components that the failed tuple had come through.
    """

    id: int
    attempts: int
    retry_at_ms: int | None
    is_dead: bool
    reason: str | None
    detail: str | None
    path: str | None


class GivenOut(NamedTuple):
    """The events that some tasks have given out, one behind the other, as columns.

    Attributes:
        ids: Ids of their roots.
        attempts: Number of the attempt that this is.
        keys: A number for each event's key; -1 without one.
        counts: How many each of the tasks has given out.
    """

    ids: Any
    attempts: Any
    keys: Any
    counts: Sequence[int]


@dataclass(slots=True)
class Answer:
    """What a task did.

    Attributes:
        taken: New events it took in.
        has_more: Whether there are new events behind its window.
        acked: Events that are done.
        failed: Attempts that failed, by reason.
        dead: Events given up.
        waiting: Events that wait.
        next_due_ms: When the next of these is due; None without any.
        least_waiting_ms: Least event time of these; None without any.
        late_acks: Acks that came too late.
        untracked_failures: Failures of tuples that nobody waits for.
        emitted: Records that bolts put out.
        outputs: Records that were written of these.
        finish_failures: What `finish_batch` of bolts raised.
        files: The records, by the name of their place.
        dead_file: The dead letters.
        waiting_file: The events that wait.
        unfinished_file: Ids of roots that are not done.
        states: What bolts keep, by component and task.
        roots_file: The events it gave out, where ackers decide.
        acks_file: What it knows of roots, where ackers decide.
        failures: Why roots failed, where ackers decide.
        shared: Roots of outputs of several, where ackers decide.
        tuples_file: The tuples it sent.
        tuples: Where in it those for a component's task stand.
    """

    taken: int = 0
    has_more: bool = False
    acked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    waiting: int = 0
    next_due_ms: int | None = None
    least_waiting_ms: int | None = None
    late_acks: int = 0
    untracked_failures: int = 0
    emitted: int = 0
    outputs: int = 0
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    files: Mapping[str, Handle] = field(default_factory=dict)
    dead_file: Handle = None
    waiting_file: Handle = None
    unfinished_file: Handle = None
    states: Mapping[tuple[str, int], Handle] = field(default_factory=dict)
    roots_file: Handle = None
    acks_file: Handle = None
    failures: dict[int, Failure] = field(default_factory=dict)
    shared: list[tuple[int, ...]] = field(default_factory=list)
    tuples_file: Handle = None
    tuples: Mapping[tuple[str, int], Any] = field(default_factory=dict)


class Given(ABC):
    """The events that a task of the first stage is given, in their order."""

    __slots__ = ()

    partition: int
    """The task's number."""

    @abstractmethod
    def waiting(self) -> list[Waiting]:
        """Those that wait."""

    @abstractmethod
    def new(self) -> Iterator[tuple[Any, ...]]:
        """The new ones, as the values of `EventValues`."""

    @abstractmethod
    def with_waiting(self, waiting: Iterable[Handle]) -> Given:
        """The same new ones, and others that wait."""

    @property
    def weight(self) -> int:
        """About how many new events there are."""
        return 0

    @property
    def first_id(self) -> int:
        """Id of the root of the first event that waits; those of the others follow it.

        Ids tell all events of a step from each other, wherever these came from, and are the same
        whenever the task is run again.
        """
        return self.partition + 1 << _TASK_BITS

    def first_new_id(self, window: Window) -> int:
        """Id of the root of the first new event in a window; those of the others follow it."""
        return self.first_id + _NEW + window[0]

    def all(self, window: Window) -> Iterator[tuple[int, Waiting | None, tuple[Any, ...]]]:
        """All events in their order, with the ids of their roots: those that wait, then new ones.

        Args:
            window: Which of the new ones.
        """
        for root, waited in enumerate(self.waiting(), self.first_id):
            yield root, waited, waited.event
        new = itertools.islice(self.new(), *window)
        for root, event in enumerate(new, self.first_new_id(window)):
            yield root, None, event


@dataclass(frozen=True, slots=True)
class Trial:
    """What of a task's input is given out, in search of what kills its process.

    Attributes:
        first: Of what is given out, ticks and then tuples, the place of the first.
        last: And of the one behind the last; None for all.
        poison: Places of what is known to kill.
    """

    first: int = 0
    last: int | None = None
    poison: frozenset[int] = frozenset()

    def of(self, given: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """What is given out, by its place."""
        return itertools.islice(enumerate(given), self.first, self.last)

    def behind(self, count: int) -> Trial:
        """The same of what is given out behind so many others."""
        last = None if self.last is None else max(0, self.last - count)
        poison = frozenset(place - count for place in self.poison if place >= count)
        return Trial(max(0, self.first - count), last, poison)

    @property
    def is_whole(self) -> bool:
        """Whether no part is left out but what is known to kill."""
        return self.first == 0 and self.last is None


WHOLE: Final = Trial()
"""All of it."""


class OutputWriter(Protocol):
    """Takes the records of a task."""

    def write(self, output: str, record: OutputRecord, /) -> None:
        """Take a record in."""

    def close(self) -> Mapping[str, Handle]:
        """The records, by the name of their place; all of them are written."""

    @property
    def count(self) -> int:
        """How many records were written, once it is closed."""


class Exchange(Protocol):
    """Takes a task's tuples for tasks of later stages."""

    @property
    def path(self) -> Handle:
        """What it has taken."""

    @property
    def index(self) -> Mapping[tuple[str, int], Any]:
        """Where in it the tuples for a component's task stand."""

    def send(self, component: str, task: int, sent: Sent, /) -> None:
        """Take a tuple in."""

    def close(self) -> None:
        """No more come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch(ABC):
    """What all tasks of a step share.

    Attributes:
        topology: The topology.
        plan: Where its tasks run.
        rules: What the executor keeps to.
        ackers: How many ackers; 0 tracks nothing.
        now_ms: The step's time.
        seed: Of the step's random numbers; the first is the step's own number.
        watermark_ms: Every event up to this event time was done when the step began.
        ticks: The bolts that are given a tick, and their intervals in ms.
    """

    runs_inline: ClassVar[bool] = False
    """Whether calls that might run side by side are run one by one."""

    topology: Topology
    plan: Plan
    rules: Rules
    ackers: int
    now_ms: int
    seed: tuple[int, ...]
    watermark_ms: int | None = None
    ticks: Mapping[str, int] = field(default_factory=dict)

    @property
    def moment(self) -> Moment:
        """When the step runs."""
        return Moment(self.seed[0], self.now_ms, self.watermark_ms, self.ticks)

    def ticks_of(self, stage: Stage) -> tuple[str, ...]:
        """The bolts of a stage that are given a tick; ahead of all else that it is given."""
        return tuple(bolt for bolt in self.ticks if bolt in stage.components)

    @property
    @abstractmethod
    def clock(self) -> Callable[[], float]:
        """Seconds, by which calls and trees time out."""

    @abstractmethod
    def time_ms(self) -> int:
        """Now, by the clock that `now_ms` was read from."""

    @abstractmethod
    def ids(self, stage: int, task: int) -> Callable[[], int]:
        """What a task draws its edges from: 64 random bits a call, never 0."""

    @property
    def instances(self) -> Instances | None:
        """The bolts that are ready from the step before; None if bolts are made for each."""
        return None

    @property
    def trace(self) -> Trace | None:
        """What is told of each step of each tree."""
        return None

    def watched(self, executor: Executor) -> contextlib.AbstractContextManager[None]:
        """What holds while an executor runs."""
        del executor
        return contextlib.nullcontext()

    @abstractmethod
    def outputs(self, number: int) -> OutputWriter:
        """What takes the records of a task.

        Args:
            number: Of the task: makes the order of records that have one event total.
        """

    @abstractmethod
    def exchange(self) -> Exchange:
        """What takes the tuples that a task sends."""

    @abstractmethod
    def tuples_in_order(self, sources: Sources) -> Iterator[tuple[str, Sent]]:
        """The tuples for a task, and for which component each is, in the order of their events."""

    def weight(self, sources: Sources) -> int:
        """About how large they are."""
        del sources
        return 0

    @abstractmethod
    def write_waiting(self, waiting: Sequence[Waiting]) -> Handle:
        """Leave events that wait; `Given` reads them."""

    @abstractmethod
    def write_dead(self, dead: Sequence[Waiting]) -> Handle:
        """Leave dead letters.

        Raises:
            ConservationError: Not all of them are written.
        """

    @abstractmethod
    def write_unfinished(self, roots: Sequence[int]) -> Handle:
        """Leave the ids of roots whose records may not go out."""

    @abstractmethod
    def write_states(
        self, states: Mapping[tuple[str, int], bytes], kept: Mapping[tuple[str, int], Handle]
    ) -> Mapping[tuple[str, int], Handle]:
        """Leave what bolts want kept.

        Args:
            states: It, pickled, by component and task.
            kept: What they have kept in the step before.
        """

    @abstractmethod
    def read_state(self, state: Handle) -> bytes:
        """What a bolt has kept, pickled."""

    @abstractmethod
    def write_roots(self, roots: Sequence[Root]) -> Handle:
        """Leave the tracked events that a task gave out."""

    @abstractmethod
    def given_out(self, roots: Sequence[Handle]) -> GivenOut:
        """The events that some tasks gave out."""

    @abstractmethod
    def tried(self, roots: Handle) -> Mapping[int, int]:
        """The roots that a task gave out, by id, and which attempt this is of each."""

    @abstractmethod
    def write_acks(self, ids: Any, values: Any, flags: Any) -> Handle:
        """Leave what a task knows of roots: columns, for each acker those of its own."""

    @staticmethod
    @abstractmethod
    def read_acks(acks: Handle, acker: int) -> tuple[Any, Any, Any]:
        """What a task knows of an acker's roots: ids, values, flags."""

    @abstractmethod
    def write_verdicts(self, verdicts: Sequence[Verdict]) -> Handle:
        """Leave what becomes of a task's events that are not done."""

    @abstractmethod
    def read_verdicts(self, verdicts: Handle) -> list[Verdict]:
        """What becomes of them."""

    def shown(self, kind: str, left: Handle) -> list[Handle]:
        """What a task has left, now that its answer counts.

        Args:
            kind: `outputs/` and the name of their place, `dead`, `unfinished` or `waiting`.
            left: None for nothing.
        """
        del kind
        return [] if left is None else [left]
