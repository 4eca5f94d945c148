r"""Lines out of bytes, with where each one stood, and events out of lines of JSON. No I/O.

A line's bytes are the event's value, untouched: they are checked to be one JSON value in UTF-8, and
not rewritten. The line ends with `\n` or `\r\n`; blank lines are no events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from sequitur.base.json_field import JsonField, parse_key
from sequitur.errors import KeySpecError
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.producer._record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class LineBatch:
    r"""Lines that follow one another."""

    # their bytes without the newline; a `\r` before it is still there. Those of `overlong` are cut
    # at the limit
    lines: list[bytes]
    first_line: int  # number of the first, from 1
    first_offset: int  # where the first begins, in bytes from the beginning
    end_offset: int  # where the next line begins
    # index to full length, of lines beyond the limit
    overlong: Mapping[int, int] = field(default_factory=dict)

    def offset_of(self, index: int) -> int:
        """Return where a line begins, in bytes from the beginning."""
        lengths = (
            self.overlong.get(place, len(line)) + 1
            for place, line in enumerate(islice(self.lines, index))
        )
        return self.first_offset + sum(lengths)


class LineSplitter:
    """Cuts bytes into lines. A line that never ends takes no more memory than the limit."""

    def __init__(self, limit_bytes: int, *, offset: int = 0, line: int = 1) -> None:
        self._limit_bytes = limit_bytes
        self._offset = offset
        self._line = line
        self._pending = bytearray()
        self._pending_length = 0

    @property
    def offset(self) -> int:
        """Where the first line begins that was not given out yet."""
        return self._offset

    @property
    def line(self) -> int:
        """Number of the first line that was not given out yet."""
        return self._line

    @property
    def pending_length(self) -> int:
        """Bytes of the line whose newline has not come yet."""
        return self._pending_length

    def feed(self, data: bytes) -> LineBatch:
        """Return the lines that end in `data`."""
        first, *others = data.split(b"\n")
        self._keep(first)
        if not others:
            return self._batch([], {})
        lines = [bytes(self._pending), *others[:-1]]
        overlong = {}
        if self._pending_length > self._limit_bytes:
            overlong[0] = self._pending_length
        if len(data) > self._limit_bytes:
            for index, line in enumerate(lines):
                if index and len(line) > self._limit_bytes:
                    overlong[index] = len(line)
                    lines[index] = line[: self._limit_bytes]
        end = self._offset + self._pending_length + len(data) - len(first) - len(others[-1])
        self._pending.clear()
        self._pending_length = 0
        self._keep(others[-1])
        return self._batch(lines, overlong, end)

    def finish(self) -> LineBatch:
        """Return the last line, if it has no newline; no bytes can follow."""
        if not self._pending_length:
            return self._batch([], {})
        length = self._pending_length
        overlong = {0: length} if length > self._limit_bytes else {}
        line = bytes(self._pending)
        self._pending.clear()
        self._pending_length = 0
        return self._batch([line], overlong, self._offset + length)

    def _keep(self, data: bytes) -> None:
        room = self._limit_bytes - len(self._pending)
        self._pending += data[:room]
        self._pending_length += len(data)

    def _batch(
        self, lines: list[bytes], overlong: Mapping[int, int], end: int | None = None
    ) -> LineBatch:
        end = self._offset if end is None else end
        batch = LineBatch(lines, self._line, self._offset, end, overlong)
        self._offset = end
        self._line += len(lines)
        return batch


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
