"""The generations of a rotated file: which were read, and which comes next. No I/O.

Rotation leaves, beside `app.log`, older generations under names such as `app.log.1`,
`app.log-20261120`, `app.log.2026-11-20_10` or `app-2026-11-20.log`.

*What was not beside the file when it was opened is younger than it.* A position therefore lists
the generations that were there, by inode and by their first bytes. Neither times of last write nor
numbers can hide a generation: a clock may be set back, and numbers may count either way.

Names only give the order of several that are new: of plain numbers the higher one is older, or
the newer one where a rotation counts upwards, and all others are as old as their last write.
Where a number contradicts what was there before, that is reported.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import dataclasses
import errno
import hashlib
import heapq
import os
import re
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Self, TypedDict

import msgspec
from pydantic import Field

from sequitur.base.log import Logger
from sequitur.base.settings import Duration
from sequitur.errors import LostFileError, PositionError, SourceError
from sequitur.producer.sources._source import (
    CommonSettings,
    LineBatch,
    LineSplitter,
    SourceStatistics,
    pause,
    tell_holes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import IO

    from sequitur.producer.sources._source import EventParser, Intake, IntakeTicket, Pause


_log: Final = Logger(__name__)
RotatedNumbers = Literal["higher-is-older", "higher-is-newer"]

HEAD_BYTES: Final = 1 << 10
"""How much of a file's beginning tells it from others."""
MAX_LISTED: Final = 64
"""Generations that a position lists; of those beyond, the time of the last write decides."""

_STAMP: Final = r"[.\-_](?P<stamp>[0-9][0-9.\-_:TZ]*)"
_COMPRESSED: Final = re.compile(r"(?P<name>.+)\.(?:gz|bz2|xz|zst|lz4|Z)", re.DOTALL)
_NUMBER: Final = re.compile(r"(?!(?:19|20)[0-9]{2}$)[0-9]{1,5}")
"""A plain number; one with more digits is a date, and so is a year."""
_DATE_DIGITS: Final = 8
_MISNUMBERED: Final = "its number says that it is older than what was read before it came"
_COMPRESSED_UNREAD: Final = "it was compressed before it was read"


def digest(data: bytes) -> str:
    """Return 16 hexadecimal digits that stand for some bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Generation:
    """One file of a rotation."""

    name: str  # its name now; empty if it was removed
    device: int
    inode: int
    modified_ns: int  # when it was last written
    # the first `HEAD_BYTES` of its content behind a hole, uncompressed; None if they cannot be read
    head: bytes | None = b""

    def is_same_file(self, device: int, inode: int) -> bool:
        """Return whether it is the file with this device and inode."""
        return (self.device, self.inode) == (device, inode)


class Listed(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A generation as a position lists it. An inode alone may be another file's by now."""

    inode: int
    head_length: int  # how many of its first bytes `head` covers; -1 if they could not be read
    head: str  # digest of its first bytes
    name: str = ""  # its name, of one that is short: others may begin as it does

    @classmethod
    def of(cls, generation: Generation) -> Self:
        """List a generation."""
        head = generation.head
        if head is None:
            return cls(generation.inode, -1, "")
        name = generation.name if len(head) < HEAD_BYTES else ""
        return cls(generation.inode, len(head), digest(head), name)

    def is_of(self, generation: Generation) -> bool:
        """Return whether it is this file; of one that has grown only if its head was whole."""
        head = generation.head
        if self.inode != generation.inode:
            return False
        if head is None or self.head_length < HEAD_BYTES:
            return self.head_length == (-1 if head is None else len(head)) and (
                head is None or digest(head) == self.head
            )
        return digest(head) == self.head

    def may_be_of(self, generation: Generation) -> bool:
        """Return whether it may be this file, written on since."""
        head = generation.head
        return (
            self.inode == generation.inode
            and head is not None
            and 0 < self.head_length < len(head)
            and digest(head[: self.head_length]) == self.head
        )

    def is_content_of(self, generation: Generation) -> bool:
        """Return whether a compressed generation holds what this file held."""
        head = generation.head
        return head is not None and len(head) == self.head_length and digest(head) == self.head


