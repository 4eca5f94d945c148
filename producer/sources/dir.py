"""`dir:PATH`: whole files in the order of their names, renamed to `NAME.done` when durable.

A file is written under a name that begins with a dot or ends with `.tmp` or `.part`, and renamed
when it is complete. Each line is an event; the last one needs no newline.

A compressed file has no lines, and a binary one no JSON: it is logged, counted, and left as it is.

A writer may put another file in the place of one that is being read, at any moment, and no file
system can rename a file only if it is still the one that was read. So a file is renamed twice:
first to a name that only this source uses, `.NAME.1.checking`; there it is compared with what
was read, and only that very file, not written since its end was read, becomes `NAME.done`. Any
other file that was moved there is read next; so is one that a crash left there.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sequitur.base.log import Logger
from sequitur.base.process import sync
from sequitur.errors import SourceError
from sequitur.producer.sources._line_file import (
    CHUNK_BYTES,
    FileOptions,
    FilePosition,
    LineFile,
    LineFileSettings,
    LineFileSource,
    ReadEnd,
    file_options,
    read_lines,
    why_no_lines,
)
from sequitur.producer.sources._source import (
    SourceKind,
    UnjournaledWindow,
    check_readable,
    path_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Unpack

    from sequitur.producer.sources._source import EventParser, Intake

_log: Final = Logger(__name__)
_DONE: Final = ".done"
_NOT_READ: Final = (_DONE, ".tmp", ".part")
_CHECKING: Final = re.compile(r"\.(?P<name>.+)\.[0-9]+\.checking", re.DOTALL)
_LONGEST_NAME_BYTES: Final = 255
_ADDED_BYTES: Final = 32
_WINDOW_BYTES: Final = 32 * CHUNK_BYTES
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
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__("dir", folder, parser, **options)
        self._folder = WatchedFolder(folder, now_s)
        self._due: deque[str] = deque()
        self._passed_over: dict[str, _PassedOver] = {}
        self._left: tuple[Path, FilePosition] | None = None

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Read until no file is left (without `follow`), or the daemon stops."""
        self._left = None
        self._due.clear()
        file = None if position is None else self._resume(FilePosition.decode(position))
        while not intake.stopping.is_set():
            if file is None:
                file = self._rest_of_last() or self._next_file()
            if file is not None:
                try:
                    await self._read_whole(intake, file)
                finally:
                    file.close()
                file = None
            elif self._follow:
                await self._pause(intake.stopping, self._poll_interval_s)
            else:
                return

    async def _read_whole(self, intake: Intake, file: LineFile) -> None:
        """Read a file into the intake, and rename it once all of it is durable."""
        window = UnjournaledWindow(_WINDOW_BYTES)
        while not intake.stopping.is_set():
            found = await read_lines(file)
            if found is ReadEnd.OVERWRITTEN:
                self._gone(file.position())
                return  # it is read from its beginning, as another file
            if isinstance(found, ReadEnd):
                ticket = await self._hand_over(intake, file, file.finish())
                if ticket is not None:
                    await window.add(ticket, CHUNK_BYTES)
                # First, so that one round of the journal has the events and the position.
                await intake.note_position(file.position(finished=True).encode())
                await window.drain()
                self._finish(file)
                return
            ticket = await self._hand_over(intake, file, found)
            if ticket is not None:
                await window.add(ticket, CHUNK_BYTES)

    def _resume(self, position: FilePosition) -> LineFile | None:
        """Return the file that was being read, or was not renamed yet; None if there is none."""
        for path in self._names_of(position.name):
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

    def _names_of(self, name: str) -> Iterator[Path]:
        """Yield a file's name, and those that it may have while it is checked."""
        yield self._path / name
        checked = _CHECKING.fullmatch(name)
        if checked is None:
            start = f".{_shortened(name)}."
            for other in self._names():
                if other.startswith(start) and _CHECKING.fullmatch(other):
                    yield self._path / other

    def _rest_of_last(self) -> LineFile | None:
        """Return the file that was read last, if it was written on while its end was read."""
        if self._left is None:
            return None
        path, position = self._left
        self._left = None
        try:
            file = LineFile(path, self._parser.limit_bytes)
        except OSError:
            return None  # logged when the folder is listed
        if (file.device, file.inode) == (position.device, position.inode) and file.seek(position):
            _log.warning("file was written on after its end was read", path=str(path))
            return file
        file.close()
        self._due.appendleft(path.name)
        return None

    def _next_file(self) -> LineFile | None:
        """Return the first file, in name order, of those that are there and can be read.

        The folder is not listed for each of many files, and not while nothing changes in it.
        """
        if not self._due and (not self._follow or self._folder.may_have_changed()):
            self._due.extend(self._list())
        while self._due:
            file = self._open(self._due.popleft())
            if file is not None:
                return file
        return None

    def _list(self) -> list[str]:
        """Return the names of files to be read; those that are being checked come first."""
        names = [
            name
            for name in self._names()
            if not name.endswith(_NOT_READ) and (name[0] != "." or _CHECKING.fullmatch(name))
        ]
        # What is gone is told again when it comes again.
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
            self._pass_over(name, "its name is no UTF-8: rename it", _PassedOver(None))
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
        try:
            return os.listdir(self._path)  # noqa: PTH208 - thousands of paths would take longer
        except FileNotFoundError as error:
            raise SourceError(f"{self._path} is not there") from error
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error}") from error

    def _finish(self, file: LineFile) -> None:
        """Give a file that is durable its `.done` name, if it is still the one that was read."""
        checked = _CHECKING.fullmatch(file.path.name)
        name = _shortened(file.path.name if checked is None else checked["name"])
        path = file.path
        if checked is None:
            path = self._free(f".{name}.", ".checking", first=1)
            try:
                file.path.rename(path)
            except FileNotFoundError:
                _log.warning(
                    "file is done, and gone before it could be renamed", path=str(file.path)
                )
                self._count(files_finished=1)
                return
        if not file.was_read_whole(path):
            self._left = path, file.position()
            _log.warning("file was written or replaced after it was read", path=str(file.path))
            return
        target = self._path / (name + _DONE)
        if target.exists():
            target = self._free(f"{name}.", _DONE, first=2)
        path.rename(target)
        sync(self._path)
        self._count(files_finished=1)
        _log.info("file done", path=str(target))

    def _free(self, before: str, behind: str, first: int) -> Path:
        """Return a name that no file has, with the number after those in use.

        It is searched by halves: where a writer has one name for all its files there are thousands.
        """

        def path(number: int) -> Path:
            return self._path / f"{before}{number}{behind}"

        taken, step = first - 1, 1
        while path(taken + step).exists():
            taken, step = taken + step, 2 * step
        free = taken + step
        while free - taken > 1:
            middle = (taken + free) // 2
            if path(middle).exists():
                taken = middle
            else:
                free = middle
        return path(free)

    def _gone(self, position: FilePosition) -> None:
        """Tell that the rest of a file was not read; of one that was not begun nothing is lost."""
        if position.offset:
            self._lost(
                f"{self._path / position.name} (inode {position.inode}) was read to byte "
                f"{position.offset}, and is gone or was rewritten since"
            )


@dataclass(frozen=True, slots=True)
class _PassedOver:
    """A file that was not read."""

    # its inode and when it was written; () if any of its names may be readable by now, None if none
    which: tuple[int, ...] | None

    def may_be_read_by_now(self, path: Path) -> bool:
        """Return whether it is worth another try."""
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
        """Return whether to list it now; whoever is told so does."""
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


def _shortened(name: str) -> str:
    """Return a name to which a suffix can be added: a very long one is cut at its end."""
    room = _LONGEST_NAME_BYTES - _ADDED_BYTES
    return os.fsdecode(os.fsencode(name)[:room])


def _check(settings: LineFileSettings) -> None:
    if not (path := path_of(settings)).is_dir():
        raise SourceError(f"{path} is not there, or no folder")
    check_readable(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise SourceError(f"{path} may not be written: files are renamed to NAME.done there")


def _make(settings: LineFileSettings, parser: EventParser) -> DirectorySource:
    return DirectorySource(path_of(settings), parser, **file_options(settings))


SOURCE: Final = SourceKind(settings=LineFileSettings, make=_make, check=_check, takes="PATH")
