"""How a job's tasks are given a step, and leave what others read: in files."""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from sequitur.consumer import ConservationError
from sequitur.consumer.topology import random_ids
from sequitur.consumer.topology.step.batch import StepBatch
from sequitur.consumer.topology.step.events import TaskInput
from sequitur.pipelines.topology.acker_files import (
    attempts_of,
    emitted_roots,
    read_acks,
    write_acks,
    write_roots,
    write_unfinished,
)
from sequitur.pipelines.topology.bolt_instances import instances_of
from sequitur.pipelines.topology.dead_letter import dead_letter
from sequitur.pipelines.topology.event_columns import EVENT_COLUMNS, events
from sequitur.pipelines.topology.exchange_files import ExchangeFile, tuples_in_order
from sequitur.pipelines.topology.output_files import OutputFiles
from sequitur.pipelines.topology.pending_files import read_pending, write_waiting
from sequitur.pipelines.topology.states import write_states
from sequitur.pipelines.topology.verdicts import read_verdicts, write_verdicts
from sequitur.pipelines.topology.watchdog import ending_overrun_calls
from sequitur.producer.kafka.record_limit import RecordLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology import Executor, Instances, Root, Sent
    from sequitur.consumer.topology.step.batch import Sources
    from sequitur.consumer.topology.step.events import EmittedRoots, EventVerdict, PendingEvent
    from sequitur.pipelines.rows.selection import Selection
    from sequitur.pipelines.store.files import Location


DEAD_LETTERS: Final = "dead-letters"
"""Their folder in `outputs`; those of topics are numbers."""
_COLLECTED_EACH: Final = 200_000
"""New objects between two looks for garbage: tuples make none, and there are many of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch(StepBatch):
    """What all tasks of a step share, in a job.

    Attributes:
        folder: Where the step's files are written: `outputs`, `waiting`, `states` and `work`.
        topics: Folder in `outputs` and number of partitions, by output.
        dead_letters: Likewise of the dead letters.
        root: The checkpoint, where a dead letter too large for its topic is left whole.
        letter_limit: What the dead-letter topic takes of one record.
        life: Names this run of the job: bolts of another one are not gone on with.
    """

    folder: Location
    topics: Mapping[str, tuple[str, int]]
    dead_letters: tuple[str, int]
    root: Location
    letter_limit: RecordLimit = field(default_factory=RecordLimit)
    life: str = ""

    def path(self, name: str) -> Location:
        """One of the folders."""
        return self.folder / name

    @property
    def clock(self) -> Callable[[], float]:
        """See `StepBatch`."""
        return time.monotonic

    def time_ms(self) -> int:
        """See `StepBatch`."""
        return time.time_ns() // 1_000_000

    def ids(self, stage: int, task: int) -> Callable[[], int]:
        """See `StepBatch`."""
        return random_ids((*self.seed, stage, task))

    @property
    def instances(self) -> Instances | None:
        """See `StepBatch`."""
        return instances_of(self) if self.life else None

    @contextlib.contextmanager
    def watched(self, executor: Executor) -> Iterator[None]:
        """Calls end in time, and garbage is looked for now and then only."""
        threshold = gc.get_threshold()
        gc.set_threshold(_COLLECTED_EACH, *threshold[1:])
        try:
            with ending_overrun_calls(executor, self.rules.message_timeout_s):
                yield
        finally:
            gc.set_threshold(*threshold)

    def outputs(self, emissions: Iterator[int]) -> OutputFiles:
        """See `StepBatch`."""
        return OutputFiles(self.path("outputs"), self.topics, emissions)

    def exchange(self) -> ExchangeFile:
        """See `StepBatch`."""
        return ExchangeFile(self.path("work"))

    def tuples_in_order(self, sources: Sources) -> Iterator[tuple[str, Sent]]:
        """See `StepBatch`."""
        return tuples_in_order(sources)

    def weight(self, sources: Sources) -> int:
        """See `StepBatch`."""
        return sum(
            length for _, blobs in sources for places in blobs.values() for _, length in places
        )

    def write_waiting(self, waiting: Sequence[PendingEvent]) -> Location | None:
        """See `StepBatch`."""
        return write_waiting(self.path("waiting"), waiting)

    def write_dead(self, dead: Sequence[PendingEvent]) -> Location | None:
        """See `StepBatch`."""
        letters = OutputFiles(
            self.path("outputs"), {DEAD_LETTERS: self.dead_letters}, itertools.count()
        )
        for one in dead:
            letters.write(DEAD_LETTERS, dead_letter(one, self))
        file = letters.close()[self.dead_letters[0]]
        if letters.count != len(dead):
            raise ConservationError(f"{len(dead)} dead letters, and {letters.count} are written")
        return file

    def write_unfinished(self, roots: Sequence[int]) -> Location | None:
        """See `StepBatch`."""
        return write_unfinished(self.path("unfinished"), roots)

    def write_states(
        self, states: Mapping[tuple[str, int], bytes], kept: Mapping[tuple[str, int], Location]
    ) -> dict[tuple[str, int], Location]:
        """See `StepBatch`."""
        return write_states(self.path("states"), states, kept)

    def read_state(self, state: Location) -> bytes:
        """See `StepBatch`."""
        return state.read_bytes()

    def write_roots(self, roots: Sequence[Root]) -> Location:
        """See `StepBatch`."""
        return write_roots(self.path("work"), roots)

    def emitted_roots(self, roots: Sequence[Location]) -> EmittedRoots:
        """See `StepBatch`."""
        return emitted_roots(roots)

    def attempts_of(self, roots: Location) -> dict[int, int]:
        """See `StepBatch`."""
        return attempts_of(roots)

    def write_acks(self, ids: Any, values: Any, flags: Any) -> Location:
        """See `StepBatch`."""
        return write_acks(self.path("work"), ids, values, flags, self.ackers)

    @staticmethod
    def read_acks(acks: Location, acker: int) -> tuple[Any, Any, Any]:
        """See `StepBatch`."""
        return read_acks(acks, acker)

    def write_verdicts(self, verdicts: Sequence[EventVerdict]) -> Location:
        """See `StepBatch`."""
        return write_verdicts(self.path("work"), verdicts)

    def read_verdicts(self, verdicts: Location) -> list[EventVerdict]:
        """See `StepBatch`."""
        return read_verdicts(verdicts)


@dataclass(frozen=True, slots=True)
class FileInput(TaskInput):
    """The events that a task of the first stage is given, in their order.

    Attributes:
        selection: The new events; None without any.
        pending: Files of those that wait.
        partition: The task's number.
    """

    selection: Selection | None
    pending: tuple[Location, ...]
    partition: int

    @property
    def weight(self) -> int:
        """About how many new events there are."""
        return 0 if self.selection is None else self.selection.rows_at_most(self.partition)

    def waiting(self) -> list[PendingEvent]:
        """Those that wait."""
        return read_pending(self.pending)

    def new(self) -> Iterator[tuple[Any, ...]]:
        """The new ones, as the values of `EventValues`."""
        if self.selection is not None:
            for rows in self.selection.tables(self.partition, EVENT_COLUMNS):
                yield from events(rows)

    def with_waiting(self, waiting: Iterable[Location]) -> FileInput:
        """The same new ones, and others that wait."""
        return replace(self, pending=tuple(waiting))
