"""One file read line by line, and a position in it that finds it again.

A name does not find a file again after a rotation. An inode does not find it after its number was
given to another file, or after the file was truncated and rewritten. So a position also has digests
of the file's first bytes and of the last bytes before the offset: a file holds a position when both
are unchanged. Neither sees that a file was replaced by one whose first KiB and last KiB before the
offset are the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Self, TypedDict

import msgspec
from pydantic import Field

from sequitur.base.log import Logger
from sequitur.base.units import Duration
from sequitur.errors import LostFileError, PositionError
from sequitur.producer.sources._head import (
    CHUNK_BYTES,
    HEAD_BYTES,
    digest,
    end_of_hole,
    head_at,
    sample,
)
from sequitur.producer.sources._lines import LineBatch, LineSplitter, tell_holes
from sequitur.producer.sources._rotation import Generation, OlderGenerations
from sequitur.producer.sources._source import CommonSettings, SourceStatistics, pause

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.producer.sources._lines import EventParser
    from sequitur.producer.sources._source import Intake, IntakeTicket, Pause

_log: Final = Logger(__name__)
_SAMPLE_BYTES: Final = HEAD_BYTES
OnLostFile = Literal["continue", "fail"]


class LineFile:
    """An open file, and how far it was read."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._head_offset, self._head = head_at(self._file)
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
        self._lines_tail = b""  # the last bytes of the lines returned
        self._splitter = LineSplitter(limit_bytes)
        self._is_in_hole = self._ends_in_hole = False
        self._hole_modified_ns = 0  # when the file was last written before that hole was read

    def seek(self, position: FilePosition) -> bool:
        """Go on from a position; return False, and do nothing, if the file does not hold it."""
        head = os.pread(self._file, position.head_length, position.head_offset or 0)
        first = max(0, position.offset - _SAMPLE_BYTES)
        tail = os.pread(self._file, position.offset - first, first)
        if (
            len(tail) < position.offset - first
            or digest(head) != position.head
            or digest(tail) != position.tail
        ):
            return False
        self._begin_at(position.offset, position.line, tail, within_line=bool(position.within_line))
        return True

    def _begin_at(self, offset: int, line: int, tail: bytes, *, within_line: bool) -> None:
        """Read on behind the lines that were returned, of which these are the last bytes."""
        self._read_to = offset
        self._tail = self._lines_tail = tail
        self._splitter = LineSplitter(
            self._limit_bytes, offset=offset, line=line, within_line=within_line
        )
        self._is_in_hole = self._ends_in_hole = False

    def seek_end_of_copy(self, position: FilePosition) -> bool:
        """Go to the end, if the file is the beginning of what was read up to a position.

        A file copied before it was cut is one, when lines came between the copy and the cut.
        """
        size = os.fstat(self._file).st_size
        if not 0 < size <= position.offset:
            return False
        head = os.pread(self._file, position.head_length, position.head_offset or 0)
        if digest(head) != position.head:
            return False
        tail = os.pread(self._file, _SAMPLE_BYTES, max(0, size - _SAMPLE_BYTES))
        self._begin_at(size, position.line, tail, within_line=False)
        return True

    def read(self) -> LineBatch | ReadEnd:
        """Return the next lines, or no lines if the next one is not whole. Blocks on the disk.

        The last bytes read before are read again. Else a file that was cut and has grown beyond
        that place would give the middle of a line. An empty file has no bytes to read again: if it
        was written, it may have been cut, too.

        A writer may fill a hole at the end from its beginning, if a file gets its blocks before its
        lines. So once the file is written, the line before the hole is read again.
        """
        # Before the read: what is written during it makes another time.
        modified_ns = self._modified_ns()
        if self._was_empty and modified_ns != self._opened_modified_ns:
            return ReadEnd.OVERWRITTEN
        if self._ends_in_hole and modified_ns != self._hole_modified_ns:
            if self._is_blank:
                return ReadEnd.OVERWRITTEN
            self._begin_at(
                self._splitter.offset,
                self._splitter.line,
                self._lines_tail,
                within_line=self._splitter.within_line,
            )
        if not self._read_to and not self._has_its_head():
            return ReadEnd.OVERWRITTEN
        if self._is_in_hole or not self._read_to:
            self._skip_hole(modified_ns)
        buffer = os.pread(
            self._file, len(self._tail) + CHUNK_BYTES, self._read_to - len(self._tail)
        )
        if not buffer.startswith(self._tail):
            return ReadEnd.OVERWRITTEN
        data = buffer[len(self._tail) :]
        if not data:
            self._modified_at_end_ns = modified_ns
            return ReadEnd.AT_END
        self._take_head(data)
        self._read_to += len(data)
        self._tail = buffer[-_SAMPLE_BYTES:]
        batch = self._splitter.feed(data)
        if not self._is_in_hole or data.strip(b"\0"):
            self._hole_modified_ns = modified_ns
        self._is_in_hole = data.endswith(b"\0")
        self._ends_in_hole = self._is_in_hole and len(data) < CHUNK_BYTES
        if batch.lines:
            end = len(buffer) - self._splitter.pending_length
            self._lines_tail = buffer[max(0, end - _SAMPLE_BYTES) : end]
        return batch

    def _skip_hole(self, modified_ns: int) -> None:
        """Pass over what the file system knows to be a hole: it may be larger than any disk."""
        end = end_of_hole(self._file, self._read_to)
        if end <= self._read_to + CHUNK_BYTES:
            return
        if not self._is_in_hole:
            self._hole_modified_ns = modified_ns
        self._is_in_hole = True
        self._ends_in_hole = end >= os.fstat(self._file).st_size
        self._splitter.feed_nulls(end - self._read_to)
        self._read_to = end
        self._tail = bytes(_SAMPLE_BYTES)

    @property
    def head(self) -> bytes:
        """Its first bytes behind a hole."""
        return self._head

    @property
    def has_rest(self) -> bool:
        """Whether there is a line whose newline has not come yet."""
        return bool(self._splitter.rest_length)

    def has_whole_rest(self, parser: EventParser) -> bool:
        """Return whether that line is surely whole although it has no newline."""
        line = self._splitter.rest
        is_cut = len(line) < self._splitter.rest_length
        return not is_cut and not self._splitter.within_line and parser.is_whole(line)

    def rest(self) -> dict[str, int]:
        """Return where that line is, and how long it is by now, for a log."""
        line = self._splitter
        return {"line": line.line, "byte": line.offset, "bytes": line.rest_length}

    def finish(self) -> LineBatch:
        """Return the last line if it has no newline; the bytes after it are appended to it."""
        batch = self._splitter.finish()
        if batch.end_offset > batch.first_offset:
            self._lines_tail = self._tail
        return batch

    def _has_its_head(self) -> bool:
        return os.pread(self._file, len(self._head), self._head_offset) == self._head

    def _take_head(self, data: bytes) -> None:
        """Complete the first bytes by what is read now."""
        seen = self._read_to - self._head_offset
        if not self._head:
            behind = data.lstrip(b"\0")
            self._head_offset = self._read_to + len(data) - len(behind)
            self._head = sample(behind)
        elif len(self._head) < _SAMPLE_BYTES and -len(data) < seen <= len(self._head):
            self._head = sample(self._head[: max(0, seen)] + data[max(0, -seen) :])

    def position(self, *, finished: bool = False) -> FilePosition:
        """Return the position after the last line that was returned.

        The bytes after that line may be half a line, which its writer takes back after a crash.
        """
        offset = self._splitter.offset
        head = self._head[: max(0, offset - self._head_offset)] if offset else self._head
        return FilePosition(
            name=self.path.name,
            device=self.device,
            inode=self.inode,
            offset=offset,
            line=self._splitter.line,
            within_line=self._splitter.within_line or msgspec.UNSET,
            modified_ns=self._opened_modified_ns if self._is_blank else self._modified_ns(),
            head_length=len(head),
            head=digest(head),
            head_offset=(head and self._head_offset) or msgspec.UNSET,
            tail=digest(self._lines_tail),
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

    def is_at(self, path: Path) -> bool:
        found = path.stat()
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    @property
    def is_removed(self) -> bool:
        return not os.fstat(self._file).st_nlink

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
        """Whether it was empty when it was opened, and nothing was read since."""
        return self._is_blank and not self._read_to

    @property
    def _is_blank(self) -> bool:
        """Whether it has nothing that is known, except perhaps a hole."""
        return not self._head and not self._splitter.offset

    def _modified_ns(self) -> int:
        return os.fstat(self._file).st_mtime_ns

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class ReadEnd(Enum):
    """Why there is nothing to read."""

    AT_END = "at the end"
    OVERWRITTEN = "what was read is no longer there"


async def read_lines(file: LineFile) -> LineBatch | ReadEnd:
    """`LineFile.read` in a thread, so that a slow disk does not stop the loop."""
    return await asyncio.to_thread(file.read)


class FilePosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file was read."""

    name: str  # its name then, for messages and for folders
    device: int  # its device then; devices may get other numbers when the machine starts
    inode: int
    offset: int  # the first byte that was not read; it begins a line
    line: int  # the number of that line, from 1
    modified_ns: int  # when it was last written, as known then: tells which files are younger
    head_length: int  # how many of its first bytes `head` covers
    head: str  # digest of its first bytes behind a hole
    tail: str  # digest of the bytes before `offset`, at most 1 KiB
    # how long that hole is, if there is one
    head_offset: int | msgspec.UnsetType = msgspec.UNSET
    # set and true if the line before `offset` was returned before it had a newline
    within_line: bool | msgspec.UnsetType = msgspec.UNSET
    finished: bool = False  # the file was read to its end, and is no longer needed
    log: str = ""  # where the log is written that it belongs to, links followed; empty in folders
    # the generations of that log which come before it; None in positions of before there was such a
    # list
    older: OlderGenerations | None = None
    # in a folder: files that were read before, and whose names do not say so yet
    besides: tuple[FilePosition, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_of_empty_file(self) -> bool:
        """Whether the file was empty then, or one hole: nothing in it tells it from another."""
        return self.offset == 0 and self.head_length == 0

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, position: bytes) -> Self:
        try:
            return msgspec.json.decode(position, type=cls)
        except msgspec.DecodeError as error:
            raise PositionError(
                f"{position[:200]!r} is not a position in a file: {error}"
            ) from error


class LineFileSettings(CommonSettings):
    """Settings of `file` and `dir`."""

    title = "Files and folders"

    follow: bool = Field(
        default=True,
        description="Wait for more at the end of a file or folder. Otherwise stop there (file, "
        "dir)",
    )
    poll_interval: Duration = Field(
        default=timedelta(milliseconds=200),
        gt=timedelta(0),
        description="How often the daemon looks at a file or folder that has nothing new (file, "
        "dir)",
    )
    on_lost_file: Literal["continue", "fail"] = Field(
        default="continue",
        description="What to do when a file is gone before the daemon read it to its end (file, "
        "dir)",
    )


class FileOptions(TypedDict, total=False):
    """The options that `file` and `dir` share."""

    follow: bool
    poll_interval_s: float
    on_lost_file: OnLostFile
    pause: Pause


def file_options(settings: LineFileSettings) -> FileOptions:
    """Return the options of the settings."""
    return FileOptions(
        follow=settings.follow,
        poll_interval_s=settings.poll_interval.total_seconds(),
        on_lost_file=settings.on_lost_file,
    )


class LineFileSource:
    """The part that `file` and `dir` share: lines go to the intake, and losses are logged."""

    def __init__(
        self,
        kind: str,
        path: Path,
        parser: EventParser,
        *,
        follow: bool = True,
        poll_interval_s: float = 0.2,
        on_lost_file: OnLostFile = "continue",
        pause: Pause = pause,
    ) -> None:
        self.name = f"{kind}:{path}"
        self._path = path
        self._parser = parser
        self._follow = follow
        self._poll_interval_s = poll_interval_s
        self._on_lost_file = on_lost_file
        self._pause = pause
        self._statistics = SourceStatistics()

    def statistics(self) -> SourceStatistics:
        return self._statistics

    async def _hand_over(
        self, intake: Intake, file: LineFile, batch: LineBatch
    ) -> IntakeTicket | None:
        """Give a file's lines to the intake, with the position behind them."""
        if batch.holes:
            self._count(hole_bytes=tell_holes(batch, str(file.path)))
        if not batch.lines:
            return None
        records, refusals = self._parser.parse(batch)
        for refusal in refusals:
            line, offset = batch.first_line + refusal.index, batch.offset_of(refusal.index)
            where = f"{file.path} line {line} byte {offset} (inode {file.inode})"
            intake.refuse(refusal.raw, where, refusal.reason)
        position = self._position(file).encode()
        if records:
            return await intake.accept(records, position)
        await intake.note_position(position)
        return None

    def _position(self, file: LineFile) -> FilePosition:
        """Return how far all was read, when a file was read so far."""
        return file.position()

    def _lost(self, problem: str) -> None:
        """Tell that a file is gone, or was cut, before it was read to its end."""
        self._count(files_lost=1)
        if self._on_lost_file == "fail":
            raise LostFileError(problem)
        _log.error("source file lost", path=str(self._path), problem=problem)

    def _tell_left_behind(self, file: LineFile, what: str) -> bool:
        """Tell of bytes that were written to a file after it was left; return whether there are."""
        unread = file.unread_bytes
        if unread:
            path = str(file.path)
            _log.error(what, path=path, inode=file.inode, lost_bytes=unread)
            self._count(left_behind_bytes=unread)
        return bool(unread)

    def _count(self, **more: int) -> None:
        changed = {name: getattr(self._statistics, name) + count for name, count in more.items()}
        self._statistics = dataclasses.replace(self._statistics, **changed)
