"""The dead-letter file: one JSON object per line, with an event's place and the reason.

- It is opened for appending only, and no entry is ever taken away: its events are stored nowhere
  else. No entry is lost whose source position is in the journal.
- After a crash between a `sync` and the journal's next round, events come a second time. They are
  not written again: their entries are after the mark in the last position, or their ids are in the
  last part of the file.
- At the file's limit, and when its disk is full, the daemon ends. The position before the event
  stays in the journal, and so does an event that a broker refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from sequitur.base.process import sync
from sequitur.base.text import encodable
from sequitur.errors import DeadLettersFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

    from sequitur.kafka.record_batch import Header

MAX_RAW_BYTES: Final = 64 << 10
_LAST_BYTES: Final = 64 << 20
"""How much of the file is looked through for ids: more than a journal gives up at a time."""
_AN_ID: Final = "event "
"""So begins the place of an event that has an id, which no other ever has."""


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    source: str
    where: str
    reason: str
    raw: bytes | None
    raw_length: int
    at_ms: int
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


_entries: Final = msgspec.json.Decoder(_Entry)
_NULLS: Final = re.compile(rb"\0{2,}")


def first_bytes(raw: bytes, limit_bytes: int) -> bytes:
    """Return bytes, or if they are too many the first of them, with each run of NULs as one NUL."""
    return raw if len(raw) <= limit_bytes else squeezed(raw)[:limit_bytes]


def squeezed(raw: bytes) -> bytes:
    """Return bytes with each run of NULs as one NUL: a hole must not use up what can be kept."""
    return _NULLS.sub(b"\0", raw) if b"\0\0" in raw else raw


class DeadLetterFile:
    """An open dead-letter file."""

    def __init__(
        self,
        path: Path,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        max_raw_bytes: int = MAX_RAW_BYTES,
        limit_bytes: int | None = None,
    ) -> None:
        self.path = path
        self.written = 0
        self._now_ms = now_ms
        self._max_raw_bytes = max_raw_bytes
        self._limit_bytes = limit_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._owes_sync = False
        self._ids: set[str] = set()
        self._places: set[tuple[str, str, bytes | None]] = set()
        self._size = os.fstat(self._file).st_size
        if self._size == 0:
            sync(path.parent)
        elif os.pread(self._file, 1, self._size - 1) != b"\n":
            self._append(b"\n")  # a crash cut the last entry; the next one gets its own line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, source: str, where: str, reason: str, raw: bytes) -> None:
        """Append an entry for an invalid event, with its first bytes.

        It is on disk after the next `sync`.
        """
        kept = first_bytes(raw, self._max_raw_bytes)
        entry = self._entry(source, where, reason, kept, len(raw))
        place = entry.source, entry.where, entry.raw
        if place in self._places:
            self._places.remove(place)
            return
        self._write(entry)

    def write_whole(
        self,
        source: str,
        where: str,
        reason: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Append an entry for an event that is not in Kafka, with its whole record.

        It is on disk after the next `sync`.
        """
        if where in self._ids:
            return
        entry = self._entry(source, where, reason, value, len(value or b""))
        self._write(replace(entry, key=key, headers=tuple(headers), timestamp_ms=timestamp_ms))

    @property
    def mark(self) -> str:
        """Where the file ends now, for a position that covers what stands before."""
        return f"{os.fstat(self._file).st_ino}:{self._size}"

    def skip_known_ids(self) -> None:
        """Do not write events again whose ids stand in the last part of the file."""
        for entry in self._entries_from(max(0, self._size - _LAST_BYTES)):
            if entry.where.startswith(_AN_ID):
                self._ids.add(entry.where)

    def skip_places_behind(self, mark: str | None) -> None:
        """Do not write once more what a source reads again: the entries behind a mark.

        Each entry is expected once. Without a mark none is expected. If the file of the mark was
        moved away, all are.
        """
        if mark is None:
            return
        inode, _, size = mark.partition(":")
        start = int(size) if int(inode) == os.fstat(self._file).st_ino else 0
        self._places = {(one.source, one.where, one.raw) for one in self._entries_from(start)}

    def _entries_from(self, start: int) -> Iterator[_Entry]:
        with self.path.open("rb") as lines:
            if start:
                lines.seek(start - 1)
                lines.readline()  # the rest of an entry, or the newline of one
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError):  # a crash has cut it
                    yield _entries.decode(line)

    @property
    def is_half_full(self) -> bool:
        return self._limit_bytes is not None and 2 * self._size >= self._limit_bytes

    def _entry(
        self, source: str, where: str, reason: str, raw: bytes | None, raw_length: int
    ) -> _Entry:
        source, where, reason = map(encodable, (source, where, reason))
        return _Entry(source, where, reason, raw, raw_length, self._now_ms())

    def _write(self, entry: _Entry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        if self._limit_bytes is not None and self._size + len(line) > self._limit_bytes:
            raise DeadLettersFullError(
                f"the dead-letter file {self.path} has {self._size} bytes, and dead_letter_limit "
                f"is {self._limit_bytes}: move it away, or raise the limit. Not stored was "
                f"{entry.where}: {entry.reason}"
            )
        try:
            self._append(line)
        except OSError as error:
            raise self._unwritable(error, f". Not stored was {entry.where}") from error
        self.written += 1

    def sync(self) -> None:
        """Return once every entry written before survives a power cut; cheap if there is none.

        May run in a thread: what is written meanwhile is left for the next call.
        """
        if self._owes_sync:
            self._owes_sync = False
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self._owes_sync = True
                raise self._unwritable(error) from error

    @property
    def owes_sync(self) -> bool:
        """Whether an entry might not survive a power cut yet."""
        return self._owes_sync

    def close(self) -> None:
        if self._file >= 0:
            try:
                self.sync()
            finally:
                os.close(self._file)
                self._file = -1

    def _append(self, data: bytes) -> None:
        """Write all of it, or nothing."""
        self._owes_sync = True
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            if len(rest) < len(data):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def _unwritable(self, error: OSError, lost: str = "") -> DeadLettersFullError:
        return DeadLettersFullError(
            f"the dead-letter file {self.path} cannot be written: {error.strerror}{lost}"
        )
