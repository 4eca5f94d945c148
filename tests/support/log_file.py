"""A log file as programs and rotation treat it, and a source that follows it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequitur.producer.sources._lines import EventParser
from sequitur.producer.sources.file import FileSource
from tests.support.fake_intake import FakeIntake, FakeJournal, scripted_pause

if TYPE_CHECKING:
    from collections.abc import Callable


def numbers(first: int, last: int) -> list[bytes]:
    """The lines that `LogFile.write` writes, as events."""
    return [b"%d" % number for number in range(first, last + 1)]


def open_files() -> int:
    """How many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


class LogFile:
    """A log file as programs and rotation treat it."""

    def __init__(self, path: Path, *, keeps_offset: bool = False) -> None:
        self.path = path
        self._keeps_offset = keeps_offset  # its writer has no O_APPEND: a cut leaves a hole
        self._offset = 0

    def write(self, first: int, last: int) -> None:
        """Append whole lines, one a number."""
        self.append(b"".join(number + b"\n" for number in numbers(first, last)))

    def append(self, data: bytes) -> None:
        if not self._keeps_offset:
            with self.path.open("ab") as file:
                file.write(data)
            return
        self.path.touch()
        with self.path.open("r+b") as file:
            file.seek(self._offset)
            file.write(data)
        self._offset += len(data)

    def rotate(self) -> None:
        self._shift()
        self.path.rename(self._older(1))
        self.path.touch()
        self._offset = 0

    def copy_and_cut(self) -> None:
        self._shift()
        shutil.copyfile(self.path, self._older(1))
        os.truncate(self.path, 0)

    def _shift(self) -> None:
        for number in range(8, 0, -1):
            if self._older(number).exists():
                self._older(number).rename(self._older(number + 1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


async def follow(
    log: LogFile,
    journal: FakeJournal,
    *actions: Callable[[], object],
    crash_at: int | None = None,
    **options: Any,
) -> tuple[FakeIntake, FileSource]:
    """Follow the file; each time it was read to its end do the next action; then stop."""
    intake = FakeIntake(journal, crash_at)
    source = FileSource(
        log.path,
        EventParser(None, 100),
        poll_interval_s=1,
        rotate_wait_s=1,
        pause=scripted_pause(*actions, quiet=6),
        **options,
    )
    await source.run(intake, journal.position)
    return intake, source


async def read(log: LogFile, journal: FakeJournal, **options: Any) -> tuple[FakeIntake, FileSource]:
    """Read the file to its end, and end."""
    intake = FakeIntake(journal)
    parser = options.pop("parser", EventParser(None, 100))
    source = FileSource(log.path, parser, follow=False, **options)
    await source.run(intake, journal.position)
    return intake, source
