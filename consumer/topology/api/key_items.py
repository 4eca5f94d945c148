"""The map and the list of a key: read, changed and undone entry by entry.

An entry stands at a *place* of its key: a letter, then the number in a list, or a letter for its
type and the name in a map. Places are in the order of numbers and names.
"""

from __future__ import annotations

import struct
import typing
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from sequitur.errors import KeyedStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sequitur.consumer.topology.api.keyed import Key


MAP, LIST = b"m", b"l"
_AFTER_MAP: Final = b"n"
_NUMBER: Final = struct.Struct(">Q")
_HALF: Final = 1 << 63
_MISSING: Final = object()
_N = TypeVar("_N")
_V = TypeVar("_V")


class KeyMap(Generic[_N, _V]):
    """The map of a key. Only the entries that a call touches are read and stored.

    Names are of the type that the bolt's `state_map` says. A value counts as it is when it is put:
    put it again after a change.
    """

    __slots__ = ("_entries", "_names")

    def __init__(self, entries: Entries, names: Names) -> None:
        self._entries = entries
        self._names = names

    def get(self, name: _N, default: Any = None) -> Any:
        """Return the value of a name, or the default.

        Raises:
            KeyedStateError: The name is not of the map's type.
        """
        found = self._entries.get(self._place(name))
        return default if found is _MISSING else found

    def put(self, name: _N, value: _V) -> None:
        """Set the value of a name.

        Raises:
            KeyedStateError: Name or value are not of the map's types, or the key would keep more
                than the bolt's `max_bytes`.
        """
        self._entries.put(self._place(name), value)

    def delete(self, name: _N) -> None:
        """Forget a name. Without such a name it does nothing."""
        self._entries.put(self._place(name), _MISSING)

    def range(self, low: _N | None = None, high: _N | None = None) -> Iterator[tuple[_N, _V]]:
        """Yield names and values in the order of names. Changes meanwhile may be in it or not.

        Args:
            low: The first name. None: from the smallest one on.
            high: The name before which it ends. None: up to the largest one.
        """
        begin = MAP if low is None else self._place(low)
        end = _AFTER_MAP if high is None else self._place(high)
        for place, value in self._entries.range(begin, end):
            if not place.startswith(self._names.begin):
                raise KeyedStateError(
                    f"{name_of(place)!r:.100} is a name in the map, and its names are of type "
                    f"{self._names.kind.__name__} now: put it there under a name of that type, "
                    "with the bolt as it was"
                )
            yield name_of(place), value

    def clear(self) -> None:
        """Forget all names."""
        for place, _ in list(self._entries.stored(MAP, _AFTER_MAP)):
            self._entries.put(place, _MISSING)

    def _place(self, name: Any) -> bytes:
        try:
            if name.__class__ is self._names.kind:
                return self._names.begin + self._names.encode(name)
            why = f"it is not of type {self._names.kind.__name__}"
        except (struct.error, UnicodeEncodeError) as error:
            why = str(error)
        raise KeyedStateError(f"{name!r:.100} cannot be a name in the map: {why}")


class KeyList(Generic[_V]):
    """The list of a key. `len` and iteration work as on a list. An append stores one entry.

    A value counts as it is when it is appended.
    """

    __slots__ = ("_entries", "_key")

    def __init__(self, key: Key, entries: Entries) -> None:
        self._key = key
        self._entries = entries

    def append(self, value: _V) -> None:
        """Add a value at the end.

        Raises:
            KeyedStateError: It is not of the list's type, or the key would keep more than the
                bolt's `max_bytes`.
        """
        number = self._key.entry.more.end
        self._entries.put(_list_place(number), value)
        self._key.number_list(self._key.entry.more.begin, number + 1)

    def drop(self, count: int = 1) -> None:
        """Forget the first values, as many as there are up to a count."""
        more = self._key.entry.more
        begin = min(more.end, more.begin + max(0, count))
        for number in range(more.begin, begin):
            self._entries.put(_list_place(number), _MISSING)
        self._key.number_list(begin, more.end)

    def clear(self) -> None:
        """Forget all values."""
        self.drop(len(self))

    def __len__(self) -> int:
        more = self._key.entry.more
        return more.end - more.begin

    def __iter__(self) -> Iterator[_V]:
        for _, value in self._entries.range(LIST, MAP):
            yield value


