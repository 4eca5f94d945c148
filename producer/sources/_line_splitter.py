"""Lines out of chunks of bytes, with where each one stood. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
