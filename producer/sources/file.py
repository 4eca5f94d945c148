"""`file:PATH`: follows a growing file through rotation, each line once.

Rotated by rename and create: the old file is read to its end under its new name, then the
new file. Rotated by copy and truncate: what was not read before the truncation is read from the
copy. Both may have happened while the daemon was down, and more than once.

Links are followed: rotation happens beside the file that a link points to. When the link points
elsewhere, as that of a container does which was started again, the old file and its generations are
read to their end first.

Not read are lines written between copy and truncation, which are in neither file, and generations
that were compressed or removed before they were read. A missing file, and one that is passed over,
is logged as an error, counted, and with `on_lost_file = "fail"` ends the source.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import lzma
import os
import stat
import time
import zlib
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from pydantic import Field

from sequitur.base.log import Logger
from sequitur.base.units import Duration
from sequitur.errors import LostFileError, SourceError
from sequitur.producer.sources._head import (
    digest,
    head_at,
    head_of,
    require_lines,
    require_uncompressed,
)
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
from sequitur.producer.sources._rotation import (
    Following,
    Generation,
    OlderGenerations,
    Rotation,
    files_between,
)
from sequitur.producer.sources._source import SourceKind, WaitLog, check_readable, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO, Unpack

    from sequitur.producer.sources._lines import EventParser, LineBatch
    from sequitur.producer.sources._rotation import RotatedNumbers
    from sequitur.producer.sources._source import Intake, IntakeTicket

_READERS: Final[Mapping[str, Callable[[Path], IO[bytes]]]] = {
    ".gz": cast("Callable[[Path], IO[bytes]]", gzip.open),
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_BAD_CONTENT: Final = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
_MAX_LISTINGS: Final = 10
_log: Final = Logger(__name__)


class FileSource(LineFileSource):
    """Follows one file."""

    def __init__(
        self,
        path: Path,
        parser: EventParser,
        *,
        rotate_wait_s: float = 2.0,
        take_last_line: bool = False,
        rotated_numbers: RotatedNumbers = "higher-is-older",
        now_s: Callable[[], float] = time.monotonic,
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__("file", path, parser, **options)
        self._rotate_polls = ceil(rotate_wait_s / self._poll_interval_s)
        self._take_last_line = take_last_line
        self._rotated_numbers: RotatedNumbers = rotated_numbers
        self._log = self._log_at(self._target())
        self._older = OlderGenerations()
        self._is_new = True
        self._left: LineFile | None = None
        self._polls_left: int | None = None
        self._ended = False
        self._waits = WaitLog(now_s)

    async def run(self, intake: Intake, position: bytes | None) -> None:
        """Read until the file ends (without `follow`), or the daemon stops."""
        self._ended = False
        if position is None:
            self._begin()
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
                    await self._hand_over(intake, file, found)
        finally:
            for open_file in (file, self._left):
                if open_file is not None:
                    open_file.close()

    async def _hand_over(
        self, intake: Intake, file: LineFile, batch: LineBatch
    ) -> IntakeTicket | None:
        if not batch.first_offset:
            require_lines(file.path, file.head)
        return await super()._hand_over(intake, file, batch)

    def _begin(self) -> None:
        """Begin with the file as it is now: what rotation has left beside it is not read."""
        self._log = self._log_at(self._target())
        found = self._log.rotation.following(None, self._log.generations(), OlderGenerations())
        self._older = OlderGenerations().of([*found.unread, *found.older])

    async def _wait_for_file(self, intake: Intake) -> LineFile | None:
        if self._is_new and self._target() != self._log.path:
            self._begin()
        following = self._next(None)
        file = None if following is None else self._enter(following)
        if file is None:
            if not self._follow:
                raise SourceError(f"{self._path} is not there")
            self._waits.still("waiting for the file: it is not there", path=str(self._path))
            await self._pause(intake.stopping, self._poll_interval_s)
        else:
            self._waits.over()
            await self._note(intake, file)
        return file

    def _enter(self, following: _Next, file: LineFile | None = None) -> LineFile | None:
        """Open what comes next, and log what is passed over; None if it is no longer there."""
        if file is None:
            file = following.log.open(following.generation)
        if file is not None:
            try:
                self._tell(following)
            except LostFileError:
                file.close()
                raise
            self._adopt(following.log, following.older, file)
        return file

    def _adopt(self, log: LogFolder, older: OlderGenerations, file: LineFile) -> None:
        self._is_new = False
        self._log, self._older = log, older
        file.log, file.older = str(log.path), older

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
        successor = self._next(file)
        if successor is None:
            self._polls_left = None
            if self._follow:
                self._look_at_left()
                await self._pause(intake.stopping, self._poll_interval_s)
            else:
                await self._end(intake, file)
            return file
        # The end was reached before the rotation was seen, so lines may have come in
        # between: it is left only after its end was reached again.
        if self._polls_left is None:
            may_be_written = successor.is_written or successor.log is not self._log
            waits = may_be_written and (self._follow or file.has_rest)
            self._polls_left = self._rotate_polls if waits else 0
            return file
        if self._polls_left:
            self._polls_left -= 1
            await self._pause(intake.stopping, self._poll_interval_s)
            return file
        return await self._leave(intake, file, successor)

    async def _end(self, intake: Intake, file: LineFile) -> None:
        """End at the end of the file that is written. Its last line may be half a line yet."""
        if self._take_last_line or file.has_whole_rest(self._parser):
            await self._hand_over(intake, file, file.finish())
        elif file.has_rest:
            _log.warning(
                "last line has no newline, so the next run reads it. To send it now, set "
                "take_last_line",
                path=str(file.path),
                **file.rest(),
            )
        self._look_at_left()
        self._ended = True

    async def _leave(self, intake: Intake, file: LineFile, successor: _Next) -> LineFile | None:
        following = successor.log.open(successor.generation)
        if following is None:  # rotated once more this very moment: look again
            return file
        try:
            await self._hand_over(intake, file, file.finish())
            self._enter(successor, following)
            await self._note(intake, following)
        except BaseException:
            following.close()
            raise
        _log.info("rotated file finished", path=str(self._path), file=file.path.name)
        self._count(files_finished=1)
        self._polls_left = None
        if self._left is not None:
            self._left.close()
        self._left = file
        return following

    def _look_at_left(self) -> None:
        what = "a rotated file was written after it was left. Raise rotate_wait"
        if self._left is not None and self._tell_left_behind(self._left, what):
            self._left.close()
            self._left = None

    def _locate(self, position: FilePosition) -> LineFile | None:
        """Return the file that holds a position, opened there; else the next one, at its start."""
        target = self._target()
        # Where the log was, and where the link points now: a folder may have been moved.
        logs = [
            self._log_at(path) for path in dict.fromkeys((Path(position.log or target), target))
        ]
        for log in logs:
            generations = log.generations()
            older = _older_than(position, generations)
            file = _find(log, generations, position, older)
            if file is not None:
                self._adopt(log, older, file)
                return file
        self._log, self._is_new = logs[0], False
        self._older = _older_than(position, self._log.generations())
        self._lost(
            f"{self._path}: the file that was read to byte {position.offset} "
            f"(then {position.name}, inode {position.inode}) is gone or was cut, "
            "and no file beside it holds what followed"
        )
        following = self._next(None, lost=position)
        return None if following is None else self._enter(following)

    def _tell(self, following: _Next) -> None:
        """Log what is not read, and why."""
        path = str(self._path)
        for copy in following.copies:
            _log.warning("passed over as a copy", file=copy.name, path=path)
        misnumbered = [found.name for found in following.following.misnumbered]
        if misnumbered:
            _log.error(
                "numbers of rotated files contradict what was read: see rotated_numbers",
                path=path,
                older_files=misnumbered,
                rotated_numbers=self._rotated_numbers,
            )
        for passed in following.following.passed_over:
            self._count(files_passed_over=1)
            message = f"{following.log.path.with_name(passed.generation.name)}: {passed.reason}"
            if self._on_lost_file == "fail":
                raise LostFileError(f"{message} (rotated_numbers is {self._rotated_numbers})")
            _log.error("rotated file passed over", path=path, problem=message)

    def _next(self, file: LineFile | None, lost: FilePosition | None = None) -> _Next | None:
        """Return what to read after a file, or after all of the log; None if nothing came yet."""
        live = self._log.live()
        if file is not None and live is not None and live.is_same_file(file.device, file.inode):
            return self._elsewhere(file)
        generations = self._log.generations()
        current = None if file is None else file.generation(self._name_of(file, generations))
        following = self._log.rotation.following(current, generations, self._older)
        if lost is not None:
            following = _without(following, lost)
        copies = []
        generation = live
        for unread in following.unread:
            if file is None or not self._is_copy(unread, file):
                generation = unread
                break
            copies.append(unread)
        if generation is None:
            return self._elsewhere(file)
        older = self._older.of([*following.older, *copies])
        return _Next(self._log, generation, older, following, tuple(copies))

    def _elsewhere(self, file: LineFile | None) -> _Next | None:
        """Return what to read of the file that a link points to by now, None if there is none."""
        target = self._target()
        before = self._log.path
        if target == before:
            return None
        between = []
        if target.parent == before.parent:
            names = files_between(before.name, target.name, self._log.names())
            between = [before.with_name(name) for name in names]
        for path in (*between, target):
            log = self._log_at(path)
            live = log.live()
            if live is None:
                continue
            if file is not None and live.is_same_file(file.device, file.inode):
                self._adopt(log, self._older, file)  # its folder was moved
                return None
            following = log.rotation.following(None, log.generations(), OlderGenerations())
            generation = following.unread[0] if following.unread else live
            return _Next(log, generation, OlderGenerations().of(following.older), following)
        return None

    def _name_of(self, file: LineFile, generations: list[Generation]) -> str:
        """Return the name that a file has now, a rotated one rather than any other."""
        names = [found.name for found in generations if found.is_same_file(file.device, file.inode)]
        return next(filter(self._log.rotation.is_rotated, names), names[0] if names else "")

    def _is_copy(self, generation: Generation, file: LineFile) -> bool:
        other = self._log.open(generation)
        if other is None:
            return False
        try:
            return file.begins_with(other)
        finally:
            other.close()

    def _target(self) -> Path:
        return Path(os.path.realpath(self._path))

    def _log_at(self, path: Path) -> LogFolder:
        return LogFolder(path, self._rotated_numbers, self._parser.limit_bytes)


@dataclass(frozen=True, slots=True)
class _Next:
    """What is read after a file."""

    log: LogFolder
    generation: Generation
    older: OlderGenerations
    following: Following  # what was found beside it, and is not read
    copies: tuple[Generation, ...] = ()  # likewise: copies of what was read

    @property
    def is_written(self) -> bool:
        """Whether it is the file that is written: its writer may still write to the one before."""
        return self.generation.name == self.log.path.name


class LogFolder:
    """One log file, by the name under which it is written, and its folder."""

    def __init__(self, path: Path, numbers: RotatedNumbers, limit_bytes: int) -> None:
        self.path = path
        self.rotation = Rotation(path.name, numbers)
        self._limit_bytes = limit_bytes

    def live(self) -> Generation | None:
        """Return the file that is written, None if there is none."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - a fifth of Path.stat's time, at each poll
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return Generation(self.path.name, found.st_dev, found.st_ino, found.st_mtime_ns)

    def generations(self) -> list[Generation]:
        """Return all files of the folder: by its inode a rotated file is found under any name."""
        # A rotation renames one file after the other: a listing in between may miss one.
        found = self._list()
        for _ in range(_MAX_LISTINGS):
            before, found = found, self._list()
            if {(each.name, each.inode) for each in before} == {
                (each.name, each.inode) for each in found
            }:
                break
        return found

    def is_of(self, generation: Generation) -> bool:
        """Return whether it has the log's name, or one that rotation gives."""
        return generation.name == self.path.name or self.rotation.is_rotated(generation.name)

    def names(self) -> list[str]:
        try:
            return os.listdir(self.path.parent)  # noqa: PTH208 - names are what is asked for
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, generation: Generation) -> LineFile | None:
        """Open a file, None if its name is gone or another file's by now."""
        path = self.path.with_name(generation.name)
        try:
            file = LineFile(path, self._limit_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"{path}: {error}") from error
        if generation.is_same_file(file.device, file.inode):
            return file
        file.close()
        return None

    def _list(self) -> list[Generation]:
        return [found for name in self.names() if (found := self._generation(name)) is not None]

    def _generation(self, name: str) -> Generation | None:
        path = self.path.with_name(name)
        try:
            # A link beside the file names the file once more, unless it stands for a generation.
            found = path.stat(follow_symlinks=self.rotation.is_rotated(name))
            if not stat.S_ISREG(found.st_mode):
                return None
            head = self._head(path)
        except FileNotFoundError:
            return None
        return Generation(name, found.st_dev, found.st_ino, found.st_mtime_ns, head)

    def _head(self, path: Path) -> bytes | None:
        """Return the beginning of a generation's content, nothing of other files."""
        if self.rotation.is_rotated(path.name):
            try:
                with path.open("rb") as file:
                    return head_at(file.fileno())[1]
            except PermissionError:
                return None
        if self.rotation.is_compressed(path.name):
            reader = _READERS.get(path.suffix)
            if reader is None:
                return None
            try:
                with reader(path) as compressed:
                    return head_of(compressed)[1]
            except FileNotFoundError:
                raise
            except _BAD_CONTENT:
                return b""  # it is being written
        return b""


