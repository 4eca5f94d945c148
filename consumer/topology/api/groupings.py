"""Groupings: which tasks of a bolt get a tuple, and the hash by which they choose tasks.

The words and their meaning are Storm's (https://storm.apache.org/releases/2.6.0/Concepts.html).

The hash is the same in each process:

- Values that Python calls equal have one hash, of whatever types they are: 1, True, `Decimal(1)`
  and NumPy's 1; bytes and a bytearray; one instant in two time zones; dicts and sets in any order.
- A value of a type that is not known here is refused, and the error names it. Pickles are no help:
  equal values have different pickles, so one key would go to two tasks.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import fractions
import math
import pickle
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from sequitur.base.text import named
from sequitur.errors import (
    NOT_THE_USERS,
    BoltError,
    EmitError,
    TopologyBuildError,
    UngroupableValueError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sequitur.consumer.topology.api.tuple import Stream

    Chooser = Callable[[Any, int | None], Sequence[int]]
    "Gives the tasks for a tuple's values; the number is the task that a direct emit names."


_SECOND: Final = "second"
_KEY: Final = ("key",)
"""The spout's field of events' keys."""


class Grouping(ABC):
    """Which tasks of a bolt get a tuple. A new grouping is a class, and a method of the declarer.

    Attributes:
        title: Its name in messages.
        fields: The fields whose values choose the task.
        is_direct: Whether the emitter names the task. The stream has to declare it.
        is_users: Whether user code chooses, which may hang or raise.
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
        """The fields whose equal values go to one task, if the grouping promises that."""
        return None

    def keeps_local(self, *, of_spout: bool) -> bool:
        """Return whether a tuple may stay in its task, if the bolt has as many tasks as its input.

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
        del stream, emitter, reader
        return _always(range(tasks))


@dataclass(frozen=True)
class GlobalGrouping(Grouping):
    """The first task gets all tuples."""

    title = "global"

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        del stream, tasks, emitter, reader
        return _always((0,))


@dataclass(frozen=True)
class DirectGrouping(Grouping):
    """The emitter names the task."""

    title = "direct"
    is_direct = True

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
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
    """The task that runs where the tuple is. `none_grouping` is another name for it."""

    title = "local"

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Spread tuples over the reader's tasks so that each of them gets some."""
        del stream, reader
        first = emitter.task % min(tasks, emitter.tasks)
        return _round_robin(range(first, tasks, emitter.tasks), emitter.turn)

    def keeps_local(self, *, of_spout: bool) -> bool:
        del of_spout
        return True


@dataclass(frozen=True)
class LocalOrShuffleGrouping(ShuffleGrouping):
    """The task that runs where the tuple is, if one does; else evenly."""

    title = "local or shuffle"

    def keeps_local(self, *, of_spout: bool) -> bool:
        del of_spout
        return True


class _ByFields(Grouping):
    def check(self, reader: str, stream: Stream) -> None:
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
    """By the values of some fields: tuples with equal values go to one task."""

    title = "fields"
    fields: tuple[str, ...] = ()

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        del emitter, reader
        places = [stream.index[name] for name in self.fields]
        each = [(task,) for task in range(tasks)]
        if len(places) == 1:
            place = places[0]
            return lambda values, _task: each[stable_hash(values[place]) % tasks]
        return lambda values, _task: each[stable_hash([values[at] for at in places]) % tasks]

    @property
    def meets_by(self) -> tuple[str, ...]:
        return self.fields

    def keeps_local(self, *, of_spout: bool) -> bool:
        """Only by the key of the spout's events: a spout task has all events of its keys."""
        return of_spout and self.fields == _KEY


@dataclass(frozen=True)
class PartialKeyGrouping(_ByFields):
    """By the values of some fields: tuples with equal values go to the less loaded of two tasks."""

    title = "partial key"
    fields: tuple[str, ...] = ()

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        del emitter, reader
        places = [stream.index[name] for name in self.fields]
        given = [0] * tasks

        def choose(values: Any, _task: int | None) -> Sequence[int]:
            key = [values[at] for at in places]
            first = stable_hash(key) % tasks
            # Another task, wherever there is another.
            second = (first + 1 + stable_hash([_SECOND, *key]) % max(1, tasks - 1)) % tasks
            task = second if given[second] < given[first] else first
            given[task] += 1
            return (task,)

        return choose


