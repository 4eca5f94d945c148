r"""Events out of lines of JSON. No I/O.

A line's bytes are the event's value, untouched: they are checked to be one JSON value in UTF-8, and
not rewritten. The line ends with `\n` or `\r\n`; blank lines are no events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from sequitur.base.json_field import JsonField, parse_key
from sequitur.errors import KeySpecError
from sequitur.kafka.event_id import EVENT_ID_HEADER
from sequitur.producer._record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.producer.sources._line_splitter import LineBatch

_json_value: Final = msgspec.json.Decoder(msgspec.Raw)
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<lone>\\u[dD][89a-fA-F]..)|\\.", re.DOTALL
)
_NO_JSON: Final = (msgspec.DecodeError, RecursionError)


def parse_header(text: str) -> tuple[str, JsonField]:
    """Read one of the setting `header`: `ce_id=json:id`."""
    name, equals, where = text.partition("=")
    if not (name and equals):
        raise KeySpecError(f"header {text!r}: expected NAME=json:<path>, such as ce_id=json:id")
    if name == EVENT_ID_HEADER:
        raise KeySpecError(f"header {text!r}: {name} holds the event id that the producer gives")
    return name, parse_key(where)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that is no event."""

    index: int  # its place in the batch
    raw: bytes
    reason: str


class EventParser:
    """Makes events of lines."""

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
    """Makes events of lines of any bytes; blank ones are none."""

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
