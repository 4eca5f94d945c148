"""`file:PATH`: follows a growing file through rotation, each line once.

Rotated by rename and create: the old file is read to its end under its new name, then the
new file. Rotated by copy and truncate: what was not read before the truncation is read from the
copy. Both may have happened while the daemon was down, and more than once.

Not read are lines written between copy and truncation, which are in neither file, and generations
that were compressed or removed before they were read. A missing file is logged as an error,
counted, and with `on_lost_file = "fail"` ends the source.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from math import ceil
from typing import TYPE_CHECKING, Final, Literal

from sequitur.producer._log import Logger
from sequitur.producer.sources._errors import LostFileError, SourceError
from sequitur.producer.sources._intake import SourceStatistics, pause
from sequitur.producer.sources._line_file import (
    FilePosition,
    LineFile,
    ReadEnd,
    hand_over,
    read_lines,
)
from sequitur.producer.sources._rotation import Generation, Rotation

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.producer.sources._intake import Intake, Pause
    from sequitur.producer.sources._json_lines import EventParser

_log: Final = Logger(__name__)

OnLostFile = Literal["continue", "fail"]


class FileSource:
    """Follows one file.

    Args:
        path: The file; with `follow` it need not be there yet.
        parser: Makes events of its lines.
        follow: Go on when the end is reached; else stop there, and take a last line without a
            newline for whole.
        poll_interval_s: Time between two looks at a file that was read to its end.
        rotate_wait_s: How long a rotated file must have been silent before it is left: its
            writer may still have it open.
        on_lost_file: Whether to go on when a file is gone before it was read to its end.
        pause: Waits; tests give their own.
    """

    def __init__(
        self,
        path: Path,
        parser: EventParser,
        *,
        follow: bool = True,
        poll_interval_s: float = 0.2,
        rotate_wait_s: float = 2.0,
        on_lost_file: OnLostFile = "continue",
        pause: Pause = pause,
    ) -> None:
        self.name = f"file:{path}"
        self._path = path
        self._parser = parser
        self._follow = follow
        self._poll_interval_s = poll_interval_s
        self._rotate_polls = ceil(rotate_wait_s / poll_interval_s) if follow else 0
        self._on_lost_file = on_lost_file
        self._pause = pause
        self._rotation = Rotation(path.name)
        self._statistics = SourceStatistics()
        self._left: LineFile | None = None
        self._polls_left: int | None = None
        self._ended = False

    def statistics(self) -> SourceStatistics:
        """Return what went wrong so far."""
        return self._statistics

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Read until the file ends (without `follow`), or the daemon stops."""
        self._ended = False
        file = None if position is None else self._locate(FilePosition.decode(position))
        try:
            if file is not None:
                await self._note(intake, file)
            while not intake.stopping.is_set():
                if file is None:
                    file = await self._wait_for_file(intake)
                    continue
                found = await read_lines(file)
                if isinstance(found, ReadEnd):
                    file = await self._at_end(intake, file, found)
                    if self._ended:
                        return
                else:
                    self._polls_left = None
                    await hand_over(intake, self._parser, file, found)
        finally:
            for open_file in (file, self._left):
                if open_file is not None:
                    open_file.close()

    async def _wait_for_file(self, intake: Intake) -> LineFile | None:
        file = self._open_live()
        if file is None:
            if not self._follow:
                raise SourceError(f"{self._path} is not there")
            await self._pause(intake.stopping, self._poll_interval_s)
        else:
            await self._note(intake, file)
        return file

    async def _note(self, intake: Intake, file: LineFile) -> None:
        """Journal the first position: a file rotated before its first event would be missed."""
        await intake.note_position(file.position().encode())

    async def _at_end(self, intake: Intake, file: LineFile, end: ReadEnd) -> LineFile | None:
        """Return what to read after `end` of a file: itself again, or what came after it."""
        if end is ReadEnd.OVERWRITTEN:
            self._polls_left = None
            following = self._locate(file.position())
            file.close()
            if following is not None:
                await self._note(intake, following)
            return following
        successor = self._successor(file)
        if successor is None:
            self._polls_left = None
            if self._follow:
                self._look_at_left()
                await self._pause(intake.stopping, self._poll_interval_s)
            else:
                await hand_over(intake, self._parser, file, file.finish())
                self._ended = True
            return file
        # The end was reached before the rotation was seen, so lines may have come in
        # between: it is left only after its end was reached again.
        if self._polls_left is None:
            is_written = successor.name == self._path.name
            self._polls_left = self._rotate_polls if is_written else 0
            return file
        if self._polls_left:
            self._polls_left -= 1
            await self._pause(intake.stopping, self._poll_interval_s)
            return file
        return await self._leave(intake, file, successor)

    async def _leave(
        self, intake: Intake, file: LineFile, successor: Generation
    ) -> LineFile | None:
        following = self._open(successor)
        if following is None:  # rotated once more this very moment: look again
            return file
        await hand_over(intake, self._parser, file, file.finish())
        following.previous_inode = file.inode
        await self._note(intake, following)
        _log.info("rotated file finished", path=str(self._path), file=file.path.name)
        self._count(files_finished=1)
        self._polls_left = None
        if self._left is not None:
            self._left.close()
        self._left = file
        return following

    def _look_at_left(self) -> None:
        if self._left is not None and (unread := self._left.unread_bytes):
            _log.error(
                "a rotated file was written after it was left; raise rotate_wait",
                path=str(self._path),
                inode=self._left.inode,
                lost_bytes=unread,
            )
            self._count(left_behind_bytes=unread)
            self._left.close()
            self._left = None

    def _locate(self, position: FilePosition) -> LineFile | None:
        """Return the file that holds a position, opened there; else the next one, at its beginning.

        First by inode, under any name; then among the rotated files by content, for copies; then a
        copy that is shorter than what was read.
        """
        generations = self._generations()
        by_inode = [found for found in generations if found.inode == position.inode]
        rotated = self._rotation.in_order(
            found for found in generations if self._rotation.is_rotated(found.name)
        )
        if position.is_of_empty_file:
            # It may have been written, copied and cut since: then the copies come first.
            since = self._rotation.written_since(
                position.modified_ns, generations, previous_inode=position.previous_inode
            )
            by_inode, rotated = [*since, *by_inode], []
        for generation in (*by_inode, *reversed(rotated)):
            file = self._open(generation)
            if file is not None:
                if file.seek(position):
                    return file
                file.close()
        for generation in reversed(rotated):
            file = self._open(generation)
            if file is not None:
                if file.seek_end_of_copy(position):
                    return file
                file.close()
        self._lost(position)
        gone = Generation("", position.device, position.inode, position.modified_ns)
        younger = self._rotation.younger(gone, generations)
        return self._open(younger[0]) if younger else self._open_live()

    def _lost(self, position: FilePosition) -> None:
        self._count(files_lost=1)
        message = (
            f"{self._path}: the file that was read to byte {position.offset} "
            f"(then {position.name}, inode {position.inode}) is gone or was cut, "
            "and no file beside it holds what followed"
        )
        if self._on_lost_file == "fail":
            raise LostFileError(message)
        _log.error("source file lost", path=str(self._path), problem=message)

    def _successor(self, file: LineFile) -> Generation | None:
        """Return the generation after the file, None if there is none (yet)."""
        live = _generation(self._path)
        if live is not None and live.is_same_file(file.device, file.inode):
            return None
        generations = self._generations()
        names = {(found.device, found.inode): found.name for found in generations}
        current = Generation(
            name=names.get((file.device, file.inode), ""),
            device=file.device,
            inode=file.inode,
            modified_ns=file.position().modified_ns,
        )
        for generation in self._rotation.younger(
            current, generations, previous_inode=file.previous_inode
        ):
            if not self._is_copy(generation, file):
                return generation
            _log.warning(
                "passed over as a copy", file=generation.name, of=current.name, path=str(self._path)
            )
        return live

    def _is_copy(self, generation: Generation, file: LineFile) -> bool:
        other = self._open(generation)
        if other is None:
            return False
        try:
            return file.begins_with(other)
        finally:
            other.close()

    def _generations(self) -> list[Generation]:
        """Return all files of the folder: a rotated file is found by inode under any name."""
        try:
            paths = list(self._path.parent.iterdir())
        except FileNotFoundError:
            return []
        return [found for path in paths if (found := _generation(path)) is not None]

    def _open(self, generation: Generation) -> LineFile | None:
        """Open a file, None if its name is gone or another file's by now."""
        try:
            file = LineFile(self._path.with_name(generation.name), self._parser.limit_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"{self._path.with_name(generation.name)}: {error}") from error
        if generation.is_same_file(file.device, file.inode):
            return file
        file.close()
        return None

    def _open_live(self) -> LineFile | None:
        live = _generation(self._path)
        return None if live is None else self._open(live)

    def _count(self, **more: int) -> None:
        changed = {name: getattr(self._statistics, name) + count for name, count in more.items()}
        self._statistics = dataclasses.replace(self._statistics, **changed)


def _generation(path: Path) -> Generation | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - a fifth of Path.stat's time, at each poll
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Generation(path.name, found.st_dev, found.st_ino, found.st_mtime_ns)
