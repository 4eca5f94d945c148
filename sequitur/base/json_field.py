"""Fields of JSON values: how settings name them, and what values have instead of a field.

A setting names a field by `json:` and one of two forms:

- `a.b`: the member `b` of the member `a`; where a value has none, the member `a.b`, as ECS and
  OpenTelemetry write it; where it has none either, names that are joined in part, those joined
  least first.
- `/a.b/0`: a JSON Pointer (RFC 6901), exactly one place. `~1` stands for `/`, `~0` for `~`; a
  number is an index where the pointer has reached an array.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from sequitur.errors import KeySpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Node = TypeVar("Node")
    Members = Callable[[Node, str, int | None], Iterable[Node]]

_EXPECTED: Final = "expected names divided by dots (meta.host) or a JSON Pointer (/meta/host.name)"
_WRONG_ESCAPE: Final = re.compile(r"~(?![01])")
_NAMES_WITHOUT_PARTS: Final = 2
"""With so many names, there is no way to join only some of them."""
_INDEX: Final = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z")


@dataclass(frozen=True, slots=True)
class FieldPath:
    names: tuple[str, ...]  # from the top down
    is_pointer: bool = False  # whether names are exact, and may be an index

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what follows `json:` in a setting.

        Raises:
            ValueError: It is no path; it says why not.
        """
        if not text.startswith("/"):
            names = tuple(text.split("."))
            if not all(names):
                raise ValueError(_EXPECTED)
            return cls(names)
        if _WRONG_ESCAPE.search(text):
            raise ValueError("in a JSON Pointer 0 (for ~) or 1 (for /) follows ~")
        names = tuple(name.replace("~1", "/").replace("~0", "~") for name in text[1:].split("/"))
        return cls(names, is_pointer=True)

    @classmethod
    def of(cls, names: tuple[str, ...]) -> Self:
        """Return the path along these names, in the short form if none contains a dot."""
        is_pointer = names[0].startswith("/") or any(not name or "." in name for name in names)
        return cls(names, is_pointer)

    def __str__(self) -> str:
        if not self.is_pointer:
            return ".".join(self.names)
        escaped = (name.replace("~", "~0").replace("/", "~1") for name in self.names)
        return "".join(f"/{name}" for name in escaped)


def first_at(
    node: Node, names: tuple[str, ...], members: Members[Node], *, is_pointer: bool
) -> Node | None:
    """Return the first node that a path leads to, None where there is none.

    Args:
        node: Where the path begins.
        names: The names of the path.
        members: Gives the members of a node that have a name, or the one item that has an index,
            if the name is one; no nulls.
        is_pointer: Whether the path is a JSON Pointer.
    """
    if is_pointer:
        return _first_along(node, names, members, most_joined=1, is_pointer=True)
    found = _first_along(node, names, members, most_joined=1)
    if found is None and len(names) > 1:
        found = _first_along(node, (".".join(names),), members, most_joined=1)
    if found is None and len(names) > _NAMES_WITHOUT_PARTS:
        found = _first_along(node, names, members, most_joined=len(names) - 1)
    return found


def _first_along(
    node: Node,
    names: tuple[str, ...],
    members: Members[Node],
    *,
    most_joined: int,
    is_pointer: bool = False,
) -> Node | None:
    if not names:
        return node
    for joined in range(1, min(most_joined, len(names)) + 1):
        name = ".".join(names[:joined])
        index = int(name) if is_pointer and _INDEX.match(name) else None
        for child in members(node, name, index):
            found = _first_along(
                child, names[joined:], members, most_joined=most_joined, is_pointer=is_pointer
            )
            if found is not None:
                return found
    return None


_json_value: Final = msgspec.json.Decoder(msgspec.Raw)
_json_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_json_array: Final = msgspec.json.Decoder(list[msgspec.Raw])
_json_string: Final = msgspec.json.Decoder(str)
_NO_JSON: Final = (msgspec.DecodeError, RecursionError)
_NULL: Final = b"null"


class JsonField:
    """One field of a JSON value, found without building the rest of it.

    Of equal names the last counts.
    """

    def __init__(self, path: FieldPath | str) -> None:
        try:
            self.path = path if isinstance(path, FieldPath) else FieldPath.parse(path)
        except ValueError as error:
            raise KeySpecError(f"{path!r}: {error}") from None
        self._decoder = _decoder_of(self.path)
        # The field may be behind an index, or have a name of joined parts.
        self._may_be_elsewhere = self.path.is_pointer or (
            len(self.path.names) > _NAMES_WITHOUT_PARTS
        )

    def of(self, value: bytes) -> bytes | None:
        """Return the field as written, None if it is missing or null."""
        if self._decoder is not None:
            try:
                top: Any = self._decoder.decode(value)
            except msgspec.ValidationError:  # a value on the way is no object
                pass
            else:
                found = self._in_structs(top)
                if found is not None or not self._may_be_elsewhere:
                    return found
        node = bytes(_json_value.decode(value))
        return first_at(node, self.path.names, _members, is_pointer=self.path.is_pointer)

    def _in_structs(self, top: Any) -> bytes | None:
        node = top
        for _ in self.path.names:
            node = node.found
            if node is msgspec.UNSET:
                break
        else:
            if (found := bytes(node)) != _NULL:
                return found
        flat = getattr(top, "flat", msgspec.UNSET)
        if flat is msgspec.UNSET:
            return None
        found = bytes(flat)
        return None if found == _NULL else found

    def text_of(self, value: bytes) -> bytes | None:
        """Like `of`, but a string gives its characters in UTF-8, without quotes and escapes."""
        found = self.of(value)
        if found is None or found[:1] != b'"':
            return found
        return _characters(found)

    def id_in(self, value: bytes | None) -> bytes | None:
        """Return the field as an id: `text_of`, of a string behind a quote; 1 is not "1".

        None also where there is no value, or no JSON, or no UTF-8.
        """
        if value is None:
            return None
        try:
            found = self.of(value)
            if found is None or found[:1] != b'"':
                return found
            return b'"' + _characters(found)
        except (UnicodeDecodeError, *_NO_JSON):
            return None


