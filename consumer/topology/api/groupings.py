"""Groupings: which tasks of a bolt get a tuple.

The words and their meaning are Storm's (https://storm.apache.org/releases/2.6.0/Concepts.html).
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sequitur.consumer.topology.api.stable_hash import stable_hash
from sequitur.errors import (
    NOT_THE_USERS,
    BoltError,
    EmitError,
    TopologyBuildError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.consumer.topology.api.tuple import Stream

    Chooser = Callable[[Any, int | None], Sequence[int]]
    """Gives the tasks for a tuple's values; the number is the task that a direct emit names."""

_SECOND: Final = "second"
_KEY: Final = ("key",)
"""The spout's field of events' keys."""


@dataclass(frozen=True, slots=True)
class GroupingContext:
    """What a custom grouping chooses for.

    Attributes:
        topology: Name of the topology.
        component: The component whose tuples it spreads.
        stream: Their stream.
        fields: Their fields.
        reader: The bolt among whose tasks it chooses.
        tasks: How many tasks that bolt has; they are numbered from 0.
    """

    topology: str
    component: str
    stream: str
    fields: tuple[str, ...]
    reader: str
    tasks: int


class CustomStreamGrouping(ABC):
    """A grouping of the user's.

    Each task that emits makes its own copy of it in each batch, by pickling. So that a batch that
    is repeated is the same, what it chooses may depend only on what it was given in this batch.
    """

    def prepare(self, context: GroupingContext) -> None:  # noqa: B027 - most need nothing
        """Get ready.

        Args:
            context: Whose tuples go to whom.
        """

    @abstractmethod
    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the tasks that get a tuple, by number; none if no task is to get it.

        An exception fails what is being processed, as one of a bolt does.

        Args:
            task: Number of the task that emits.
            values: The tuple's values, in the order of the stream's fields.
        """


@dataclass(frozen=True, slots=True)
class Emitter:
    """The task whose tuples are grouped."""

    task: int = 0  # number of the task that emits
    tasks: int = 1  # how many tasks its component has
    turn: int = 0  # number of the batch: shuffling begins with another task in each
    topology: str = ""
    hash: Callable[[Any], int] = stable_hash  # the hash by which values choose tasks


class Grouping(ABC):
    """Which tasks of a bolt get a tuple. A new one is one class, and a method of the declarer's.

    Attributes:
        title: What messages call it.
        fields: The fields whose values choose the task.
        is_direct: Whether the emitter names the task; the stream has to say that it does.
        is_users: Whether user code chooses: that may hang or raise.
    """

    title: ClassVar[str]
    is_direct: ClassVar[bool] = False
    is_users: ClassVar[bool] = False
    fields: tuple[str, ...] = ()

    @abstractmethod
    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Return the function that chooses tasks.

        Args:
            stream: The stream that is grouped.
            tasks: How many tasks the bolt has.
            emitter: The task that emits.
            reader: The bolt's name.
        """

    @property
    def meets_by(self) -> tuple[str, ...] | None:
        """The fields whose equal values meet in one task, if it promises that."""
        return None

    def keeps_local(self, *, of_spout: bool) -> bool:
        """Return whether a tuple may stay where it is, in a bolt with as many tasks as its input.

        Args:
            of_spout: Whether the stream is the spout's, whose tasks have all events of a key.
        """
        del of_spout
        return False

    def check(self, reader: str, stream: Stream) -> None:
        """Check that it fits the stream.

        Args:
            reader: What messages call the component that reads.
            stream: The stream that it reads.

        Raises:
            TopologyBuildError: It does not fit the stream.
        """
        if self.is_direct is not stream.is_direct:
            raise TopologyBuildError(
                f"{reader} reads {stream.title!r} by {self} grouping, but the stream "
                f"is {'not ' if self.is_direct else ''}declared as direct"
            )

    def __str__(self) -> str:
        return f"{self.title}({', '.join(self.fields)})" if self.fields else self.title


@dataclass(frozen=True)
class ShuffleGrouping(Grouping):
    """Evenly, one task after the other."""

    title = "shuffle"

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Begin with another task in each batch, and for each task that emits."""
        del stream, reader
        return _round_robin(range(tasks), emitter.task + emitter.turn)


@dataclass(frozen=True)
class AllGrouping(Grouping):
    """Each task gets each tuple."""

    title = "all"

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Return all tasks, always."""
        del stream, emitter, reader
        return _always(range(tasks))


@dataclass(frozen=True)
class GlobalGrouping(Grouping):
    """The first task gets all tuples."""

    title = "global"

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Return the first task, always."""
        del stream, tasks, emitter, reader
        return _always((0,))


@dataclass(frozen=True)
class DirectGrouping(Grouping):
    """The emitter names the task."""

    title = "direct"
    is_direct = True

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Return the task that the emit names."""
        del emitter, reader

        def choose(_values: Any, task: int | None) -> Sequence[int]:
            if task is None or not 0 <= task < tasks:
                raise EmitError(
                    f"bolt {stream.component!r} emitted to task {task} of a reader of "
                    f"{stream.title!r}, which has {tasks}"
                )
            return (task,)

        return choose


