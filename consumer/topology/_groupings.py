"""Groupings: which tasks of a bolt get a tuple.

The words and their meaning are Storm's (https://storm.apache.org/releases/2.6.0/Concepts.html).
"""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from consumer.topology._errors import EmitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consumer.topology._tuple import Stream

    Chooser = Callable[[Any, int | None], Sequence[int]]
    """Gives the tasks for a tuple's values; the number is the task that a direct emit names."""

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


class GroupingKind(StrEnum):
    """How tuples of a stream are spread over a bolt's tasks."""

    SHUFFLE = "shuffle"
    """Evenly, one task after the other."""
    FIELDS = "fields"
    """By the values of some fields: equal ones meet in one task."""
    ALL = "all"
    """Each task gets each tuple."""
    GLOBAL = "global"
    """The first task gets all of them."""
    DIRECT = "direct"
    """Who emits says which task."""
    LOCAL = "local"
    """The task that runs where the tuple is; none is another word for it."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """A grouping.

    Attributes:
        kind: Its kind.
        fields: The fields, of `FIELDS`.
    """

    kind: GroupingKind
    fields: tuple[str, ...] = ()

    def chooser(self, stream: Stream, tasks: int, here: int) -> Chooser:
        """What chooses tasks.

        Args:
            stream: The stream that is grouped.
            tasks: How many tasks the bolt has.
            here: Number of the task that emits; shuffling begins there.
        """
        if self.kind is GroupingKind.FIELDS:
            return self._by_fields(stream, tasks)
        if self.kind is GroupingKind.ALL:
            every = tuple(range(tasks))
            return lambda _values, _task: every
        if self.kind is GroupingKind.GLOBAL:
            return lambda _values, _task: (0,)
        if self.kind is GroupingKind.DIRECT:
            return lambda _values, task: _named(stream, tasks, task)
        if self.kind is GroupingKind.LOCAL:
            same = (here % tasks,)
            return lambda _values, _task: same
        return _round_robin(tasks, here)

    def _by_fields(self, stream: Stream, tasks: int) -> Chooser:
        places = [stream.index[name] for name in self.fields]
        each = [(task,) for task in range(tasks)]
        if len(places) == 1:
            place = places[0]
            return lambda values, _task: each[stable_hash(values[place]) % tasks]
        return lambda values, _task: each[stable_hash([values[at] for at in places]) % tasks]

    def __str__(self) -> str:
        return f"{self.kind.value}({', '.join(self.fields)})" if self.fields else self.kind.value


def _named(stream: Stream, tasks: int, task: int | None) -> Sequence[int]:
    if task is None or not 0 <= task < tasks:
        raise EmitError(
            f"bolt {stream.component!r} emitted to task {task} of a reader of {stream.title!r}, "
            f"which has {tasks}"
        )
    return (task,)


def stable_hash(value: Any) -> int:
    """A hash that is the same in each process; of equal strings, numbers, bytes and lists of these.

    Python's own differs from process to process for strings and bytes.
    """
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return zlib.crc32(value)
    if isinstance(value, int | float):
        return _number_hash(value)
    if isinstance(value, list | tuple):
        hashed = len(value)
        for one in value:
            hashed = (hashed * 0x100000001B3 ^ stable_hash(one)) & _MASK
        return hashed ^ hashed >> 32
    return zlib.crc32(pickle.dumps(value, protocol=5))


def _number_hash(value: float) -> int:
    if isinstance(value, int) or value.is_integer():
        return (int(value) * _GOLDEN & _MASK) >> 32
    return zlib.crc32(repr(value).encode())


def _round_robin(tasks: int, here: int) -> Chooser:
    each = [(task,) for task in range(tasks)]
    state = here - 1

    def choose(_values: Any, _task: int | None) -> Sequence[int]:
        nonlocal state
        state = (state + 1) % tasks
        return each[state]

    return choose
