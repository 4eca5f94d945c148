"""A log file and what rotation leaves beside it, as the disk has them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import zlib
from typing import TYPE_CHECKING, Final, cast

from sequitur.errors import SourceError
from sequitur.producer.sources._line_file import LineFile
from sequitur.producer.sources._rotation import HEAD_BYTES, Generation, Rotation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import IO

    from sequitur.producer.sources._rotation import RotatedNumbers

_READERS: Final[Mapping[str, Callable[[Path], IO[bytes]]]] = {
    ".gz": cast("Callable[[Path], IO[bytes]]", gzip.open),
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_BAD_CONTENT: Final = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
_MAX_LISTINGS: Final = 10


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
        """Return all files of the folder: a rotated file is found by inode under any name."""
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
        """Return the names of the folder's files."""
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
                    return file.read(HEAD_BYTES)
            except PermissionError:
                return None
        if self.rotation.is_compressed(path.name):
            reader = _READERS.get(path.suffix)
            if reader is None:
                return None
            try:
                with reader(path) as compressed:
                    return compressed.read(HEAD_BYTES)
            except FileNotFoundError:
                raise
            except _BAD_CONTENT:
                return b""  # it is being written
        return b""
