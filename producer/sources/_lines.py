r"""Lines out of bytes, with where each one stood, and events out of lines of JSON. No I/O.

A line's bytes are the event's value, untouched: they are checked to be one JSON value in UTF-8, and
not rewritten. The line ends with `\n` or `\r\n`; blank lines are no events.

A hole is a run of NULs that nobody wrote: a file that was cut while its writer kept its offset
begins with one (`copytruncate`), and a power cut leaves one where data did not reach the disk. The
NULs before a line are passed over; those within a line belong to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from sequitur.base.json_field import FieldWatch, JsonField, documents_of, parse_key, which_fields
from sequitur.base.log import Logger
from sequitur.errors import KeySpecError
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.producer._record import Record
from sequitur.producer.sources._dead_letter import first_bytes, squeezed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_log: Final = Logger(__name__)
_json_value: Final = msgspec.json.Decoder(msgspec.Raw)
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<lone>\\u[dD][89a-fA-F]..)|\\.", re.DOTALL
)
_NO_JSON: Final = (msgspec.DecodeError, RecursionError)
LOOKED_AT: Final = 20
"""Events of which the fields are listed."""
_APPENDED: Final = "appended to a line that was taken before it had a newline"


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
    # index to the NULs before that line; of a hole that no line follows, the number of lines
    holes: Mapping[int, int] = field(default_factory=dict)
    # whether the first goes on with a line that was returned before it had a newline
    is_appended: bool = False

    def offset_of(self, index: int) -> int:
        """Return where a line begins, in bytes from the beginning, behind a hole before it."""
        lengths = (
            self.holes.get(place, 0) + self.overlong.get(place, len(line)) + 1
            for place, line in enumerate(islice(self.lines, index))
        )
        return self.first_offset + sum(lengths) + self.holes.get(index, 0)

    @property
    def hole_bytes(self) -> int:
        return sum(self.holes.values())


class LineSplitter:
    """Cuts bytes into lines. A line or a hole that never ends takes no more memory than the limit.

    Args:
        limit_bytes: How long a line may be.
        offset: Where the bytes begin.
        line: Number of the first line.
        within_line: Whether that line was returned before it had a newline, and goes on here.
        holes: Whether NULs before a line are passed over. What is sent, and not stored, has none.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        offset: int = 0,
        line: int = 1,
        within_line: bool = False,
        holes: bool = True,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._offset = offset
        self._line = line
        self.within_line = within_line
        self._holes = holes
        self._pending = bytearray()
        self._length = 0
        self._hole = 0

    @property
    def offset(self) -> int:
        """Where the first line begins that was not returned yet."""
        return self._offset

    @property
    def line(self) -> int:
        """Number of the first line that was not returned yet."""
        return self._line

    @property
    def pending_length(self) -> int:
        """Bytes of the line whose newline has not come yet, and of the hole before it."""
        return self._hole + self._length

    @property
    def rest(self) -> bytes:
        """The line whose newline has not come yet, up to the limit."""
        return bytes(self._pending)

    @property
    def rest_length(self) -> int:
        """Bytes of that line, without a hole before it."""
        return self._length

    def feed(self, data: bytes) -> LineBatch:
        first, *others = data.split(b"\n")
        self._keep(first)
        if not others:
            return LineBatch([], self._line, self._offset, self._offset)
        end = self._offset + self.pending_length + len(data) - len(first) - len(others[-1])
        lines, overlong, holes = self._take_pending()
        lines += others[:-1]
        if self._holes and b"\0" in data:
            for index, line in enumerate(islice(lines, 1, None), start=1):
                if line.startswith(b"\0"):
                    lines[index] = line.lstrip(b"\0")
                    holes[index] = len(line) - len(lines[index])
        if len(data) > self._limit_bytes:
            for index, line in enumerate(islice(lines, 1, None), start=1):
                if len(line) > self._limit_bytes:
                    overlong[index] = len(line)
                    lines[index] = first_bytes(line, self._limit_bytes)
        batch = self._batch(lines, overlong, holes, end)
        self._keep(others[-1])
        return batch

    def feed_nulls(self, count: int) -> None:
        """Take so many NULs, which need not be in memory."""
        if self._holes and not self._length:
            self._hole += count
        elif self._length + count <= self._limit_bytes:
            self._keep(bytes(count))
        else:
            self._keep(bytes(self._limit_bytes))
            self._length += count - self._limit_bytes

    def finish(self) -> LineBatch:
        """Return the last line, if it has no newline; what follows is appended to that line."""
        end = self._offset + self.pending_length
        number, has_line = self._line, bool(self._length)
        lines, overlong, holes = self._take_pending()
        batch = self._batch(lines if has_line else [], overlong, holes, end)
        if has_line:
            self._line, self.within_line = number, True
        return batch

    def _keep(self, data: bytes) -> None:
        if self._holes and not self._length:
            line = data.lstrip(b"\0")
            self._hole += len(data) - len(line)
            data = line
        length = self._length + len(data)
        if length > self._limit_bytes:  # no event any more: what is kept is for the dead letters
            if self._length <= self._limit_bytes:
                self._pending[:] = squeezed(bytes(self._pending))
            data = squeezed(data.lstrip(b"\0") if self._pending.endswith(b"\0") else data)
        self._length = length
        self._pending += data[: self._limit_bytes - len(self._pending)]

    def _take_pending(self) -> tuple[list[bytes], dict[int, int], dict[int, int]]:
        """Return the line that was begun, its full length if it is too long, the hole before it."""
        line = bytes(self._pending)
        overlong = {0: self._length} if self._length > self._limit_bytes else {}
        holes = {0: self._hole} if self._hole else {}
        self._pending.clear()
        self._length = self._hole = 0
        return [line], overlong, holes

    def _batch(
        self, lines: list[bytes], overlong: Mapping[int, int], holes: Mapping[int, int], end: int
    ) -> LineBatch:
        is_appended = self.within_line and bool(lines)
        batch = LineBatch(lines, self._line, self._offset, end, overlong, holes, is_appended)
        self.within_line &= not lines
        self._offset = end
        self._line += len(lines)
        return batch