def _find(
    log: LogFolder,
    generations: list[Generation],
    position: FilePosition,
    older: OlderGenerations,
) -> LineFile | None:
    """Return the file that holds a position, opened there; None if there is none.

    First by inode, under any name; then among the rotated files by content, for copies; then a
    copy that is shorter than what was read.
    """
    by_inode = [found for found in generations if found.inode == position.inode]
    rotated = log.rotation.in_order(
        found for found in generations if log.rotation.is_rotated(found.name)
    )
    if position.is_of_empty_file:
        rotated = []
        if any(log.is_of(found) for found in by_inode):
            # It may have been written, copied and cut since: then the copies come first.
            by_inode = [*log.rotation.following(None, generations, older).unread, *by_inode]
    for generation in (*by_inode, *reversed(rotated)):
        file = log.open(generation)
        if file is not None:
            if file.seek(position):
                return file
            file.close()
    for generation in reversed(rotated):
        file = log.open(generation)
        if file is not None:
            if file.seek_end_of_copy(position):
                return file
            file.close()
    return None


def _older_than(position: FilePosition, generations: list[Generation]) -> OlderGenerations:
    """Return the generations before a position: its list, or else those last written before it."""
    if position.older is not None:
        return position.older
    return OlderGenerations().of(
        found for found in generations if found.modified_ns <= position.modified_ns
    )