class OlderGenerations(msgspec.Struct, frozen=True, omit_defaults=True):
    """The generations that are older than a file: those that were read, or there before it."""

    listed: tuple[Listed, ...] = ()
    before_ns: int = -1  # all that were last written up to then are older, too

    def __contains__(self, generation: Generation) -> bool:
        return generation.modified_ns <= self.before_ns or any(
            listed.is_of(generation) for listed in self.listed
        )

    def that_may_be(self, generation: Generation) -> Listed | None:
        """Return the one that this may be, written on since."""
        return next((listed for listed in self.listed if listed.may_be_of(generation)), None)

    def of(self, generations: Iterable[Generation]) -> Self:
        """Return these instead, the last written of them if they are too many."""
        known = sorted(generations, key=lambda found: found.modified_ns)
        left_out = known[:-MAX_LISTED]
        return type(self)(
            tuple(Listed.of(found) for found in known[-MAX_LISTED:]),
            max([self.before_ns, *(found.modified_ns for found in left_out)]),
        )


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A generation that was not read, and never will be."""

    generation: Generation
    reason: str


@dataclass(frozen=True, slots=True)
class Following:
    """What comes after a generation."""

    unread: tuple[Generation, ...]  # generations to be read, oldest first
    older: tuple[Generation, ...]  # all others that are there, the one before included
    passed_over: tuple[PassedOver, ...]  # those of them that were not read
    misnumbered: tuple[Generation, ...]  # those of them whose number says that they are younger


class Rotation:
    """The names of one file's generations."""

    def __init__(self, name: str, numbers: RotatedNumbers = "higher-is-older") -> None:
        stem, dot, suffix = name.rpartition(".")
        patterns = [re.escape(name) + _STAMP]
        if stem and dot:
            within = _STAMP.replace("stamp", "inner") + re.escape(dot + suffix)
            patterns.append(re.escape(stem) + within)
        self._pattern = re.compile("|".join(patterns))
        self._older_is = 1 if numbers == "higher-is-older" else -1

    def is_rotated(self, name: str) -> bool:
        """Return whether this is the name of an older generation, as rotation gives them."""
        return self._pattern.fullmatch(name) is not None

    def is_compressed(self, name: str) -> bool:
        """Return whether this is the name of an older generation that was compressed."""
        match = _COMPRESSED.fullmatch(name)
        return match is not None and self.is_rotated(match["name"])

    def in_order(self, generations: Iterable[Generation]) -> list[Generation]:
        """Return the generations, oldest first."""
        numbered: list[Generation] = []
        others: list[Generation] = []
        for generation in generations:
            (others if self._number(generation) is None else numbered).append(generation)
        numbered.sort(key=lambda found: -self._older_is * (self._number(found) or 0))
        others.sort(key=lambda found: (found.modified_ns, self._stamp(found.name)))
        return list(heapq.merge(others, numbered, key=lambda found: found.modified_ns))

    def following(
        self,
        current: Generation | None,
        generations: Sequence[Generation],
        older: OlderGenerations,
    ) -> Following:
        """Return what comes after `current`; after nothing at all if there is no current one."""
        before = [] if current is None else [Listed.of(current)]
        unread, read, passed_over = [], [], []
        for found in filter(lambda found: self.is_rotated(found.name), generations):
            is_current = current is not None and found.is_same_file(current.device, current.inode)
            if is_current or found in older or self._has_grown(found, current, older):
                read.append(found)
            elif self._is_beyond(found, current, 1):
                passed_over.append(PassedOver(found, _MISNUMBERED))
            elif problem := why_no_lines("", found.head or b"", is_text=True):
                passed_over.append(PassedOver(found, problem))
            else:
                unread.append(found)
        left = [each.generation for each in passed_over]
        waiting = [Listed.of(found) for found in unread]
        before += [*older.listed, *map(Listed.of, read)]
        compressed = []
        for found in filter(lambda found: self.is_compressed(found.name), generations):
            if any(listed.is_content_of(found) for listed in waiting):
                continue  # until that one is read, or gone
            compressed.append(found)
            if not (
                found in older
                or any(listed.is_content_of(found) for listed in before)
                or _is_without_lines(found, current)
            ):
                passed_over.append(PassedOver(found, _COMPRESSED_UNREAD))
        misnumbered = [found for found in read if self._is_beyond(found, current, -1)]
        return Following(
            unread=tuple(self.in_order(unread)),
            older=(*read, *left, *compressed),
            passed_over=tuple(passed_over),
            misnumbered=tuple(misnumbered),
        )

    def _has_grown(
        self, found: Generation, current: Generation | None, older: OlderGenerations
    ) -> bool:
        """Return whether a short older file was written on, and this is no other of its inode.

        A date stays with its file. A number moves on, so it tells by being on the older side.
        """
        listed = older.that_may_be(found)
        if listed is None:
            return False
        if self._number(found) is None:
            return listed.name == found.name
        return self._is_beyond(found, current, 1)

    def _is_beyond(self, other: Generation, current: Generation | None, side: int) -> bool:
        """Return whether a number is on the older side of the current one, or on the younger."""
        mine = None if current is None else self._number(current)
        number = self._number(other)
        if mine is None or number is None:
            return False
        return side * self._older_is * (number - mine) > 0

    def _stamp(self, name: str) -> tuple[int, ...]:
        match = self._pattern.fullmatch(name)
        stamp = "" if match is None else next(filter(None, match.groups()))
        return tuple(int(number) for number in re.findall("[0-9]+", stamp))

    def _number(self, generation: Generation) -> int | None:
        match = self._pattern.fullmatch(generation.name)
        stamp = "" if match is None else next(filter(None, match.groups()))
        return int(stamp) if _NUMBER.fullmatch(stamp) else None


