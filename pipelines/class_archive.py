"""An archive of the classes that a JVM loads."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sequitur.pipelines.jars import cache_directory
from sequitur.pipelines.store import durable

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """A program's classes as the JVM keeps them, parsed and verified: a start costs less CPU.

    The JVM itself checks that an archive is of its own version and of these jars, and starts
    without it otherwise. A JVM writes it at an orderly end, into a folder of its own; from there
    it is moved to the cache as a whole, so that no other JVM maps a part of one: that would crash.
    """

    shared: Path
    own: Path

    @classmethod
    def of(cls, program: str, java: Path, class_path: str, directory: Path) -> ClassArchive:
        stat = java.resolve().stat()
        key = f"{java.resolve()} {stat.st_size} {stat.st_mtime_ns} {class_path}"
        name = f"{program}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"
        return cls(cache_directory() / "classes" / name, directory / "classes.jsa")

    def option(self) -> str:
        """Return the JVM's option that uses the archive, or creates it."""
        return next(iter(self.use()), self.create())

    def create(self) -> str:
        return f"-XX:ArchiveClassesAtExit={self.own}"

    def use(self) -> list[str]:
        """Return the JVM's option that uses the archive; empty if there is no archive."""
        return [f"-XX:SharedArchiveFile={self.shared}"] if self.shared.exists() else []

    def publish(self) -> None:
        """Move an archive that a JVM wrote at its end to where the next JVM finds it."""
        if not self.own.exists():
            return
        # It only saves time: a full disk or a read-only cache is not worth an error.
        with contextlib.suppress(OSError):
            self.shared.parent.mkdir(parents=True, exist_ok=True)
            with durable.written_aside(self.shared) as aside:
                shutil.move(self.own, aside)
                durable.sync(aside)