def tell_holes(batch: LineBatch, place: str) -> int:
    """Log that NULs were passed over, and return how many."""
    _log.warning(
        "NULs before lines passed over: a hole of a cut file or a power cut",
        place=place,
        first_line=batch.first_line + min(batch.holes),
        null_bytes=batch.hole_bytes,
    )
    return batch.hole_bytes


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
        self._unseen: dict[str | None, FieldWatch] = {}
        for name, where in ((None, key), *headers):
            if where is not None:
                what = f"the field json:{where.path}, {'the key' if name is None else name}"
                self._unseen[name] = FieldWatch(what, _log.warning)

    def parse(
        self, batch: LineBatch, key: bytes | None = None
    ) -> tuple[list[Record], list[Refusal]]:
        """Return the events of a batch, and the lines that are none; `key` is the key of all."""
        records = []
        refusals = []
        for index, line in enumerate(batch.lines):
            if index in batch.overlong:
                reason = self.too_long(batch.overlong[index])
                refusals.append(Refusal(index, line, reason))
                continue
            value = line[:-1] if line.endswith(b"\r") else line
            is_appended = batch.is_appended and not index
            parsed = _APPENDED if is_appended else self._parsed(value, key)
            if isinstance(parsed, Record):
                records.append(parsed)
            elif value.strip():
                refusals.append(Refusal(index, line, parsed))
        self._look(records)
        return records, refusals

    def parse_value(self, value: bytes, key: bytes | None = None) -> Record | str:
        """Return the event with this value, or why it is none."""
        parsed = self._parsed(value, key)
        if isinstance(parsed, Record):
            self._look([parsed])
        return parsed

    def _look(self, records: Sequence[Record]) -> None:
        """Tell of a key or header that no event has had."""

        def which() -> str:
            return which_fields(documents_of(one.value for one in records[:LOOKED_AT]))

        for name, watch in list(self._unseen.items()):
            has = any(
                one.key is not None if name is None else any(name == own for own, _ in one.headers)
                for one in records
            )
            watch.look(len(records), has=has, instead=which)
            if has:
                del self._unseen[name]

    def _parsed(self, value: bytes, key: bytes | None) -> Record | str:
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

    def is_whole(self, rest: bytes) -> bool:
        """Return whether a line without a newline has surely come to its end: a JSON object has.

        A number may get more digits, and a text more words.
        """
        return rest.lstrip().startswith(b"{") and isinstance(self.parse_value(rest), Record)

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
        return f"too long: {length} bytes, at most {self.limit_bytes}"


class TextParser(EventParser):
    """Makes events of lines of any bytes; blank ones are none."""

    is_text = True

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(None, limit_bytes)

    def _parsed(self, value: bytes, key: bytes | None) -> Record | str:
        return Record(value=value, key=key) if value.strip() else "blank"

    def is_whole(self, rest: bytes) -> bool:
        """Return False: there may be more of any text."""
        del rest
        return False

    def is_value(self, body: bytes) -> bool:
        """Return False: text is lines."""
        del body
        return False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that is no event."""

    index: int  # its place in the batch
    raw: bytes
    reason: str


def parse_header(text: str) -> tuple[str, JsonField]:
    """Read one of the setting `header`: `ce_id=json:id`."""
    name, equals, where = text.partition("=")
    if not (name and equals):
        raise KeySpecError(f"header {text!r}: expected NAME=json:<path>, such as ce_id=json:id")
    if name == EVENT_ID_HEADER:
        raise KeySpecError(f"header {text!r}: {name} holds the event id that the producer gives")
    return name, parse_key(where)


def _lone_surrogate(value: bytes) -> str | None:
    """Return where half a character is, which some programs write, and no UTF-8 can hold."""
    for escape in _ESCAPE.finditer(value):
        if escape["lone"]:
            text = escape["lone"].decode(errors="replace")
            return f"a lone surrogate is no character: {text} (byte {escape.start()})"
    return None
