"""What the tasks of a step share, whoever runs them.

A step gives events to a topology. In a job it runs in Spark's tasks, in a tester in the process of
the test. Both run the same tasks (`step.tasks`, `step.verdicts`) in the same order (`step.run`).
They differ in their `StepBatch` alone: how tasks leave what others read, which clock they read, and
whose random numbers they draw. What a task leaves is named by a *handle*, read by the batch alone.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from sequitur.consumer.topology.api.moment import Moment
from sequitur.consumer.topology.engine.plan import STAGE_BITS, TASK_BITS
from sequitur.consumer.topology.settling.made_tuple import first_offset
from sequitur.consumer.topology.transactional.phase import Phase
from sequitur.consumer.topology.transactional.topology import TransactionalTopology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology.api.topology import Topology
    from sequitur.consumer.topology.engine.emission import OutputRecord, Sent
    from sequitur.consumer.topology.engine.executor import Executor
    from sequitur.consumer.topology.engine.instances import Instances
    from sequitur.consumer.topology.engine.plan import Plan, Stage
    from sequitur.consumer.topology.engine.rules import Rules
    from sequitur.consumer.topology.engine.trace import Trace
    from sequitur.consumer.topology.settling.root import Order, Root
    from sequitur.consumer.topology.step.events import EmittedRoots, EventVerdict, PendingEvent
    from sequitur.consumer.topology.transactional.phase import Transaction

Handle: TypeAlias = Any
"""Names what a task has left; a batch makes and reads it."""
Sources: TypeAlias = "Sequence[tuple[Handle, Mapping[str, Any]]]"
"""What tasks have sent, and where in it by component the tuples for a task are."""


_RECORD_BITS: Final = 26
_MAX_WAVE: Final = (1 << 63 - STAGE_BITS - TASK_BITS - _RECORD_BITS) - 1


def emissions(wave: int, stage: int, task: int) -> Iterator[int]:
    """Number the records of a task, which makes the order of those that have one place total."""
    assert stage < 1 << STAGE_BITS, "`plan` refuses so many stages"
    assert task < 1 << TASK_BITS, "`plan` refuses so many tasks"
    of_wave = min(wave, _MAX_WAVE) << STAGE_BITS | stage
    return itertools.count((of_wave << TASK_BITS | task) << _RECORD_BITS)


class OutputWriter(Protocol):
    """Takes the records of a task."""

    def write(self, output: str, record: OutputRecord, /) -> None:
        """Take a record in."""

    def close(self) -> Mapping[str, Handle]:
        """Return the records, by the name of their place; all of them are written."""

    @property
    def count(self) -> int:
        """How many records were written, once it is closed."""


class NoOutputs:
    """Takes records that count for nothing."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, output: str, record: OutputRecord, /) -> None:
        """See `OutputWriter`."""
        del output, record
        self.count += 1

    @staticmethod
    def close() -> Mapping[str, Handle]:
        """See `OutputWriter`."""
        return {}


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
    # the bolts that are given a tick, and their intervals in ms
    ticks: Mapping[str, int] = field(default_factory=dict)
    transaction: Transaction | None = None
    run: str = ""  # names this run of the step, among all of a life of the job
    counted: frozenset[str] = frozenset()  # the newest runs of earlier steps whose results counted

    @property
    def is_commit(self) -> bool:
        """Whether a transaction is in its commit phase."""
        return self.transaction is not None and self.transaction.phase is Phase.COMMIT

    @property
    def can_try_commit(self) -> bool:
        """Whether all committers keep states of ours: what others write cannot be taken back."""
        topology = self.topology
        return isinstance(topology, TransactionalTopology) and all(
            topology.states.get(one) for one in topology.committers
        )

    @property
    def writers(self) -> int:
        """How many commits there are in the commit phase: of each task one in each database."""
        if not isinstance(self.topology, TransactionalTopology):
            return 0
        return sum(
            self.plan.tasks[component] * len({state.store for state in states.values()})
            for component, states in self.topology.states.items()
        )

    def offsets(self, before: Iterable[Order]) -> Iterator[int] | None:
        """Number the tuples that a task makes by itself; None if these are not tracked.

        In a transaction they belong to the batch, which is tried again as a whole.
        """
        if self.transaction is not None or not self.ackers:
            return None
        return itertools.count(first_offset(self.seed[0], before))

    def is_rehearsal(self, stage: Stage) -> bool:
        """Whether a stage is given tuples although its batch is completed by the commit phase."""
        return stage.is_commit and not self.is_commit

    @property
    def moment(self) -> Moment:
        """When the step runs."""
        return Moment(self.seed[0], self.now_ms, self.watermark_ms, self.ticks)

    def ticks_of(self, stage: Stage) -> tuple[str, ...]:
        """Return the bolts of a stage that get a tick; ticks come first."""
        return tuple(bolt for bolt in self.ticks if bolt in stage.components)

    @property
    @abstractmethod
    def clock(self) -> Callable[[], float]:
        """Seconds, by which calls and trees time out."""

    @abstractmethod
    def time_ms(self) -> int:
        """Return the time now, by the clock that `now_ms` was read from."""

    @abstractmethod
    def ids(self, stage: int, task: int) -> Callable[[], int]:
        """Return the source of a task's edges: 64 random bits a call, never 0."""

    @property
    def instances(self) -> Instances | None:
        """The bolts that are ready from the step before; None if bolts are made for each."""
        return None

    @property
    def trace(self) -> Trace | None:
        """What gets each step of each tree; None without a trace."""
        return None

    def watched(self, executor: Executor) -> contextlib.AbstractContextManager[None]:
        """Return the context in which an executor runs."""
        del executor
        return contextlib.nullcontext()

    @abstractmethod
    def outputs(self, emissions: Iterator[int]) -> OutputWriter:
        """Return what takes the records of a task."""

    @abstractmethod
    def exchange(self, *, is_kept: bool = False) -> Exchange:
        """Return what takes the tuples that a task sends."""

    @abstractmethod
    def tuples_in_order(self, sources: Sources) -> Iterator[tuple[str, Sent]]:
        """Read the tuples for a task in the order of their events, each with its component."""

    def weight(self, sources: Sources) -> int:
        """About how large they are."""
        del sources
        return 0

    @abstractmethod
    def write_waiting(self, waiting: Sequence[PendingEvent]) -> Handle:
        """Leave events that wait; `TaskInput` reads them."""

    @abstractmethod
    def write_dead(self, dead: Sequence[PendingEvent]) -> Handle:
        """Leave dead letters."""

    @abstractmethod
    def write_unfinished(self, roots: Sequence[int]) -> Handle:
        """Leave the ids of roots whose records may not go out."""

    @abstractmethod
    def read_unfinished(self, unfinished: Sequence[Handle]) -> frozenset[int]:
        """Read what `write_unfinished` has left."""

    @abstractmethod
    def write_states(
        self, states: Mapping[tuple[str, int], bytes], kept: Mapping[tuple[str, int], Handle]
    ) -> Mapping[tuple[str, int], Handle]:
        """Leave what bolts want kept."""

    @abstractmethod
    def read_state(self, state: Handle) -> bytes:
        """Read what a bolt has kept, pickled."""

    @abstractmethod
    def write_roots(self, roots: Sequence[Root]) -> Handle:
        """Leave the tracked roots that a task emitted, in the order of their events."""

    @abstractmethod
    def emitted_roots(self, roots: Sequence[Handle]) -> EmittedRoots:
        """Read the roots that some tasks emitted."""

    @abstractmethod
    def attempts_of(self, roots: Handle) -> Mapping[int, int]:
        """Read the roots that a task emitted: by id, which attempt this is."""

    @abstractmethod
    def write_made(self, made: Sequence[tuple[int, tuple[Any, ...]]]) -> Handle:
        """Leave the tuples that a task has made by itself: id of the root, and event."""

    @abstractmethod
    def read_made(self, made: Handle) -> Sequence[tuple[int, tuple[Any, ...]]]:
        """Read what `write_made` has left."""

    @abstractmethod
    def write_acks(self, ids: Any, values: Any, flags: Any) -> Handle:
        """Leave what a task knows of roots: columns, for each acker those of its own."""

    @staticmethod
    @abstractmethod
    def read_acks(acks: Handle, acker: int) -> tuple[Any, Any, Any]:
        """Read what a task knows of an acker's roots: ids, values, flags."""

    @abstractmethod
    def write_verdicts(self, verdicts: Sequence[EventVerdict]) -> Handle:
        """Leave what becomes of a task's events that are not done."""

    @abstractmethod
    def read_verdicts(self, verdicts: Handle) -> list[EventVerdict]:
        """Read what becomes of them."""

    def publish(self, kind: str, left: Handle) -> list[Handle]:
        """Publish what a task has left, now that its result counts; what readers find it by."""
        del kind
        return [] if left is None else [left]
