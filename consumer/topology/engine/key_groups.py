"""The keys of a keyed bolt with a stage of its own: how they are stored, and which task has them.

A key is the value of a field, or the values of several. It is of one of 256 fixed groups, and a
task has a range of groups. So the number of tasks may change between two starts of a job.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sequitur.consumer.topology.api.builder import MOST_KEYED_TASKS
from sequitur.errors import KeyedStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sequitur.consumer.topology.api.groupings import Chooser
    from sequitur.consumer.topology.api.tuple import Stream

GROUPS: Final = MOST_KEYED_TASKS
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_KINDS: Final = frozenset({str, bytes, int})


def stored_key(values: Any) -> bytes:
    """Return a key as it is stored: its group, then its value.

    Args:
        values: The value of the one field; a list with those of several.

    Raises:
        KeyedStateError: A value is neither text, bytes nor an int.
    """
    each = values if values.__class__ is list else (values,)
    try:
        if not _KINDS.issuperset(one.__class__ for one in each):
            raise TypeError  # noqa: TRY301 - said below
        encoded = _encode(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise KeyedStateError(
            f"{values!r:.200} cannot be a key of a keyed bolt: make it text, bytes, or an int of "
            "64 bits"
        ) from error
    return bytes((zlib.crc32(encoded) % GROUPS,)) + encoded


def key_value(stored: bytes) -> Any:
    """Return the value of a stored key; a tuple of the values of several fields."""
    value = _decode(stored[1:])
    return tuple(value) if value.__class__ is list else value


def shown_key(stored: bytes) -> bytes:
    """Return a stored key for people: text and bytes as they are, all else as JSON."""
    value = key_value(stored)
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr)


def task_of(stored: bytes, tasks: int) -> int:
    """Return the task that has a key's group."""
    return stored[0] * tasks // GROUPS


def groups_of(task: int, tasks: int) -> range:
    """Return the groups that a task has."""
    return range(-(-task * GROUPS // tasks), -(-(task + 1) * GROUPS // tasks))


def key_of(fields: Sequence[str], stream: Stream) -> Callable[[Any], bytes]:
    """Return the function that makes the stored key of a tuple's values."""
    places = [stream.index[name] for name in fields]
    if len(places) == 1:
        place = places[0]
        return lambda values: stored_key(values[place])
    return lambda values: stored_key([values[at] for at in places])


def chooser(fields: Sequence[str], stream: Stream, tasks: int) -> Chooser:
    """Return the function that chooses the task of a tuple's key."""
    key, each = key_of(fields, stream), [(task,) for task in range(tasks)]
    return lambda values, _task: each[task_of(key(values), tasks)]