def files_between(first: str, last: str, names: Iterable[str]) -> list[str]:
    """Return the files that a link pointed to on its way from one to the other, in order.

    Those are known only by a number, as `1.log` between `0.log` and `2.log`, or by a date.
    """
    shape, low = _numbers_of(first)
    high = _numbers_of(last)[1]
    if not (_NUMBER.fullmatch(first.partition(".")[0]) or _digits(first) >= _DATE_DIGITS):
        return []
    between = {
        name: numbers
        for name in names
        for found, numbers in [_numbers_of(name)]
        if found == shape and low < numbers < high
    }
    return sorted(between, key=lambda name: between[name])


def _numbers_of(name: str) -> tuple[str, tuple[int, ...]]:
    """Return what a name is without its numbers, and these."""
    return re.sub("[0-9]+", "0", name), tuple(int(found) for found in re.findall("[0-9]+", name))


def _digits(name: str) -> int:
    return sum(character.isdecimal() for character in name)


def _is_without_lines(compressed: Generation, current: Generation | None) -> bool:
    """Return whether it has no lines to be read; a program that compresses keeps the time."""
    if compressed.head is not None:
        return compressed.head == b""
    return current is not None and compressed.modified_ns <= current.modified_ns


def head_of(file: IO[bytes], start: int = 0) -> tuple[int, bytes]:
    """Return where the content of a file begins behind a hole at its start, and its first bytes.

    NULs would tell nothing: each generation that was copied and cut may begin with them, and those
    at the end may be overwritten.
    """
    offset = start
    while chunk := file.read(HEAD_BYTES if offset == start else CHUNK_BYTES):
        head = chunk.lstrip(b"\0")
        offset += len(chunk) - len(head)
        if head:
            return offset, _sample(head + file.read(max(0, HEAD_BYTES - len(head))))
    return offset, b""


