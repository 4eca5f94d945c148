"""A tester's step in memory: the input of its tasks, and what they leave for other tasks."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from sequitur.consumer.topology.engine.key_store import MemoryKeyStore
from sequitur.consumer.topology.engine.plan import OutputRecord, Sent, order_of
from sequitur.consumer.topology.settling.acker import acker_of
from sequitur.consumer.topology.settling.outcomes import numbered
from sequitur.consumer.topology.settling.timer_holds import line_of
from sequitur.consumer.topology.step.batch import (
    EmittedRoots,
    StepBatch,
    TaskInput,
    holding_turn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology.engine.key_store import KeyChange, KeyChanges
    from sequitur.consumer.topology.engine.keyed import KeyLog
    from sequitur.consumer.topology.engine.plan import RecordValues
    from sequitur.consumer.topology.engine.runner import Instances
    from sequitur.consumer.topology.settling.root import Root
    from sequitur.consumer.topology.step.batch import EventVerdict, PendingEvent, Sources
    from sequitur.consumer.topology.tester.tuple_trees import TreeRecorder


_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryBatch(StepBatch):
    """A step's batch in the memory of a test."""

    runs_inline: ClassVar[bool] = True

    now_s: Callable[[], float]  # the tester's clock
    next_edge: Callable[[], int]  # gives the edges of all tasks
    kept: Instances  # bolts that are ready from the step before
    recorder: TreeRecorder

    @property
    def clock(self) -> Callable[[], float]:
        return self.now_s

    def time_ms(self) -> int:
        return round(self.now_s() * _MS)

    def ids(self, stage: int, task: int) -> Callable[[], int]:
        del stage, task
        return self.next_edge

    @property
    def instances(self) -> Instances:
        return self.kept

    @property
    def trace(self) -> TreeRecorder:
        return self.recorder

    def outputs(self, emissions: Iterator[int]) -> _Records:
        return _Records(emissions)

    def exchange(self, *, is_kept: bool = False) -> _Exchange:
        del is_kept
        return _Exchange(self.recorder)

    def tuples_in_order(self, sources: Sources) -> Iterator[tuple[str, Sent]]:
        found = [
            (order, component, number, made)
            for _, blobs in sources
            for component, several in blobs.items()
            for order, number, made in several
        ]
        found.sort(key=lambda one: one[0])
        for _, component, number, made in found:
            sent = Sent(*pickle.loads(made))  # noqa: S301 - our own
            self.recorder.arrives(sent, number)
            yield component, sent

    def write_waiting(self, waiting: Sequence[PendingEvent]) -> list[PendingEvent] | None:
        return _as_written(waiting) or None

    def write_dead(self, dead: Sequence[PendingEvent]) -> list[PendingEvent]:
        return _as_written(dead)

    def write_unfinished(self, roots: Sequence[int]) -> list[int]:
        return list(roots)

    def read_unfinished(self, unfinished: Sequence[Sequence[int]]) -> frozenset[int]:
        return frozenset(root for several in unfinished for root in several)

    def write_states(
        self, states: Mapping[tuple[str, int], bytes], kept: Mapping[tuple[str, int], bytes]
    ) -> Mapping[tuple[str, int], bytes]:
        del kept
        return states

    def read_state(self, state: bytes) -> bytes:
        return state

    def key_store(
        self, place: tuple[str, int], keys: Sequence[MemoryKeyStore | Sequence[KeyChange]]
    ) -> MemoryKeyStore:
        del place
        if len(keys) == 1 and isinstance(keys[0], MemoryKeyStore):
            return keys[0]
        store = MemoryKeyStore()
        for one in keys:
            store.take_in(one.all() if isinstance(one, MemoryKeyStore) else one)
        return store

    def write_changes(self, changes: KeyChanges, wave: int = 0) -> Sequence[KeyChange]:
        del wave
        return changes.rows

    def write_key_log(self, log: KeyLog) -> bytes:
        return pickle.dumps(log, protocol=5)

    def read_key_log(self, log: bytes) -> KeyLog:
        found: KeyLog = pickle.loads(log)  # noqa: S301 - our own
        return found

    def write_roots(self, roots: Sequence[Root]) -> list[Root]:
        return [root for root in roots if root.is_tracked]

    def emitted_roots(self, roots: Sequence[Sequence[Root]]) -> EmittedRoots:
        every = [root for own in roots for root in own]
        by_field = self.topology.stores_by_field
        return EmittedRoots(
            np.array([root.id for root in every], np.uint64),
            np.array([root.attempt for root in every], np.int64),
            numbered(line_of(root.event, by_field) for root in every),
            np.array([holding_turn(root.event) for root in every], np.int64),
            [len(own) for own in roots],
        )

    def attempts_of(self, roots: Sequence[Root]) -> dict[int, int]:
        return {root.id: root.attempt for root in roots}

    def write_made(
        self, made: Sequence[tuple[int, tuple[Any, ...]]]
    ) -> Sequence[tuple[int, tuple[Any, ...]]]:
        return made

    def read_made(
        self, made: Sequence[tuple[int, tuple[Any, ...]]]
    ) -> Sequence[tuple[int, tuple[Any, ...]]]:
        return made

    def write_acks(self, ids: Any, values: Any, flags: Any) -> list[tuple[Any, Any, Any]]:
        which = acker_of(ids, self.ackers)
        own = [which == acker for acker in range(self.ackers)]
        return [(ids[one], values[one], flags[one]) for one in own]

    @staticmethod
    def read_acks(acks: Sequence[tuple[Any, Any, Any]], acker: int) -> tuple[Any, Any, Any]:
        return acks[acker]

    def write_verdicts(self, verdicts: Sequence[EventVerdict]) -> list[EventVerdict]:
        return list(verdicts)

    def read_verdicts(self, verdicts: list[EventVerdict]) -> list[EventVerdict]:
        return verdicts