def _list_place(number: int) -> bytes:
    return LIST + _NUMBER.pack(number)


class Names(NamedTuple):
    """The names of a map: their type, and how they are stored in their own order."""

    kind: type
    begin: bytes  # of their places
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    @classmethod
    def of(cls, kind: type) -> Names:
        return _NAMES[kind]


_NAMES: Final = {
    int: Names(
        *(int, b"mi"),
        lambda name: _NUMBER.pack(name + _HALF),
        lambda stored: _NUMBER.unpack(stored)[0] - _HALF,
    ),
    str: Names(str, b"ms", str.encode, bytes.decode),
    bytes: Names(bytes, b"mb", lambda name: name, lambda name: name),
}
_BY_BEGIN: Final = {one.begin: one for one in _NAMES.values()}


def name_of(place: bytes) -> Any:
    """Return the name of a place in a map."""
    return _BY_BEGIN[place[:2]].decode(place[2:])


def map_types(kind: Any) -> tuple[Any, Any]:
    """Return the types of a map's names and values.

    Raises:
        ValueError: It is not of the form `dict[str, VALUE]`, with names of another type or not.
    """
    found = typing.get_args(kind) if typing.get_origin(kind) is dict else ()
    if len(found) != 2 or found[0] not in _NAMES:  # noqa: PLR2004 - a name and a value
        raise ValueError("say dict[NAME, VALUE], where NAME is str, int or bytes")
    return found[0], found[1]


def list_type(kind: Any) -> Any:
    """Return the type of a list's values.

    Raises:
        ValueError: It is not of the form `list[VALUE]`.
    """
    found = typing.get_args(kind) if typing.get_origin(kind) is list else ()
    if len(found) != 1:
        raise ValueError("say list[VALUE]")
    return found[0]


class Entries:
    """The entries of a key, as a call sees them and changes them."""

    __slots__ = ("_key", "shown", "written")

    def __init__(self, key: Key) -> None:
        self._key = key
        self.written: dict[bytes, bytes | None] = {}  # by this call; None: is gone
        self.shown: dict[bytes, Any] = {}  # values that the bolt has seen or put

    def get(self, place: bytes) -> Any:
        if place in self.shown:
            return self.shown[place]
        stored = self.stored_at(place)
        return _MISSING if stored is None else self._show(place, stored)

    def put(self, place: bytes, value: Any) -> None:
        """Replace an entry; a missing value takes it away."""
        key = self._key
        key.check_call()
        stored = None if value is _MISSING else key.runner.encode_entry(place, value)
        before = self.stored_at(place)
        if before != stored:
            key.resize(_size(place, stored) - _size(place, before))
            self.written[place] = stored
        if value is _MISSING:
            self.shown.pop(place, None)
        else:
            self.shown[place] = value

    def stored_at(self, place: bytes) -> bytes | None:
        if place in self.written:
            return self.written[place]
        return self._key.runner.stored_at(self._key.stored, place)

    def stored(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._key.runner.stored(self._key.stored, low, high)
        return with_changes(rows, self.written, low, high)

    def range(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, Any]]:
        for place, stored in self.stored(low, high):
            if place in self.shown:
                yield place, self.shown[place]
            elif self.written.get(place, stored) == stored:
                yield place, self._show(place, stored)

    def _show(self, place: bytes, stored: bytes) -> Any:
        value = self.shown[place] = self._key.runner.decode_entry(place, stored)
        return value


def _size(place: bytes, stored: bytes | None) -> int:
    return 0 if stored is None else len(place) + len(stored)


def with_changes(
    rows: Iterator[tuple[bytes, bytes]],
    changes: Mapping[bytes, bytes | None],
    low: bytes,
    high: bytes,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield rows that are in order, with what has changed of them from `low` up to `high`."""
    changed = iter(sorted(one for one in changes.items() if low <= one[0] < high))
    place, stored = next(changed, (None, None))
    for row in rows:
        while place is not None and place < row[0]:
            if stored is not None:
                yield place, stored
            place, stored = next(changed, (None, None))
        if place != row[0]:
            yield row
    while place is not None:
        if stored is not None:
            yield place, stored
        place, stored = next(changed, (None, None))
