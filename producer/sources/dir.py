"""`dir:PATH`: whole files in the order of their names, renamed to `NAME.done` when durable.

A file is written under a name that begins with a dot or ends with `.tmp` or `.part`, and renamed
when it is complete. Each line is an event; the last one needs no newline.

A writer may put another file in the place of one that is being read, at any moment, and no file
system can rename a file only if it is still the one that was read. So a file is renamed twice:
first to a name that only this source uses, `.NAME.1.checking`; there it is compared with what
was read, and only that very file, not written since its end was read, becomes `NAME.done`. Any
other file that was moved there is read next; so is one that a crash left there.
"""

from __future__ import annotations

import os
import re
from itertools import count
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
)
from sequitur.producer.sources._source import (
    SourceKind,
    UnjournaledWindow,
    check_readable,
    path_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
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


class DirectorySource(LineFileSource):
    """Reads the files of one folder."""

    def __init__(self, folder: Path, parser: EventParser, **options: Unpack[FileOptions]) -> None:
        super().__init__("dir", folder, parser, **options)
        self._unreadable: set[str] = set()
        self._left: tuple[Path, FilePosition] | None = None

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Read until no file is left (without `follow`), or the daemon stops."""
        self._left = None
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
                await window.drain()
                await intake.note_position(file.position(finished=True).encode())
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
            for entry in self._entries():
                if entry.name.startswith(start) and _CHECKING.fullmatch(entry.name):
                    yield self._path / entry.name

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

    def _next_file(self) -> LineFile | None:
        """Return the first file in name order that can be opened."""
        # Those that are being checked come first: they were there before the others.
        entries = sorted(
            self._entries(),
            key=lambda entry: (_CHECKING.fullmatch(entry.name) is None, entry.name),
        )
        for entry in entries:
            try:
                if _is_due(entry):
                    return LineFile(self._path / entry.name, self._parser.limit_bytes)
            except OSError as error:
                self._pass_over(entry.name, str(error))
            except UnicodeEncodeError:
                self._pass_over(entry.name, "its name is no UTF-8: rename it")
        return None

    def _pass_over(self, name: str, problem: str) -> None:
        """Log once that a file cannot be read; it is tried again at each look."""
        if name not in self._unreadable:
            self._unreadable.add(name)
            self._count(files_unreadable=1)
            path = os.fsencode(self._path / name).decode(errors="backslashreplace")
            _log.error("file passed over", path=path, problem=problem)

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._path) as entries:
                return list(entries)
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
            path = self._free(f".{name}.{{}}.checking", first=1)
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
            target = self._free(f"{name}.{{}}{_DONE}", first=2)
        path.rename(target)
        sync(self._path)
        self._count(files_finished=1)
        _log.info("file done", path=str(target))

    def _free(self, form: str, first: int) -> Path:
        """Return the first name of this form that no file has."""
        paths = (self._path / form.format(number) for number in count(first))
        return next(path for path in paths if not path.exists())

    def _gone(self, position: FilePosition) -> None:
        """Tell that the rest of a file was not read; of one that was not begun nothing is lost."""
        if position.offset:
            self._lost(
                f"{self._path / position.name} (inode {position.inode}) was read to byte "
                f"{position.offset}, and is gone or was rewritten since"
            )


def _is_due(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a file to be read."""
    if not _CHECKING.fullmatch(entry.name) and (
        entry.name.startswith(".") or entry.name.endswith(_NOT_READ)
    ):
        return False
    if not entry.is_file():
        return False
    entry.name.encode()
    return True


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
