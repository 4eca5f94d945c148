"""What the tasks of a topology are given, and what they answer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines._process_files import (
    EVENT_COLUMNS,
    Waiting,
    events,
    read_pending,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from consumer.topology import (
        Failure,
        Plan,
        RetryPolicy,
        Rules,
        Topology,
    )
    from pipelines._selection import Selection


DEAD_LETTERS: Final = "dead-letters"


@dataclass(frozen=True, slots=True)
class Batch:
    """What all tasks of a step share.

    Attributes:
        topology: The topology.
        plan: Where its tasks run.
        rules: What the executor keeps to.
        retry: When a failed event is tried again.
        ackers: How many ackers; 0 tracks nothing.
        now_ms: The step's time.
        seed: Of the step's random numbers.
        folder: Where the step's files are written: `outputs`, `waiting`, `states` and `work`.
        topics: Folder in `outputs` and number of partitions, by output.
    """

    topology: Topology
    plan: Plan
    rules: Rules
    retry: RetryPolicy
    ackers: int
    now_ms: int
    seed: tuple[int, ...]
    folder: str
    topics: Mapping[str, tuple[str, int]]

    def path(self, name: str) -> Path:
        """One of the folders."""
        return Path(self.folder, name)


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
        late_acks: Acks that came too late.
        untracked_failures: Failures of tuples that nobody waits for.
        outputs: Records put out.
        files: Hidden names of files of records, by folder in `outputs`.
        dead_file: Hidden name of the file of dead letters.
        waiting_file: Hidden name of the file of events that wait.
        unfinished_file: Hidden name of the file with places of events that are not done.
        states: Names of files of what bolts keep, by component and task.
        roots_file: Path of the events it gave out, where ackers decide.
        acks_file: Path of what it knows of roots, where ackers decide.
        failures: Why roots failed, where ackers decide.
        shared: Roots of outputs of several, where ackers decide.
        finish_failures: What `finish_batch` of bolts raised, where ackers decide.
        tuples_file: Path of the tuples it sent.
        tuples: Where in it those for a component's task stand.
    """

    taken: int = 0
    has_more: bool = False
    acked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    waiting: int = 0
    next_due_ms: int | None = None
    late_acks: int = 0
    untracked_failures: int = 0
    outputs: int = 0
    files: dict[str, str | None] = field(default_factory=dict)
    dead_file: str | None = None
    waiting_file: str | None = None
    unfinished_file: str | None = None
    states: dict[tuple[str, int], str] = field(default_factory=dict)
    roots_file: str | None = None
    acks_file: str | None = None
    failures: dict[int, Failure] = field(default_factory=dict)
    shared: list[tuple[int, ...]] = field(default_factory=list)
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    tuples_file: str | None = None
    tuples: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    """The events that a task of the first stage is given, in their order.

    Attributes:
        selection: The new events; None without any.
        pending: Files of those that wait.
        partition: The task's number.
    """

    selection: Selection | None
    pending: tuple[str, ...]
    partition: int

    def waiting(self) -> list[Waiting]:
        """Those that wait."""
        return read_pending(self.pending)

    def all(
        self, window: tuple[int, int | None]
    ) -> Iterator[tuple[Waiting | None, tuple[Any, ...]]]:
        """The values of all events in their order: those that wait, then new ones in a window."""
        for waited in self.waiting():
            yield waited, waited.event
        for event in itertools.islice(self.new(), *window):
            yield None, event

    def new(self) -> Iterator[tuple[Any, ...]]:
        """The new ones, as the values of `EventValues`."""
        if self.selection is not None:
            for rows in self.selection.tables(self.partition, EVENT_COLUMNS):
                yield from events(rows)


@dataclass(frozen=True, slots=True)
class Trial:
    """What of a task's input is given out, in search of what kills its process.

    Attributes:
        first: Of what is given out, the place of the first.
        last: And of the one behind the last; None for all.
        poison: Places of what is known to kill.
    """

    first: int = 0
    last: int | None = None
    poison: frozenset[int] = frozenset()

    def of(self, given: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """What is given out, by its place."""
        return itertools.islice(enumerate(given), self.first, self.last)


WHOLE: Final = Trial()
"""All of it."""
