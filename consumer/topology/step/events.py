"""The events of a step: those a task is given, those that wait, and what becomes of them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from sequitur.consumer.topology.settling.settlement import EventOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sequitur.consumer.topology.api.failure import TreeFailure
    from sequitur.consumer.topology.step.batch import Handle

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
    retry_at_ms: int | None  # when it is tried again; None of one that is held
    reason: str | None = None  # why it failed last, as a `FailReason`
    detail: str | None = None
    path: str | None = None  # the components that the failed tuple had come through


class EventVerdict(NamedTuple):
    """What becomes of an event that is not done."""

    id: int
    attempts: int  # how often it has been tried; an attempt in which it was held does not count
    retry_at_ms: int | None  # when it is tried again; None of one that is held or dead
    is_dead: bool  # whether it is given up
    reason: str | None  # why it failed; None of one that is held
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
        """Make the verdict on an event that is not done."""
        is_dead, retry = outcome == EventOutcome.DEAD, retry_at_ms or None
        if failure is None:
            return cls(root, attempts, retry, is_dead, None, None, None)
        told = (failure.reason.value, failure.detail, _PATH_SEPARATOR.join(failure.path))
        return cls(root, attempts, retry, is_dead, *told)

    def pending_event(self, event: tuple[Any, ...]) -> PendingEvent:
        """Return the event as it waits, or is given up."""
        told = (self.reason, self.detail, self.path)
        return PendingEvent(event, self.attempts, self.retry_at_ms, *told)


class EmittedRoots(NamedTuple):
    """The roots that the spouts of some tasks emitted, task after task, as columns."""

    ids: Any
    attempts: Any
    keys: Any  # a number for each event's key; -1 without one
    counts: Sequence[int]  # how many each of the tasks emitted


class TaskInput(ABC):
    """The events that a task of the first stage is given, in their order."""

    __slots__ = ()

    partition: int
    """The task's number."""

    @abstractmethod
    def waiting(self) -> list[PendingEvent]:
        """Return those that wait."""

    @abstractmethod
    def new(self) -> Iterator[tuple[Any, ...]]:
        """Return the new ones, as the values of `EventValues`."""

    @abstractmethod
    def with_waiting(self, waiting: Iterable[Handle]) -> TaskInput:
        """Return the same new ones, and others that wait."""

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
        """Return the id of the first new event's root in a window; the others follow it."""
        return self.first_id + _NEW + window[0]

    def all(self, window: Window) -> Iterator[tuple[int, PendingEvent | None, tuple[Any, ...]]]:
        """Yield all events in order, with their roots' ids: those that wait, then new ones."""
        for root, waited in enumerate(self.waiting(), self.first_id):
            yield root, waited, waited.event
        new = itertools.islice(self.new(), *window)
        for root, event in enumerate(new, self.first_new_id(window)):
            yield root, None, event


def components_of(path: str | None) -> tuple[str, ...]:
    """Return the components of a path as it is written down."""
    return tuple(path.split(_PATH_SEPARATOR)) if path else ()
