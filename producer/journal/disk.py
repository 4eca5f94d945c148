"""The few things a journal asks of a disk, and the real one.

Tests put a model in its place that crashes between any two of these steps.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final, Protocol

from sequitur.errors import JournalLockedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LOCK_NAME: Final = "lock"
# The kernel takes at most 1,024 buffers a call (IOV_MAX).
_BUFFERS_PER_CALL: Final = 1024
_PRIVATE_FILE: Final = 0o600
_PRIVATE_DIRECTORY: Final = 0o700
_lock_files: Final[set[int]] = set()
"""Lock files that this process has open."""


class Disk(Protocol):
    """One directory of files."""

    @property
    def place(self) -> str:
        """The directory, as shown to users."""

    def lock(self) -> None:
        """Take the directory for this process alone."""

    def unlock(self) -> None:
        """Give the directory back."""

    def names(self) -> list[str]:
        """Names of all files."""

    def read(self, name: str) -> bytes:
        """Return a whole file."""

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """So many bytes of a file from an offset on; fewer at its end."""

    def free_bytes(self) -> int:
        """Return how much more the disk has room for, as far as it tells."""

    def open(self, name: str) -> DiskFile:
        """Return a handle that appends; the file is created when missing."""

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file at once; durable after `sync_directory`."""

    def unlink(self, name: str) -> None:
        """Remove a file; durable after `sync_directory`."""

    def sync_directory(self) -> None:
        """Return once created, renamed and removed files survive a power cut as such."""


class DiskFile(Protocol):
    """A file that is only ever appended to."""

    def append(self, buffers: Sequence[bytes]) -> None:
        """Write all buffers at the end; an OSError may leave some of them written."""

    def sync(self) -> None:
        """Return once what was appended survives a power cut."""

    def truncate(self, length: int) -> None:
        """Cut the file to `length` bytes."""

    def close(self) -> None:
        """Give the handle back."""


class RealDisk:
    """A directory of the file system; created, readable by its owner only, when missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self._owner = 0
        # Kept open, so that a sync needs no descriptor at a time when there may be none.
        self._handle: int | None = None

    @property
    def place(self) -> str:
        return str(self._directory)

    def lock(self) -> None:
        """Take an flock; the kernel gives it back when the process dies, however it dies."""
        self._directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._directory / _LOCK_NAME, flags, _PRIVATE_FILE)
        _lock_files.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).strip()
            _close_lock_file(descriptor)
            pid = int(holder) if holder.isdigit() else None
            raise JournalLockedError(self.place, pid) from None
        self._lock = descriptor
        self._owner = os.getpid()
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
            self._handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # the disk may be full
            self.unlock()
            raise

    def unlock(self) -> None:
        """Give the flock back; the lock file stays, so that two cannot lock different files."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if self._lock is not None:
            if self._owner == os.getpid():  # a forked child has closed it, and owns nothing
                # Before it is closed: a child that is being forked may have it open, too.
                fcntl.flock(self._lock, fcntl.LOCK_UN)
                _close_lock_file(self._lock)
            self._lock = None

    def names(self) -> list[str]:
        return [path.name for path in self._directory.iterdir()]

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        """Return what the file system has left for users; a quota is not known before it is met."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def open(self, name: str) -> DiskFile:
        return _RealFile(self._directory / name)

    def rename(self, name: str, new_name: str) -> None:
        (self._directory / name).rename(self._directory / new_name)

    def unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._directory / name).unlink()

    def sync_directory(self) -> None:
        """Sync the directory itself, without which a new file may have no name after a crash."""
        assert self._handle is not None
        os.fsync(self._handle)


class _RealFile:
    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, _PRIVATE_FILE)

    def append(self, buffers: Sequence[bytes]) -> None:
        for first in range(0, len(buffers), _BUFFERS_PER_CALL):
            chunk = buffers[first : first + _BUFFERS_PER_CALL]
            written = os.writev(self._descriptor, chunk)
            if written < sum(map(len, chunk)):
                self._append_rest(chunk, written)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def close(self) -> None:
        os.close(self._descriptor)

    def _append_rest(self, chunk: Sequence[bytes], written: int) -> None:
        """After a short write; on a full disk the next one raises ENOSPC."""
        rest = memoryview(b"".join(chunk))[written:]
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


def _close_lock_file(descriptor: int) -> None:
    _lock_files.discard(descriptor)
    os.close(descriptor)


def _close_lock_files() -> None:
    """In a forked child: else a lock would be held for as long as the child lives."""
    for descriptor in tuple(_lock_files):
        _close_lock_file(descriptor)


os.register_at_fork(after_in_child=_close_lock_files)