_ARCHIVE: Final = re.compile(
    r".\.(?:gz|bz2|xz|zst|lz4|Z|br|lz|lzma|zip|7z|rar|tar|tgz|tbz2?|txz)$",
    re.DOTALL | re.IGNORECASE,
)
_MAGIC: Final = (
    *(b"\x1f\x8b", b"\x1f\x9d", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"),
    *(b"]\0\0", b"PK\x03\x04", b"PK\x05\x06", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"),
)
"""How compressed files begin: gzip, compress, xz, zstd, lz4, lzma; zip (also empty), 7z and rar."""
_BZIP2: Final = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
_WIDE: Final = re.compile(rb"(?:[^\0]\0){4}|(?:[^\0]\0{3}){3}")
"""How UTF-16 and UTF-32 begin without a mark: letters of ASCII, and NULs between them."""
_CONTROL: Final = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")
"""Control characters of no text; an escape stands in text with colours."""


def why_no_lines(name: str, head: bytes, *, is_text: bool) -> str | None:
    """Return why a file with this name and these first bytes has no lines; None if it may."""
    if _ARCHIVE.search(name) or head.startswith(_MAGIC) or _BZIP2.match(head):
        return "it is compressed or an archive: unpack it"
    if head.startswith(_UTF_16) or _WIDE.match(head):
        return "it is UTF-16 or UTF-32: convert it to UTF-8"
    if is_text or not _CONTROL.search(head):
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # its end may cut a character
        is_binary = b"\0" in head
    except UnicodeDecodeError:
        is_binary = True
    return "it is binary, and no lines of JSON" if is_binary else None


def require_uncompressed(path: Path) -> None:
    """Refuse a file that has no lines. One that is not there may come."""
    if not path.is_file():
        return
    with contextlib.suppress(OSError), path.open("rb") as file:
        require_lines(path, head_at(file.fileno())[1])


def require_lines(path: Path, head: bytes) -> None:
    """Refuse a file that has no lines by its first bytes."""
    if problem := why_no_lines("", head, is_text=True):
        raise SourceError(f"{path} has no lines: {problem}")


def _sample(content: bytes) -> bytes:
    return content[:HEAD_BYTES].rstrip(b"\0")


def _end_of_hole(descriptor: int, start: int) -> int:
    """Return where a file has data again, as far as the file system can tell."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError as error:  # nothing is behind the hole, or the file system cannot tell
        size = os.fstat(descriptor).st_size
        return max(start, size) if error.errno == errno.ENXIO else start


def head_at(descriptor: int) -> tuple[int, bytes]:
    """`head_of` of an open file, which need not read what the file system knows to be a hole."""
    start = _end_of_hole(descriptor, 0)
    os.lseek(descriptor, start, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False, buffering=0) as file:
        return head_of(file, start)


# One file read line by line, and a position in it that finds it again.
#
# A name does not find a file again after a rotation, and an inode not after its number was given to
# another file, or after the file was truncated and rewritten. So a position also has digests of the
# file's first bytes and of the last bytes before the offset: a file holds a position when both are
# unchanged. Neither sees that a file was replaced by one whose first KiB and last KiB before the
# offset are the same.


CHUNK_BYTES: Final = 256 << 10
_SAMPLE_BYTES: Final = HEAD_BYTES


OnLostFile = Literal["continue", "fail"]


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
    # set and true if the line before `offset` was given out before it had a newline
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
        """Return the position as the journal keeps it."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, position: bytes) -> Self:
        """Read a position from the journal."""
        try:
            return msgspec.json.decode(position, type=cls)
        except msgspec.DecodeError as error:
            raise PositionError(
                f"{position[:200]!r} is not a position in a file: {error}"
            ) from error


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
        self._given_tail = b""  # the last bytes of the lines given out
        self._splitter = LineSplitter(limit_bytes)
        self._is_in_hole = self._ends_in_hole = False
        self._hole_modified_ns = 0  # when the file was last written before that hole was read

    def seek(self, position: FilePosition) -> bool:
        """Go on from a position. False, and nothing done, if the file does not hold it."""
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
        """Read on behind the lines that were given out, of which these are the last bytes."""
        self._read_to = offset
        self._tail = self._given_tail = tail
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
        """Return the next lines; none of them if the next one is not whole yet. Blocks on the disk.

        The last bytes read before are read again: a file that was cut and has grown beyond where
        we were would otherwise give the middle of a line. Of a file that was empty nothing can be
        read again; that it was written says that it may have been cut, too.

        So it is with a hole at the end: a writer may fill it from its beginning, where a file is
        given its blocks before its lines. So once it is written the line before it is read again.
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
                self._given_tail,
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
            self._given_tail = buffer[max(0, end - _SAMPLE_BYTES) : end]
        return batch

    def _skip_hole(self, modified_ns: int) -> None:
        """Pass over what the file system knows to be a hole: it may be larger than any disk."""
        end = _end_of_hole(self._file, self._read_to)
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
        """Whether that line has surely come to its end all the same."""
        line = self._splitter.rest
        is_cut = len(line) < self._splitter.rest_length
        return not is_cut and not self._splitter.within_line and parser.is_whole(line)

    def rest(self) -> dict[str, int]:
        """Where that line stands, and how long it is by now, for a log."""
        line = self._splitter
        return {"line": line.line, "byte": line.offset, "bytes": line.rest_length}

    def finish(self) -> LineBatch:
        """Return the last line, if it has no newline: what is read after it is appended to it."""
        batch = self._splitter.finish()
        if batch.end_offset > batch.first_offset:
            self._given_tail = self._tail
        return batch

    def _has_its_head(self) -> bool:
        return os.pread(self._file, len(self._head), self._head_offset) == self._head

    def _take_head(self, data: bytes) -> None:
        """Complete the first bytes by what is read now."""
        seen = self._read_to - self._head_offset
        if not self._head:
            behind = data.lstrip(b"\0")
            self._head_offset = self._read_to + len(data) - len(behind)
            self._head = _sample(behind)
        elif len(self._head) < _SAMPLE_BYTES and -len(data) < seen <= len(self._head):
            self._head = _sample(self._head[: max(0, seen)] + data[max(0, -seen) :])

    def position(self, *, finished: bool = False) -> FilePosition:
        """Behind the last line that was given out.

        What came after that line may be half a line, which its writer takes back after a crash.
        """
        given = self._splitter.offset
        head = self._head[: max(0, given - self._head_offset)] if given else self._head
        return FilePosition(
            name=self.path.name,
            device=self.device,
            inode=self.inode,
            offset=self._splitter.offset,
            line=self._splitter.line,
            within_line=self._splitter.within_line or msgspec.UNSET,
            modified_ns=self._opened_modified_ns if self._is_blank else self._modified_ns(),
            head_length=len(head),
            head=digest(head),
            head_offset=(head and self._head_offset) or msgspec.UNSET,
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

    def is_at(self, path: Path) -> bool:
        """Return whether this name is of the same file."""
        found = path.stat()
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    @property
    def is_removed(self) -> bool:
        """Whether it has no name any more."""
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
        """There was nothing in it when it was opened, and nothing was read since."""
        return self._is_blank and not self._read_to

    @property
    def _is_blank(self) -> bool:
        """Nothing is known of it but a hole, if anything."""
        return not self._head and not self._splitter.offset

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


class FileOptions(TypedDict, total=False):
    """What `file` and `dir` are told alike."""

    follow: bool
    poll_interval_s: float
    on_lost_file: OnLostFile
    pause: Pause


def file_options(settings: LineFileSettings) -> FileOptions:
    """Return what the settings say for both."""
    return FileOptions(
        follow=settings.follow,
        poll_interval_s=settings.poll_interval.total_seconds(),
        on_lost_file=settings.on_lost_file,
    )


class LineFileSource:
    """What `file` and `dir` do alike, with the lines of a file and with what goes wrong."""

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
        """Return what went wrong so far."""
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
