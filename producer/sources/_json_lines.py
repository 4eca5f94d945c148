r"""Events out of lines of JSON. No I/O.

A line's bytes are the event's value, untouched: they are checked to be one JSON value in UTF-8, and
not rewritten. The line ends with `\n` or `\r\n`; blank lines are no events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sequitur.producer._event_id import EVENT_ID_HEADER
from sequitur.producer._record import Record
from sequitur.producer.sources._errors import KeySpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.producer.sources._line_splitter import LineBatch

_json_value: Final = msgspec.json.Decoder(msgspec.Raw)
_json_string: Final = msgspec.json.Decoder(str)
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<lone>\\u[dD][89a-fA-F]..)|\\.", re.DOTALL
)
_NO_JSON: Final = (msgspec.DecodeError, RecursionError)


class JsonField:
    """One field of a JSON value, found without building the rest of it.

    Of equal names the last counts.

    Args:
        path: Names from the top of the value down, divided by dots.
    """

    def __init__(self, path: str) -> None:
        names = path.split(".")
        if not all(names):
            raise KeySpecError(f"{path!r}: expected names divided by dots, such as meta.host")
        kind: Any = msgspec.Raw
        for name in reversed(names):
            kind = msgspec.defstruct(
                "Field",
                [("found", kind | msgspec.UnsetType, msgspec.UNSET)],
                rename={"found": name},
                gc=False,
            )
        self._decoder = msgspec.json.Decoder(kind)
        self._depth = len(names)
        self.path = path

    def of(self, value: bytes) -> bytes | None:
        """Return the field as written, None where there is none.

        Raises:
            msgspec.DecodeError: `value` is no JSON.
        """
        try:
            node: Any = self._decoder.decode(value)
        except msgspec.ValidationError:  # something on the way is no object
            _json_value.decode(value)
            return None
        for _ in range(self._depth):
            node = node.found
            if node is msgspec.UNSET:
                return None
        found = bytes(node)
        return None if found == b"null" else found

    def text_of(self, value: bytes) -> bytes | None:
        """`of`, but of a string its characters in UTF-8, without quotes and escapes."""
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


def _characters(written: bytes) -> bytes:
    """Return the characters of a string of JSON, in UTF-8."""
    return _json_string.decode(written).encode() if b"\\" in written else written[1:-1]


def parse_key(text: str) -> JsonField:
    """Read the setting `key`: `json:host`, `json:meta.host`.

    Raises:
        KeySpecError: It is not of this form.
    """
    kind, _, path = text.partition(":")
    if kind != "json" or not path or not all(path.split(".")):
        raise KeySpecError(f"{text!r}: expected json:<path>, such as json:host or json:meta.id")
    return JsonField(path)


def parse_header(text: str) -> tuple[str, JsonField]:
    """Read one of the setting `header`: `ce_id=json:id`.

    Raises:
        KeySpecError: It is not of this form, or the name is the one of our own ids.
    """
    name, equals, where = text.partition("=")
    if not (name and equals):
        raise KeySpecError(f"header {text!r}: expected NAME=json:<path>, such as ce_id=json:id")
    if name == EVENT_ID_HEADER:
        raise KeySpecError(f"header {text!r}: {name} holds the event id that the producer gives")
    return name, parse_key(where)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that is no event.

    Attributes:
        index: Its place in the batch.
        raw: Its bytes, cut at the limit.
        reason: Why.
    """

    index: int
    raw: bytes
    reason: str


class EventParser:
    """Makes events of lines.

    Args:
        key: Where their keys stand; None for events without a key.
        limit_bytes: The longest event, for the message of a refusal.
        headers: Names of headers, and where their values stand; one without a value is left out.
    """

    is_text = False
    """Whether lines are taken as they are."""

    def __init__(
        self,
        key: JsonField | None,
        limit_bytes: int,
        headers: Sequence[tuple[str, JsonField]] = (),
    ) -> None:
        self.limit_bytes = limit_bytes
        self._key = key
        self._headers = headers

    def parse(
        self, batch: LineBatch, key: bytes | None = None
    ) -> tuple[list[Record], list[Refusal]]:
        """Return the events of a batch, and what is none. `key`, if given, is the key of all."""
        records = []
        refusals = []
        for index, line in enumerate(batch.lines):
            if index in batch.overlong:
                reason = self.too_long(batch.overlong[index])
                refusals.append(Refusal(index, line, reason))
                continue
            value = line[:-1] if line.endswith(b"\r") else line
            parsed = self.parse_value(value, key)
            if isinstance(parsed, Record):
                records.append(parsed)
            elif value.strip():
                refusals.append(Refusal(index, line, parsed))
        return records, refusals

    def parse_value(self, value: bytes, key: bytes | None = None) -> Record | str:
        """Return the event with this value, or why it is none."""
        try:
            if not value.isascii():
                value.decode()
            if key is None and self._key is not None:
                key = self._key.text_of(value)
            else:
                _json_value.decode(value)
            headers = tuple(
                (name, text)
                for name, field in self._headers
                if (text := field.text_of(value)) is not None
            )
        except UnicodeDecodeError as error:
            return f"no UTF-8: byte 0x{value[error.start]:02x} at {error.start}"
        except _NO_JSON as error:
            lone = _lone_surrogate(value)
            return f"no JSON: {error}" if lone is None else lone
        return Record(value=value, key=key, headers=headers)

    def is_value(self, body: bytes) -> bool:
        """Return whether all of it is one JSON value that fits, and not several, one a line."""
        if len(body) > self.limit_bytes:
            return False
        try:
            _json_value.decode(body)
        except _NO_JSON:
            return False
        return True

    def too_long(self, length: int) -> str:
        """Return why a line of `length` bytes is no event."""
        return f"too long: {length} bytes, at most {self.limit_bytes}"


def _lone_surrogate(value: bytes) -> str | None:
    """Return where half a character is, which some programs write, and no UTF-8 can hold."""
    for escape in _ESCAPE.finditer(value):
        if escape["lone"]:
            text = escape["lone"].decode(errors="replace")
            return f"a lone surrogate is no character: {text} (byte {escape.start()})"
    return None


class TextParser(EventParser):
    """Makes events of lines of any bytes; blank ones are none.

    Args:
        limit_bytes: The longest event.
    """

    is_text = True

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(None, limit_bytes)

    def parse_value(self, value: bytes, key: bytes | None = None) -> Record | str:
        """Return the event with this value; a blank one is none."""
        return Record(value=value, key=key) if value.strip() else "blank"

    def is_value(self, body: bytes) -> bool:
        """Return False: text is lines."""
        del body
        return False
