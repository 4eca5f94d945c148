"""`dir:PATH`: whole files in the order of their names, renamed to `NAME.done` when durable.

Who puts a file there writes it under a name that begins with a dot or ends with `.tmp` or `.part`,
and renames it when it is whole. Each line is an event; the last one needs no newline.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Final

from producer._log import Logger
from producer.sources._errors import LostFileError, SourceError
from producer.sources._intake import SourceStatistics, UnjournaledWindow, pause
from producer.sources._line_file import (
    CHUNK_BYTES,
    FilePosition,
    LineFile,
    ReadEnd,
    hand_over,
    read_lines,
)

if TYPE_CHECKING:
    from pathlib import Path

    from producer.sources._file import OnLostFile
    from producer.sources._intake import Intake, Pause
    from producer.sources._json_lines import EventParser

_log: Final = Logger(__name__)
_DONE: Final = ".done"
_NOT_READ: Final = (_DONE, ".tmp", ".part")
_WINDOW_BYTES: Final = 32 * CHUNK_BYTES


class DirectorySource:
    """Reads the files of one folder.

    Args:
        folder: The folder; its own folders are not entered.
        parser: Makes events of lines.
        follow: Wait for more files; else stop when there is none left.
        poll_interval_s: Time between two looks at a folder without a file to read.
        on_lost_file: Whether to go on when a file is gone before it was read to its end.
        pause: Waits; tests give their own.
    """

    def __init__(
        self,
        folder: Path,
        parser: EventParser,
        *,
        follow: bool = True,
        poll_interval_s: float = 0.2,
        on_lost_file: OnLostFile = "continue",
        pause: Pause = pause,
    ) -> None:
        self.name = f"dir:{folder}"
        self._folder = folder
        self._parser = parser
        self._follow = follow
        self._poll_interval_s = poll_interval_s
        self._on_lost_file = on_lost_file
        self._pause = pause
        self._statistics = SourceStatistics()
        self._unreadable: set[str] = set()

    def statistics(self) -> SourceStatistics:
        """What went wrong so far."""
        return self._statistics

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Read until no file is left (without `follow`), or the daemon stops."""
        file = None if position is None else self._resume(FilePosition.decode(position))
        while not intake.stopping.is_set():
            if file is None:
                file = self._next_file()
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
        """Hand a file over, and rename it once all of it is durable."""
        window = UnjournaledWindow(_WINDOW_BYTES)
        while not intake.stopping.is_set():
            found = await read_lines(file)
            if found is ReadEnd.OVERWRITTEN:
                self._lost(file.position())
                return  # it is read from its beginning, as another file
            if isinstance(found, ReadEnd):
                ticket = await hand_over(intake, self._parser, file, file.finish())
                if ticket is not None:
                    await window.add(ticket, CHUNK_BYTES)
                await window.settle()
                await intake.note_position(file.position(finished=True).encode())
                self._rename(file)
                return
            ticket = await hand_over(intake, self._parser, file, found)
            if ticket is not None:
                await window.add(ticket, CHUNK_BYTES)

    def _resume(self, position: FilePosition) -> LineFile | None:
        """The file that was being read, or was not renamed yet; None if there is none."""
        try:
            file = LineFile(self._folder / position.name, self._parser.limit_bytes)
        except FileNotFoundError:
            file = None
        if file is not None:
            written = file.position().modified_ns
            if (
                file.inode == position.inode
                and (not position.finished or written == position.modified_ns)
                and file.seek(position)
            ):
                return file
            file.close()
        if not position.finished:  # else it was renamed, and this is another file of its name
            self._lost(position)
        return None

    def _next_file(self) -> LineFile | None:
        """The first file in name order that can be opened."""
        try:
            entries = list(os.scandir(self._folder))
        except FileNotFoundError as error:
            raise SourceError(f"{self._folder} is not there") from error
        except OSError as error:
            raise SourceError(f"{self._folder} cannot be read: {error}") from error
        names = sorted(entry.name for entry in entries if _is_due(entry))
        for name in names:
            try:
                return LineFile(self._folder / name, self._parser.limit_bytes)
            except OSError as error:
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    self._count(files_unreadable=1)
                    _log.error(
                        "file passed over", path=str(self._folder / name), problem=str(error)
                    )
        return None

    def _rename(self, file: LineFile) -> None:
        """Give a file its `.done` name, beside the one of an earlier file of the same name."""
        name = file.path.name
        target = self._folder / (name + _DONE)
        number = 2
        while target.exists():
            target = self._folder / f"{name}.{number}{_DONE}"
            number += 1
        try:
            file.path.rename(target)
        except FileNotFoundError:
            _log.warning("file is done, and gone before it could be renamed", path=str(file.path))
            return
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._count(files_finished=1)
        _log.info("file done", path=str(target))

    def _lost(self, position: FilePosition) -> None:
        self._count(files_lost=1)
        message = (
            f"{self._folder / position.name} (inode {position.inode}) was read to byte "
            f"{position.offset}, and is gone or was written anew since"
        )
        if self._on_lost_file == "fail":
            raise LostFileError(message)
        _log.error("source file lost", path=str(self._folder), problem=message)

    def _count(self, **more: int) -> None:
        changed = {name: getattr(self._statistics, name) + count for name, count in more.items()}
        self._statistics = dataclasses.replace(self._statistics, **changed)


def _is_due(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and not entry.name.endswith(_NOT_READ) and entry.is_file()