@dataclass(frozen=True, slots=True)
class InMemoryInput(TaskInput):
    events: Sequence[tuple[Any, ...]]  # the new ones, in their order
    # the waiting ones, as `InMemoryBatch.write_waiting` returned them
    pending: Sequence[Sequence[PendingEvent]]
    partition: int  # the task's number

    def waiting(self) -> list[PendingEvent]:
        """Return the waiting events, in the order of the stream."""
        return in_order(self.pending)

    def new(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.events)

    def with_waiting(self, waiting: Iterable[Sequence[PendingEvent]]) -> InMemoryInput:
        return replace(self, pending=tuple(waiting))


Inputs: TypeAlias = "Callable[[Any], Sequence[InMemoryInput]]"
"""Returns the input of each first-stage task: in a transaction of a try, else it gets None."""


class Written(NamedTuple):
    emission: int  # number of the record: one of a later task has a larger one
    record: OutputRecord

    @property
    def order(self) -> tuple[Any, ...]:
        """Its place in its topic's order."""
        return *self.record.root.order, self.emission, self.record.root.id


class _Exchange:
    """The tuples that a task sends. They are pickled: in a job they leave the process."""

    path = None

    def __init__(self, recorder: TreeRecorder) -> None:
        self.index: dict[tuple[str, int], list[tuple[Any, int, bytes]]] = {}
        self._recorder = recorder

    def send(self, component: str, task: int, sent: Sent) -> None:
        kept = order_of(sent), self._recorder.leaves(sent), pickle.dumps(tuple(sent), protocol=5)
        self.index.setdefault((component, task), []).append(kept)

    def close(self) -> None:
        """Do nothing: memory needs no close."""


class _Records:
    def __init__(self, emissions: Iterator[int]) -> None:
        self._emissions = emissions
        self._written: dict[str, list[Written]] = {}
        self.count = 0

    def write(self, output: str, record: RecordValues) -> None:
        self.count += 1
        written = Written(next(self._emissions), OutputRecord(*record))
        self._written.setdefault(output, []).append(written)

    def close(self) -> dict[str, list[Written]]:
        return self._written


def in_order(waiting: Iterable[Sequence[PendingEvent]]) -> list[PendingEvent]:
    return sorted((one for some in waiting for one in some), key=lambda one: one.event[3:7])


def _as_written(events: Iterable[PendingEvent]) -> list[PendingEvent]:
    """Return events as a job's files give them back: these hold text as UTF-8."""
    return [
        one._replace(reason=_text(one.reason), detail=_text(one.detail), path=_text(one.path))
        for one in events
    ]


def _text(text: str | None) -> str | None:
    return None if text is None else text.encode().decode()