def _decoder_of(path: FieldPath) -> msgspec.json.Decoder[Any] | None:
    """Return a decoder that finds most fields in one pass; None if a name needs escapes in JSON."""
    kind: Any = msgspec.Raw
    try:
        for number, name in reversed(list(enumerate(path.names))):
            fields = [("found", kind | msgspec.UnsetType, msgspec.UNSET)]
            names = {"found": name}
            if number == 0 and len(path.names) > 1 and not path.is_pointer:
                fields.append(("flat", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET))
                names["flat"] = ".".join(path.names)
            kind = msgspec.defstruct("Field", fields, rename=names, gc=False)
        return msgspec.json.Decoder(kind)
    except ValueError:
        return None


def _members(node: bytes, name: str, index: int | None) -> tuple[bytes, ...]:
    found: msgspec.Raw | None = None
    if node[:1] == b"{":
        found = _json_object.decode(node).get(name)
    elif node[:1] == b"[" and index is not None:
        items = _json_array.decode(node)
        found = items[index] if index < len(items) else None
    return () if found is None or (child := bytes(found)) == _NULL else (child,)


def _characters(written: bytes) -> bytes:
    """Return the characters of a JSON string, in UTF-8."""
    return _json_string.decode(written).encode() if b"\\" in written else written[1:-1]


def parse_key(text: str) -> JsonField:
    """Read the setting `key`: `json:host`, `json:meta.host`, `json:/meta/host.name`."""
    kind, _, path = text.partition(":")
    try:
        if kind == "json" and path:
            return JsonField(FieldPath.parse(path))
    except ValueError as error:
        why = f" ({error})"
    else:
        why = ""
    raise KeySpecError(
        f"{text!r}: expected json:<path>, such as json:host, json:meta.id or json:/host.name{why}"
    )


_MOST_NAMED: Final = 20
_MOST_SHOWN: Final = 40
_DEEPEST: Final = 3
_TOLD_EACH_S: Final = 60.0


def documents_of(values: Iterable[bytes | None]) -> list[dict[str, Any]]:
    return [found for one in values if isinstance(found := _document(one), dict)]


def _document(value: bytes | None) -> Any:
    try:
        return json.loads((value or b"").decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def value_at(document: Any, names: tuple[str, ...], *, is_pointer: bool) -> Any:
    """Return the field of a parsed document; None if it is missing."""
    return first_at(document, names, _children, is_pointer=is_pointer)


def _children(node: Any, name: str, index: int | None) -> tuple[Any, ...]:
    child = None
    if isinstance(node, dict):
        child = node.get(name)
    elif isinstance(node, list) and index is not None and index < len(node):
        child = node[index]
    return () if child is None else (child,)


def which_fields(documents: Sequence[dict[str, Any]]) -> str:
    """Return the sentence that names the fields of JSON objects, as `json:` takes them."""
    if not documents:
        return "and their values are not JSON objects"
    paths = (str(FieldPath.of(one)) for each in documents for one in _paths(each))
    return which_names(paths, "field")


def _paths(
    node: dict[str, Any], above: tuple[str, ...] = (), depth: int = 1
) -> Iterator[tuple[str, ...]]:
    for name, value in node.items():
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from _paths(value, (*above, name), depth + 1)
        else:
            yield (*above, name)


def which_names(names: Iterable[str], kind: str) -> str:
    """Return the sentence that names the different names, in the order in which they came."""
    different = list(dict.fromkeys(names))
    if not different:
        return f"and they have no {kind}s"
    more = len(different) - _MOST_NAMED
    listed = ", ".join(map(_in_line, different[:_MOST_NAMED]))
    listed += f" and {more:,} more" if more > 0 else ""
    return f"and they have the {kind}{'s' if len(different) > 1 else ''} {listed}"


def _in_line(name: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in cut(name))


def cut(text: str) -> str:
    """Shorten a text that is too long for a log line."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


class FieldWatch:
    """Warns about a field that no event has had: at once, then once a minute until one has it."""

    def __init__(
        self,
        what: str,
        tell: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_seen = False
        self._what = what
        self._tell = tell
        self._clock = clock
        self._events = 0
        self._told_s: float | None = None

    def look(self, events: int, *, has: bool, instead: Callable[[], str]) -> None:
        """Take note of some events.

        Args:
            events: How many they are.
            has: Whether any has the field.
            instead: Says what they have instead.
        """
        self.is_seen |= has
        self._events += events
        if self.is_seen or not self._events:
            return
        now_s = self._clock()
        if self._told_s is None or now_s - self._told_s >= _TOLD_EACH_S:
            self._told_s = now_s
            count = f"none of {self._events:,} events has" if self._events > 1 else "no event has"
            self._tell(f"{count} {self._what}, {instead()}")


class _TwiceError(Exception):
    """An object has one name twice."""


def name_twice_in(document: bytes | str) -> str | None:
    """Return a name that an object in a document has twice, at any depth; None without one."""
    try:
        json.loads(document, object_pairs_hook=_once_each)
    except _TwiceError as error:
        return str(error)
    return None


def _once_each(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _TwiceError(name)
        seen.add(name)