@dataclass(frozen=True)
class CustomGrouping(Grouping):
    """A user's code chooses the tasks."""

    custom: CustomStreamGrouping

    title = "custom"
    is_users = True

    def chooser(self, stream: Stream, tasks: int, emitter: Emitter, reader: str = "") -> Chooser:
        """Return a copy of the user's grouping, prepared for the emitting task."""
        told = (stream.component, stream.name, stream.fields, reader, tasks)
        return _custom(self.custom, GroupingContext(emitter.topology, *told), emitter.task)

    def check(self, reader: str, stream: Stream) -> None:
        """Check that it is a `CustomStreamGrouping`."""
        if not isinstance(self.custom, CustomStreamGrouping):
            raise TopologyBuildError(f"{reader}: {self.custom!r} is not a CustomStreamGrouping")
        super().check(reader, stream)


class CustomStreamGrouping(ABC):
    """A grouping of the user's.

    Each task that emits unpickles its own copy in each batch. The choice may depend only on the
    tuples of this batch, so that a repeated batch is the same.

    ::

        class ByLength(CustomStreamGrouping):
            def prepare(self, context):
                self.tasks = context.tasks

            def choose_tasks(self, task, values):
                return [len(values[0]) % self.tasks]
    """

    def prepare(self, context: GroupingContext) -> None:  # noqa: B027 - most need nothing
        """Get ready.

        Args:
            context: Whose tuples go to whom.
        """

    @abstractmethod
    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the numbers of the tasks that get a tuple. The list may be empty.

        An exception fails what is being processed, as one of a bolt does.

        Args:
            task: Number of the task that emits.
            values: The tuple's values, in the order of the stream's fields.
        """


@dataclass(frozen=True, slots=True)
class GroupingContext:
    """The stream and the bolt that a custom grouping chooses tasks for.

    Attributes:
        topology: Name of the topology.
        component: The component whose tuples it spreads.
        stream: Their stream.
        fields: Their fields.
        reader: The bolt among whose tasks it chooses.
        tasks: How many tasks that bolt has. Their numbers begin at 0.
    """

    topology: str
    component: str
    stream: str
    fields: tuple[str, ...]
    reader: str
    tasks: int


@dataclass(frozen=True, slots=True)
class Emitter:
    """The task whose tuples are grouped."""

    task: int = 0  # number of the task that emits
    tasks: int = 1  # how many tasks its component has
    turn: int = 0  # number of the batch: shuffling begins with another task in each
    topology: str = ""


def task_of_group(group: Any, tasks: int) -> int:
    """Return the task that a `FieldsGrouping` chooses for a value, or for a tuple of several."""
    values = list(group) if isinstance(group, tuple) else [group]
    return stable_hash(values[0] if len(values) == 1 else values) % tasks


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
            f"{named(error)}"
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


HASH_VERSION: Final = 2
"""The version of `stable_hash`: what a hash is never changes without another number."""

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive times are told apart from instants
_INSTANT: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def stable_hash(value: Any) -> int:
    """Hash a value. The hash is the same in each process, and for equal values.

    It takes None, text, bytes-like values, numbers of the standard library and NumPy, dates, times,
    durations, UUIDs and enumerations. It takes lists, tuples, sets, mappings and dataclasses of
    these, too.

    Raises:
        UngroupableValueError: The value is of another type.
    """
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return zlib.crc32(value)
    if isinstance(value, int | float):
        return _number_hash(value)
    if isinstance(value, list | tuple):
        return _sequence_hash([stable_hash(one) for one in value])
    return _hash_of_other(value)


def _sequence_hash(hashes: list[int]) -> int:
    hashed = len(hashes)
    for one in hashes:
        hashed = (hashed * 0x100000001B3 ^ one) & _MASK
    return hashed ^ hashed >> 32


def _unordered_hash(hashes: Iterable[int]) -> int:
    return _sequence_hash([sum(one * one + _GOLDEN * one for one in hashes) & _MASK])


def _number_hash(value: float) -> int:
    if isinstance(value, int) or value.is_integer():
        return (int(value) * _GOLDEN & _MASK) >> 32
    return zlib.crc32(repr(float(value)).encode())


def _hash_of_other(value: Any) -> int:
    """Hash any value but text, bytes, an int, a float, a list or a tuple."""
    if value is None:
        return _NONE
    if isinstance(value, bytearray | memoryview):
        return zlib.crc32(value)
    for kind, hash_of_kind in _KINDS:
        if isinstance(value, kind):
            return hash_of_kind(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass_hash(value)
    kind = type(value)
    raise UngroupableValueError(
        f"{value!r:.200} is of type {kind.__module__}.{kind.__qualname__}, which Sequitur cannot "
        "compare: group by one of its fields, or by text or a number made of it"
    )


def _dataclass_hash(value: Any) -> int:
    kind = type(value)
    compared = [getattr(value, one.name) for one in dataclasses.fields(value) if one.compare]
    return stable_hash([kind.__module__, kind.__qualname__, compared])


def _mapping_hash(value: Mapping[Any, Any]) -> int:
    return _unordered_hash(stable_hash(item) for item in value.items())


def _set_hash(value: AbstractSet[Any]) -> int:
    return _unordered_hash(map(stable_hash, value))


def _rational_hash(value: decimal.Decimal | fractions.Fraction) -> int:
    """Hash a number that may equal an int or a float: equal numbers have one hash."""
    if isinstance(value, decimal.Decimal) and value.is_nan():
        return _number_hash(math.nan)
    try:
        near = float(value)
    except OverflowError:
        near = math.inf
    if near == value:
        return _number_hash(near)
    if isinstance(value, decimal.Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        if value == value.to_integral_value() and exponent >= 0:
            # The power by itself may have more digits than there is memory.
            whole = int("".join(map(str, digits))) * pow(10, exponent, 1 << 64)
            return _number_hash(-whole if sign else whole)
        if value == value.to_integral_value():
            return _number_hash(int(value))
    elif value.denominator == 1:
        return _number_hash(value.numerator)
    return _number_hash(hash(value))  # of numbers it is the same in each process, and of equal ones


def _complex_hash(value: complex) -> int:
    return _number_hash(value.real) if value.imag == 0 else stable_hash([value.real, value.imag])


def _duration_hash(value: dt.timedelta) -> int:
    return stable_hash(["duration", value // dt.timedelta(microseconds=1)])


def _datetime_hash(value: dt.datetime) -> int:
    if value.utcoffset() is None:
        return _duration_hash(value.replace(tzinfo=None) - _EPOCH)
    return _duration_hash(value - _INSTANT)


def _date_hash(value: dt.date) -> int:
    return _datetime_hash(dt.datetime(value.year, value.month, value.day))  # noqa: DTZ001


def _time_hash(value: dt.time) -> int:
    of_day = dt.timedelta(
        hours=value.hour, minutes=value.minute, seconds=value.second,
        microseconds=value.microsecond,
    )  # fmt: skip
    return _duration_hash(of_day - (value.utcoffset() or dt.timedelta()))


def _numpy_hash(value: Any) -> int:
    if isinstance(value, np.datetime64 | np.timedelta64):
        kind = "datetime64" if isinstance(value, np.datetime64) else "timedelta64"
        value = value.astype(f"{kind}[us]")
    if isinstance(value, np.longdouble):  # it is no narrower than it looks to Python
        return _rational_hash(fractions.Fraction(*value.as_integer_ratio()))
    return stable_hash(value.item())


def _enum_hash(value: Enum) -> int:
    kind = type(value)
    return stable_hash([kind.__module__, kind.__qualname__, value.name])


def _uuid_hash(value: uuid.UUID) -> int:
    return zlib.crc32(value.bytes)


_NONE: Final = zlib.crc32(pickle.dumps(None, protocol=5))
_KINDS: Final[tuple[tuple[Any, Callable[[Any], int]], ...]] = (
    (np.generic, _numpy_hash),
    (Mapping, _mapping_hash),
    (AbstractSet, _set_hash),
    (dt.datetime, _datetime_hash),
    (dt.date, _date_hash),
    (dt.time, _time_hash),
    (dt.timedelta, _duration_hash),
    (decimal.Decimal | fractions.Fraction, _rational_hash),
    (complex, _complex_hash),
    (uuid.UUID, _uuid_hash),
    (Enum, _enum_hash),
)
