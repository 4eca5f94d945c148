"""One file read line by line, and a position in it that finds it again.

A name does not find a file again after a rotation, and an inode not after its number was given to
another file, or after the file was truncated and rewritten. So a position also has digests of the
file's first bytes and of the last bytes before the offset: a file holds a position when both are
unchanged. Neither sees that a file was replaced by one whose first KiB and last KiB before the
offset are the same.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec
from pydantic import Field

from sequitur.base.settings import Duration
from sequitur.errors import PositionError
from sequitur.producer.sources._lines import LineBatch, LineSplitter
from sequitur.producer.sources._rotation import (
    HEAD_BYTES,
    Generation,
    OlderGenerations,
    digest,
)
from sequitur.producer.sources._source import CommonSettings

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.producer.sources._lines import EventParser
    from sequitur.producer.sources._source import Intake, IntakeTicket

CHUNK_BYTES: Final = 256 << 10
_SAMPLE_BYTES: Final = HEAD_BYTES


OnLostFile = Literal["continue", "fail"]


class LineFileSettings(CommonSettings):
    """Settings of `file` and `dir`."""

    title = "Files and folders"

    follow: bool = Field(
        default=True,
        description="Wait for more at the end of a file or folder, or stop (file, dir)",
    )
    poll_interval: Duration = Field(
        default=timedelta(milliseconds=200),
        gt=timedelta(0),
        description="Time between two looks at a file or folder with nothing new (file, dir)",
    )
    on_lost_file: Literal["continue", "fail"] = Field(
        default="continue",
        description="What to do when a file is gone before it was read to its end (file, dir)",
    )


class FilePosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file was read."""

    name: str  # its name then, for messages and for folders
    device: int  # its device then; devices may get other numbers when the machine starts
    inode: int
    offset: int  # the first byte that was not read; it begins a line
    line: int  # the number of that line, from 1
    modified_ns: int  # when it was last written, as known then: tells which files are younger
    head_length: int  # how many of its first bytes `head` covers
    head: str  # digest of its first bytes
    tail: str  # digest of the bytes before `offset`, at most 1 KiB
    finished: bool = False  # the file was read to its end, and is no longer needed
    log: str = ""  # where the log is written that it belongs to, links followed; empty in folders
    # the generations of that log which come before it; None in positions of before there was such a
    # list
    older: OlderGenerations | None = None

    @property
    def is_of_empty_file(self) -> bool:
        """Whether the file was empty then, so that nothing in it can tell it from another."""
        return self.offset == 0 and self.head_length == 0

    def encode(self) -> bytes:
        """Return the position as the journal keeps it."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, position: bytes) -> Self:
        """Read a position from the journal."""
        try:
            return msgspec.json.decode(position, type=cls)
        except msgspec.DecodeError as error:
            raise PositionError(f"{position[:200]!r} is no position in a file: {error}") from error


class ReadEnd(Enum):
    """Why there is nothing to read."""

    AT_END = "at the end"
    OVERWRITTEN = "what was read is no longer there"


class LineFile:
    """An open file, and how far it was read."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._head = os.pread(self._file, _SAMPLE_BYTES, 0)
        except OSError:
            self.close()
            raise
        stat = os.fstat(self._file)
        self.device, self.inode = stat.st_dev, stat.st_ino
        self._opened_modified_ns = stat.st_mtime_ns
        self._modified_at_end_ns: int | None = None
        self.log = ""
        self.older: OlderGenerations | None = None
        self._limit_bytes = limit_bytes
        self._read_to = 0
        self._tail = b""  # the last bytes read
        self._given_tail = b""  # the last bytes of the lines given out
        self._splitter = LineSplitter(limit_bytes)

    def seek(self, position: FilePosition) -> bool:
        """Go on from a position. False, and nothing done, if the file does not hold it."""
        head = os.pread(self._file, position.head_length, 0)
        first = max(0, position.offset - _SAMPLE_BYTES)
        tail = os.pread(self._file, position.offset - first, first)
        if (
            len(tail) < position.offset - first
            or digest(head) != position.head
            or digest(tail) != position.tail
        ):
            return False
        self._read_to = position.offset
        self._tail = self._given_tail = tail
        self._splitter = LineSplitter(self._limit_bytes, offset=position.offset, line=position.line)
        return True

    def seek_end_of_copy(self, position: FilePosition) -> bool:
        """Go to the end, if the file is the beginning of what was read up to a position.

        A file copied before it was cut is one, when lines came between the copy and the cut.
        """
        size = os.fstat(self._file).st_size
        if not 0 < size <= position.offset or size < position.head_length:
            return False
        if digest(os.pread(self._file, position.head_length, 0)) != position.head:
            return False
        self._read_to = size
        self._tail = self._given_tail = os.pread(
            self._file, _SAMPLE_BYTES, max(0, size - _SAMPLE_BYTES)
        )
        self._splitter = LineSplitter(self._limit_bytes, offset=size, line=position.line)
        return True

    def read(self) -> LineBatch | ReadEnd:
        """Return the next lines; none of them if the next one is not whole yet. Blocks on the disk.

        The last bytes read before are read again: a file that was cut and has grown beyond where
        we were would otherwise give the middle of a line. Of a file that was empty nothing can be
        read again; that it was written says that it may have been cut, too.
        """
        # Before the read: what is written during it makes another time.
        modified_ns = self._modified_ns()
        if self._was_empty and modified_ns != self._opened_modified_ns:
            return ReadEnd.OVERWRITTEN
        buffer = os.pread(
            self._file, len(self._tail) + CHUNK_BYTES, self._read_to - len(self._tail)
        )
        known = self._tail if self._read_to else self._head
        if not buffer.startswith(known):
            return ReadEnd.OVERWRITTEN
        data = buffer[len(self._tail) :]
        if not data:
            self._modified_at_end_ns = modified_ns
            return ReadEnd.AT_END
        if len(self._head) < _SAMPLE_BYTES and self._read_to <= len(self._head):
            self._head = (self._head[: self._read_to] + data)[:_SAMPLE_BYTES]
        self._read_to += len(data)
        self._tail = buffer[-_SAMPLE_BYTES:]
        batch = self._splitter.feed(data)
        if batch.lines:
            end = len(buffer) - self._splitter.pending_length
            self._given_tail = buffer[max(0, end - _SAMPLE_BYTES) : end]
        return batch

    def finish(self) -> LineBatch:
        """Return the last line, if it has no newline. Nothing may be read after it."""
        batch = self._splitter.finish()
        if batch.lines:
            self._given_tail = self._tail
        return batch

    def position(self, *, finished: bool = False) -> FilePosition:
        """Behind the last line that was given out."""
        return FilePosition(
            name=self.path.name,
            device=self.device,
            inode=self.inode,
            offset=self._splitter.offset,
            line=self._splitter.line,
            modified_ns=self._opened_modified_ns if self._was_empty else self._modified_ns(),
            head_length=len(self._head),
            head=digest(self._head),
            tail=digest(self._given_tail),
            finished=finished,
            log=self.log,
            older=self.older,
        )

    def generation(self, name: str) -> Generation:
        """Return what rotation has to know of it, under the name that it has now."""
        return Generation(name, self.device, self.inode, self._modified_ns(), self._head)

    def was_read_whole(self, path: Path) -> bool:
        """Return whether this name is of the same file, unchanged since its end was read."""
        # The file is open, so no other can have been given its inode.
        found = path.stat()
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) == (
            self.device,
            self.inode,
            self._read_to,
            self._modified_at_end_ns,
        )

    @property
    def unread_bytes(self) -> int:
        """Bytes behind what was read."""
        return max(0, os.fstat(self._file).st_size - self._read_to)

    def begins_with(self, other: LineFile) -> bool:
        """Return whether the other file begins with what was read of this one."""
        if self._head[: len(other._head)] != other._head[: len(self._head)]:
            return False
        length = os.fstat(other._file).st_size
        if not 0 < length <= self._read_to:
            return False
        for offset in range(0, length, CHUNK_BYTES):
            size = min(CHUNK_BYTES, length - offset)
            if os.pread(self._file, size, offset) != os.pread(other._file, size, offset):
                return False
        return True

    @property
    def _was_empty(self) -> bool:
        """There was nothing in it when it was opened, and nothing was read since."""
        return not self._head and not self._read_to

    def _modified_ns(self) -> int:
        return os.fstat(self._file).st_mtime_ns

    def close(self) -> None:
        """Let the file go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


async def read_lines(file: LineFile) -> LineBatch | ReadEnd:
    """`LineFile.read` in a thread, so that a slow disk does not stop the loop."""
    return await asyncio.to_thread(file.read)


async def hand_over(
    intake: Intake, parser: EventParser, file: LineFile, batch: LineBatch
) -> IntakeTicket | None:
    """Give a file's lines to the intake, with the position behind them."""
    if not batch.lines:
        return None
    records, refusals = parser.parse(batch)
    for refusal in refusals:
        line, offset = batch.first_line + refusal.index, batch.offset_of(refusal.index)
        where = f"{file.path} line {line} byte {offset} (inode {file.inode})"
        intake.refuse(refusal.raw, where, refusal.reason)
    position = file.position().encode()
    if records:
        return await intake.accept(records, position)
    await intake.note_position(position)
    return None