@dataclass(frozen=True)
class LocalGrouping(Grouping):
    """The task that runs where the tuple is; none is another word for it."""

    title = "local"

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Give each task of the reader tuples of one task here, so that none is left without."""
        del stream, reader
        first = emitter.task % min(tasks, emitter.tasks)
        return _round_robin(range(first, tasks, emitter.tasks), emitter.turn)

    def keeps_local(self, *, of_spout: bool) -> bool:
        """Always."""
        del of_spout
        return True


@dataclass(frozen=True)
class LocalOrShuffleGrouping(ShuffleGrouping):
    """The task that runs where the tuple is, if one does; else evenly."""

    title = "local or shuffle"

    def keeps_local(self, *, of_spout: bool) -> bool:
        """Always."""
        del of_spout
        return True


class _ByFields(Grouping):
    """A grouping by the values of some fields."""

    def check(self, reader: str, stream: Stream) -> None:
        """Check that it has fields, and that the stream has them."""
        if not self.fields:
            raise TopologyBuildError(f"{reader}: {self.title} grouping without fields")
        for name in self.fields:
            if name not in stream.index:
                raise TopologyBuildError(
                    f"{reader} groups {stream.title!r} by {name!r}, "
                    f"but its fields are: {', '.join(stream.fields)}"
                )
        super().check(reader, stream)


@dataclass(frozen=True)
class FieldsGrouping(_ByFields):
    """By the values of some fields: equal ones meet in one task."""

    title = "fields"
    fields: tuple[str, ...] = ()

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Return the task that the values' hash names."""
        del reader
        hashed = emitter.hash
        places = [stream.index[name] for name in self.fields]
        each = [(task,) for task in range(tasks)]
        if len(places) == 1:
            place = places[0]
            return lambda values, _task: each[hashed(values[place]) % tasks]
        return lambda values, _task: each[hashed([values[at] for at in places]) % tasks]

    @property
    def meets_by(self) -> tuple[str, ...]:
        """Its fields."""
        return self.fields

    def keeps_local(self, *, of_spout: bool) -> bool:
        """Only by the key of the spout's events: a spout task has all events of its keys."""
        return of_spout and self.fields == _KEY


def task_of_group(group: Any, tasks: int, hashed: Callable[[Any], int] = stable_hash) -> int:
    """Return the task to which a `FieldsGrouping` gives a field's value, or a tuple of several."""
    values = list(group) if isinstance(group, tuple) else [group]
    return hashed(values[0] if len(values) == 1 else values) % tasks


@dataclass(frozen=True)
class PartialKeyGrouping(_ByFields):
    """By the values of some fields: equal ones go to two tasks, each to the one with less."""

    title = "partial key"
    fields: tuple[str, ...] = ()

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Of the two tasks that the values' hashes name, the one that was given less so far."""
        del reader
        hashed = emitter.hash
        places = [stream.index[name] for name in self.fields]
        given = [0] * tasks

        def choose(values: Any, _task: int | None) -> Sequence[int]:
            key = [values[at] for at in places]
            first = hashed(key) % tasks
            # Another task, wherever there is another.
            second = (first + 1 + hashed([_SECOND, *key]) % max(1, tasks - 1)) % tasks
            task = second if given[second] < given[first] else first
            given[task] += 1
            return (task,)

        return choose


@dataclass(frozen=True)
class CustomGrouping(Grouping):
    """As code of the user's says."""

    custom: CustomStreamGrouping

    title = "custom"
    is_users = True

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Return a copy of the user's grouping, prepared for the task that emits."""
        told = (stream.component, stream.name, stream.fields, reader, tasks)
        return _custom(self.custom, GroupingContext(emitter.topology, *told), emitter.task)

    def check(self, reader: str, stream: Stream) -> None:
        """Check that it is a `CustomStreamGrouping`."""
        if not isinstance(self.custom, CustomStreamGrouping):
            raise TopologyBuildError(f"{reader}: {self.custom!r} is no CustomStreamGrouping")
        super().check(reader, stream)


def _always(tasks: Sequence[int]) -> Chooser:
    chosen = tuple(tasks)
    return lambda _values, _task: chosen


def _round_robin(tasks: Sequence[int], first: int) -> Chooser:
    if len(tasks) == 1:
        return _always(tasks)
    each = [(task,) for task in tasks]
    state, count = first - 1, len(each)

    def choose(_values: Any, _task: int | None) -> Sequence[int]:
        nonlocal state
        state = (state + 1) % count
        return each[state]

    return choose


def _custom(given: CustomStreamGrouping, context: GroupingContext, here: int) -> Chooser:
    grouping = pickle.loads(pickle.dumps(given))  # noqa: S301 - a copy for each task that emits
    try:
        grouping.prepare(context)
    except NOT_THE_USERS:
        raise
    except BaseException as error:
        raise BoltError(
            f"grouping of {context.component!r} for {context.reader!r}: its prepare raised "
            f"{type(error).__name__}: {error}"
        ) from error

    def choose(values: Any, _task: int | None) -> Sequence[int]:
        chosen = tuple(grouping.choose_tasks(here, values))
        for task in chosen:
            if not isinstance(task, int) or not 0 <= task < context.tasks:
                raise EmitError(
                    f"the grouping of {context.component!r} chose task {task!r} of "
                    f"{context.reader!r}, which has {context.tasks}"
                )
        return chosen

    return choose