def _without(following: Following, lost: FilePosition) -> Following:
    """Leave out a compressed file that was already logged as lost."""
    return dataclasses.replace(
        following,
        passed_over=tuple(
            passed
            for passed in following.passed_over
            if digest((passed.generation.head or b"")[: lost.head_length]) != lost.head
        ),
    )


class FileSettings(LineFileSettings):
    """Settings of `file`."""

    rotate_wait: Duration = Field(
        default=timedelta(seconds=2),
        description="How long a rotated file must be silent before the daemon leaves it (file)",
    )
    take_last_line: bool = Field(
        default=False,
        description="With --no-follow, send a last line that has no newline (file)",
    )
    rotated_numbers: Literal["higher-is-older", "higher-is-newer"] = Field(
        default="higher-is-older",
        description="Which of app.log.1 and app.log.2 is older (file)",
    )


def _check(settings: FileSettings) -> None:
    """Refuse a path that cannot be a file. A file that is not there may still come."""
    path = path_of(settings)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
        parent = next(one for one in path.parents if one.exists())
        if not parent.is_dir():
            raise SourceError(f"{path} cannot be: {parent} is no folder")
        if path.is_dir():
            raise SourceError(f"{path} is a folder: expected a file, or dir:{path}")
        if path.exists():
            if not path.is_file():
                raise SourceError(
                    f"{path} is not a regular file: expected one, or stdin for a pipe"
                )
            check_readable(path)
            require_uncompressed(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def _make(settings: FileSettings, parser: EventParser) -> FileSource:
    return FileSource(
        path_of(settings),
        parser,
        rotate_wait_s=settings.rotate_wait.total_seconds(),
        take_last_line=settings.take_last_line,
        rotated_numbers=settings.rotated_numbers,
        **file_options(settings),
    )


SOURCE: Final = SourceKind(settings=FileSettings, make=_make, check=_check, takes="PATH")
