"""The dead-letter file: one JSON object per line, with an event's place and the reason.

It is opened for appending only, and no entry is ever taken away: its events are stored nowhere
else. A crash between a `sync` and the journal's next round duplicates entries, with the same
`source` and `where`; it never loses one whose source position is in the journal. At the file's
limit, and when its disk is full, the daemon ends: the position before the event stays in the
journal, and so does an event that a broker refused.
"""

from __future__ import annotations

import base64
import os
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sequitur.producer._durable import sync
from sequitur.producer.sources._errors import DeadLettersFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Self

    from sequitur.producer.kafka.record_batch import Header

MAX_RAW_BYTES: Final = 64 << 10


class DeadLetterFile:
    """An open dead-letter file.

    Args:
        path: The file; made, with its folder, if it is not there.
        now_ms: The clock.
        max_raw_bytes: How many bytes of an invalid event an entry has.
        limit_bytes: How large the file may become, entries of earlier runs included.

    Raises:
        OSError: It cannot be opened.
    """

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

        Raises:
            DeadLettersFullError: There is no room for it, also on the disk; nothing was written.
        """
        entry = self._entry(source, where, reason, raw)
        entry["raw"] = _encoded(raw[: self._max_raw_bytes])
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

        Raises:
            DeadLettersFullError: There is no room for it, also on the disk; nothing was written.
        """
        entry = self._entry(source, where, reason, value)
        entry["raw"] = _encoded(value)
        if key is not None:
            entry["key"] = _encoded(key)
        if headers:
            entry["headers"] = [[name, _encoded(part)] for name, part in headers]
        if timestamp_ms is not None:
            entry["timestamp_ms"] = timestamp_ms
        self._write(entry)

    @property
    def is_half_full(self) -> bool:
        """Whether it is half full."""
        return self._limit_bytes is not None and 2 * self._size >= self._limit_bytes

    def _entry(self, source: str, where: str, reason: str, raw: bytes | None) -> dict[str, Any]:
        return {
            "source": source,
            "where": where,
            "reason": reason,
            "raw": None,
            "raw_length": len(raw or b""),
            "at_ms": self._now_ms(),
        }

    def _write(self, entry: dict[str, Any]) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        if self._limit_bytes is not None and self._size + len(line) > self._limit_bytes:
            raise DeadLettersFullError(
                f"the dead-letter file {self.path} has {self._size} bytes, and dead_letter_limit "
                f"is {self._limit_bytes}: move it away, or raise the limit; not stored was "
                f"{entry['where']}: {entry['reason']}"
            )
        try:
            self._append(line)
        except OSError as error:
            raise self._unwritable(error, f"; not stored was {entry['where']}") from error
        self.written += 1

    def sync(self) -> None:
        """Return once every entry written before survives a power cut; cheap if there is none.

        May run in a thread: what is written meanwhile is left for the next call.

        Raises:
            DeadLettersFullError: They do not, as on a disk that is full.
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
        """Sync, and close."""
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


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
