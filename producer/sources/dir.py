"""`dir:PATH`: whole files in the order of their names, renamed to `NAME.done` when durable.

A file is written under a name that begins with a dot or ends with `.tmp` or `.part`, and renamed
when it is complete. Each line is an event; the last one needs no newline.

A compressed file has no lines, and a binary one no JSON: it is logged, counted, and left as it is.

A writer may put another file in the place of one that is being read, at any moment, and no file
system can rename a file only if it is still the one that was read. So a file is renamed twice:
first to a name that only this source uses, `.NAME.1.checking`; there it is compared with what
was read, and only that very file, not written since its end was read, becomes `NAME.done`. Any
other file that was moved there is read next; so is one that a crash left there.

Files that wait together are made durable together: one sync of the journal has the events of all
of them, and one sync of the folder their names. A power cut may undo a rename before that sync, so
until then each position lists the files that were read whole (`besides`): after a crash they are
renamed, and not read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import stat
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from sequitur.base.log import Logger
from sequitur.base.process import sync
from sequitur.errors import SourceError
from sequitur.producer.sources._head import CHUNK_BYTES, why_no_lines
from sequitur.producer.sources._line_file import (
    FileOptions,
    FilePosition,
    LineFile,
    LineFileSettings,
    LineFileSource,
    ReadEnd,
    file_options,
    read_lines,
)
from sequitur.producer.sources._source import SourceKind, UnjournaledWindow, check_readable, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Unpack

    from sequitur.producer.sources._lines import EventParser
    from sequitur.producer.sources._source import Intake

_log: Final = Logger(__name__)
_DONE: Final = ".done"
_NOT_READ: Final = (_DONE, ".tmp", ".part")
_CHECKING: Final = re.compile(r"\.(?P<name>.+)\.[0-9]+\.checking", re.DOTALL)
_LONGEST_NAME_BYTES: Final = 255
_ADDED_BYTES: Final = 32
_WINDOW_BYTES: Final = 32 * CHUNK_BYTES
_MOST_TOGETHER: Final = 16
"""At most so many files share their syncs: each position lists them."""
_BYTES_TOGETHER: Final = CHUNK_BYTES
"""After so many bytes no file waits longer for its name."""
_CLOCK_STANDS_S: Final = 2.0
"""The coarsest time of a file system: that of FAT."""
_LIST_EVERY_S: Final = 10.0


class DirectorySource(LineFileSource):
    """Reads the files of one folder."""

    def __init__(
        self,
        folder: Path,
        parser: EventParser,
        *,
        now_s: Callable[[], float] = time.monotonic,
        most_together: int = _MOST_TOGETHER,
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__("dir", folder, parser, **options)
        self._most_together = most_together
        self._folder = WatchedFolder(folder, now_s)
        self._due: deque[str] = deque()
        self._passed_over: dict[str, _PassedOver] = {}
        self._begun: deque[_Begun] = deque()
        self._whole: list[_Whole] = []
        self._done: list[LineFile] = []
        self._window = UnjournaledWindow(_WINDOW_BYTES)

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Read until no file is left (without `follow`), or the daemon stops."""
        with self._alone():
            await self._run(intake, position)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder: two daemons would send each file twice."""
        with self._named_errors():
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SourceError(
                    f"{self._path} is read by another process, and each file would be sent twice: "
                    "end that one, or give each daemon a folder"
                ) from None
            except OSError as error:
                _log.warning("folder cannot be locked", path=str(self._path), reason=str(error))
            yield
        finally:
            os.close(folder)

    async def _run(self, intake: Intake, position: bytes | None) -> None:
        self._due.clear()
        self._begun.clear()
        if position is not None:
            last = FilePosition.decode(position)
            self._begun += map(_Begun, last.besides or ())
            self._begun.append(_Begun(msgspec.structs.replace(last, besides=msgspec.UNSET)))
        try:
            while not intake.stopping.is_set():
                file = self._next_begun() or self._next_due()
                if file is None and self._whole:
                    await self._finish_all(intake)
                    continue  # what is not renamed would be listed again
                if file is None and (not self._follow or self._folder.may_have_changed()):
                    self._due.extend(self._list())
                    file = self._next_due()
                if file is not None:
                    await self._read_whole(intake, file)
                elif self._follow:
                    self._look_at_done()
                    await self._pause(intake.stopping, self._poll_interval_s)
                else:
                    return
            await self._finish_all(intake)
        finally:
            self._forget_done()
            self._close_all()

    def _next_begun(self) -> LineFile | None:
        """Return the first file that was begun before, and has to be read on."""
        while self._begun:
            begun = self._begun.popleft()
            file = self._resume(begun.position) if begun.path is None else self._rest_of(begun)
            if file is not None:
                return file
        return None

    async def _read_whole(self, intake: Intake, file: LineFile) -> None:
        """Read a file into the intake. It is renamed with those that are read right after it."""
        is_whole = False
        try:
            while not (is_whole or intake.stopping.is_set()):
                found = await read_lines(file)
                if found is ReadEnd.OVERWRITTEN:
                    self._gone(file.position())
                    return  # it is read from its beginning, as another file
                is_whole = isinstance(found, ReadEnd)
                batch = file.finish() if isinstance(found, ReadEnd) else found
                ticket = await self._hand_over(intake, file, batch)
                if ticket is not None:
                    await self._window.add(ticket, batch.end_offset - batch.first_offset)
            if is_whole:
                self._whole.append(_Whole(file, file.position(finished=True)))
        finally:
            if not is_whole:
                file.close()
        read_bytes = sum(each.position.offset for each in self._whole)
        if len(self._whole) >= self._most_together or read_bytes >= _BYTES_TOGETHER:
            await self._finish_all(intake)

    def _position(self, file: LineFile) -> FilePosition:
        """Return how far all files were read, also the others that have no other name yet."""
        return self._beside(file.position(), self._whole)

    def _beside(self, position: FilePosition, whole: list[_Whole]) -> FilePosition:
        others = [each.position for each in whole] + [each.position for each in self._begun]
        return msgspec.structs.replace(position, besides=tuple(others) or msgspec.UNSET)

    async def _finish_all(self, intake: Intake) -> None:
        """Rename the files that were read whole, once all their events are durable."""
        if not self._whole:
            return
        *others, last = self._whole
        # First, so that one round of the journal has the events and the position.
        await intake.note_position(self._beside(last.position, others).encode())
        await self._window.drain()
        self._forget_done()
        for each in self._whole[:]:
            path = self._finish(each.file)
            if path is not None:
                self._whole.remove(each)
                self._done.append(each.file)
                _log.info("file done", path=str(path))
        self._close_all()
        if self._done:
            await asyncio.to_thread(sync, self._path)
        self._count(files_finished=len(self._done))

    def _look_at_done(self) -> None:
        """Log bytes that were written to a file after it was done: they become no events."""
        for file in self._done[:]:
            is_written = self._tell_left_behind(file, "a file was written after it was done")
            if is_written or file.is_removed:
                file.close()
                self._done.remove(file)

    def _forget_done(self) -> None:
        self._look_at_done()
        for file in self._done:
            file.close()
        self._done.clear()

    def _close_all(self) -> None:
        for each in self._whole:
            each.file.close()
        self._whole.clear()

    def _resume(self, position: FilePosition) -> LineFile | None:
        """Return the file that was being read, or was not renamed yet; None if there is none."""
        for path in self._paths_of(position):
            try:
                file = LineFile(path, self._parser.limit_bytes)
            except FileNotFoundError:
                continue
            written = file.position().modified_ns
            if (
                file.inode == position.inode
                and (not position.finished or written == position.modified_ns)
                and file.seek(position)
            ):
                return file
            file.close()
        if not position.finished:  # else it was renamed, and this is another file of its name
            self._gone(position)
        return None

    def _paths_of(self, position: FilePosition) -> Iterator[Path]:
        """Yield the names that a file may have: its own, that of a check, or one by others."""
        yield self._path / position.name
        if _CHECKING.fullmatch(position.name) is None:
            start = f".{_shortened(position.name)}."
            for other in self._names():
                if other.startswith(start) and _CHECKING.fullmatch(other):
                    yield self._path / other
        yield from self._paths_with(position.inode)

    def _paths_with(self, inode: int) -> list[Path]:
        """Return the names of a file that somebody has renamed; none if it is done."""
        with self._named_errors(), os.scandir(self._path) as entries:
            names = [entry.name for entry in entries if entry.inode() == inode]
        if any(name.endswith(_DONE) for name in names):
            return []
        return [self._path / name for name in names if _is_read(name)]

    def _rest_of(self, begun: _Begun) -> LineFile | None:
        """Return a file that was written on while its end was read."""
        path, position = begun.path, begun.position
        assert path is not None
        try:
            file = LineFile(path, self._parser.limit_bytes)
        except OSError:
            return None  # logged when the folder is listed
        if file.inode == position.inode and file.seek(position):
            _log.warning("file was written on after its end was read", path=str(path))
            return file
        file.close()
        self._due.appendleft(path.name)
        return None

    def _next_due(self) -> LineFile | None:
        """Return the first file, in name order, of those that were listed and can be read.

        The folder is not listed for each of many files, and not while nothing changes in it.
        """
        while self._due:
            file = self._open(self._due.popleft())
            if file is not None:
                return file
        return None

    def _list(self) -> list[str]:
        """Return the names of files to be read; those that are being checked come first."""
        names = [name for name in self._names() if _is_read(name)]
        # A file that is gone is logged again when it comes again.
        before = self._passed_over
        self._passed_over = {name: before[name] for name in before.keys() & names}
        due = (
            name
            for name in names
            if name not in before or before[name].may_be_read_by_now(self._path / name)
        )
        return sorted(due, key=lambda name: (name[0] != ".", name))

    def _open(self, name: str) -> LineFile | None:
        """Open a file, if it is one that can be read line by line."""
        path = self._path / name
        try:
            name.encode()
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                return None
            file = LineFile(path, self._parser.limit_bytes)
        except FileNotFoundError:
            return None
        except UnicodeEncodeError:
            self._pass_over(name, "its name is not UTF-8: rename it", _PassedOver(None))
            self._count(files_unreadable=1)
            return None
        except OSError as error:
            if name not in self._passed_over:
                self._pass_over(name, str(error), _PassedOver(()))
                self._count(files_unreadable=1)
            return None
        problem = why_no_lines(name, file.head, is_text=self._parser.is_text)
        if problem is None:
            self._passed_over.pop(name, None)
            return file
        file.close()
        self._pass_over(name, problem, _PassedOver((found.st_ino, found.st_mtime_ns)))
        self._count(files_passed_over=1)
        return None

    def _pass_over(self, name: str, problem: str, how: _PassedOver) -> None:
        """Log that a file cannot be read, and leave it where it is."""
        self._passed_over[name] = how
        path = os.fsencode(self._path / name).decode(errors="backslashreplace")
        _log.error("file passed over", path=path, problem=problem)

    def _names(self) -> list[str]:
        with self._named_errors():
            return os.listdir(self._path)  # noqa: PTH208 - thousands of paths would take longer

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise SourceError(f"{self._path} is not there") from error
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error}") from error

    def _finish(self, file: LineFile) -> Path | None:
        """Give a file that is durable its `.done` name, if it is still the one that was read.

        Return that name, which the next sync of the folder makes durable.
        """
        checked = _CHECKING.fullmatch(file.path.name)
        path = file.path
        if checked is None:
            name = _shortened(file.path.name)
            path = self._free(f".{name}.", ".checking", first=1)
            before = self._moved(file, path)
            if before is None:
                _log.warning(
                    "file is done, and gone before it could be renamed", path=str(file.path)
                )
                self._count(files_finished=1)
                return None
            name = _shortened(before.name)
        else:
            name = _shortened(checked["name"])
        if not file.was_read_whole(path):
            if file.is_at(path):
                self._begun.append(_Begun(file.position(), path))
            else:
                self._due.appendleft(path.name)
            _log.warning("file was written or replaced after it was read", path=str(file.path))
            return None
        target = self._path / (name + _DONE)
        if os.path.lexists(target):
            target = self._free(f"{name}.", _DONE, first=2)
        path.rename(target)
        return target

    def _moved(self, file: LineFile, path: Path) -> Path | None:
        """Rename a file, and return its name before; None if it has none in this folder."""
        try:
            file.path.rename(path)
        except FileNotFoundError:
            pass
        else:
            return file.path
        for before in self._paths_with(file.inode):
            with contextlib.suppress(FileNotFoundError):
                before.rename(path)
                _log.warning(
                    "file was renamed while it was read", path=str(file.path), now=before.name
                )
                return before
        return None

    def _free(self, before: str, behind: str, first: int) -> Path:
        """Return a name that no file has, with the number after those in use.

        It is searched by halves: where a writer has one name for all its files there are thousands.
        """

        def path(number: int) -> Path:
            return self._path / f"{before}{number}{behind}"

        taken, step = first - 1, 1
        while os.path.lexists(path(taken + step)):
            taken, step = taken + step, 2 * step
        free = taken + step
        while free - taken > 1:
            middle = (taken + free) // 2
            if os.path.lexists(path(middle)):
                taken = middle
            else:
                free = middle
        return path(free)

    def _gone(self, position: FilePosition) -> None:
        """Log that the rest of a file was not read. Nothing is lost if the file was not begun."""
        if position.offset:
            self._lost(
                f"{self._path / position.name} (inode {position.inode}) was read to byte "
                f"{position.offset}, and is gone or was rewritten since"
            )


@dataclass(frozen=True, slots=True)
class _Begun:
    """A file that was read so far, and is to be read on."""

    position: FilePosition
    path: Path | None = None  # where it is; None if it has to be looked for


@dataclass(frozen=True, slots=True)
class _Whole:
    """A file that was read whole, and has no other name yet. It is open: none has its inode."""

    file: LineFile
    position: FilePosition


@dataclass(frozen=True, slots=True)
class _PassedOver:
    """A file that was not read."""

    # its inode and when it was written; () if it may be readable at any time, None if never
    which: tuple[int, ...] | None

    def may_be_read_by_now(self, path: Path) -> bool:
        if not self.which:
            return self.which is not None
        try:
            found = path.stat()
        except OSError:
            return True
        return self.which != (found.st_ino, found.st_mtime_ns)


class WatchedFolder:
    """Tells when a folder may have other files than when it was listed last.

    A folder's time of last write changes with each name in it. A coarse clock may hide the second
    of two changes, so for two seconds after a change it is listed at each look. A file that could
    not be opened, a link's target, and some network file systems change without a word, so it is
    also listed every ten seconds.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._now_s = now_s
        self._seen: tuple[int, ...] = ()
        self._changed_at_s = self._listed_at_s = 0.0

    def may_have_changed(self) -> bool:
        now_s = self._now_s()
        try:
            found = os.stat(self._folder)  # noqa: PTH116 - at each poll
            seen: tuple[int, ...] = (found.st_dev, found.st_ino, found.st_mtime_ns)
        except OSError:
            seen = ()  # its listing tells why
        if seen != self._seen or not seen:
            self._seen, self._changed_at_s = seen, now_s
        is_due = (
            self._listed_at_s < self._changed_at_s + _CLOCK_STANDS_S
            or now_s >= self._listed_at_s + _LIST_EVERY_S
        )
        if is_due:
            self._listed_at_s = now_s
        return is_due


def _is_read(name: str) -> bool:
    return not name.endswith(_NOT_READ) and (name[0] != "." or bool(_CHECKING.fullmatch(name)))


def _shortened(name: str) -> str:
    """Return a name to which a suffix can be added: a very long one is cut, between characters."""
    room = _LONGEST_NAME_BYTES - _ADDED_BYTES
    return os.fsencode(name)[:room].decode(errors="ignore")


def _check(settings: LineFileSettings) -> None:
    if not (path := path_of(settings)).is_dir():
        raise SourceError(f"{path} is not there, or no folder")
    check_readable(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise SourceError(f"{path} is not writable, but files are renamed to NAME.done there")


def _make(settings: LineFileSettings, parser: EventParser) -> DirectorySource:
    return DirectorySource(path_of(settings), parser, **file_options(settings))


SOURCE: Final = SourceKind(settings=LineFileSettings, make=_make, check=_check, takes="PATH")
