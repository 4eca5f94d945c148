"""How the broker's JVM is started: memory, compilers, and an archive of the classes it loads."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sequitur.pipelines.jars import cache_directory

# Ten times the usual thresholds for the optimising compiler. At the usual ones half of the CPU time
# of a start goes into compiling code that runs only then (measured: 6.1 s -> 3.8 s); under load
# the broker's hot code passes these as well, a moment later.
_COMPILERS: Final = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# The optimising compiler never runs: another third less for a start, and for a little work.
_QUICK_COMPILER: Final = ("-XX:TieredStopAtLevel=1",)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The broker's classes as the JVM keeps them, parsed and verified: halves the CPU of a start.

    The JVM itself checks that an archive is of its own version and of these jars, and starts
    without it otherwise. A JVM writes it at an orderly end, into the broker's folder; from there
    it is moved to the cache as a whole, so that no other JVM maps a part of one.
    """

    shared: Path
    own: Path

    @classmethod
    def of(cls, java: Path, class_path: str, directory: Path) -> "ClassArchive":
        """Name the archive of a Java and a class path."""
        stat = java.resolve().stat()
        key = f"{java.resolve()} {stat.st_size} {stat.st_mtime_ns} {class_path}"
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        return cls(cache_directory() / "classes" / f"broker-{name}.jsa", directory / "classes.jsa")

    def option(self) -> str:
        """Return the JVM's option that uses the archive, or creates it."""
        return next(iter(self.use()), f"-XX:ArchiveClassesAtExit={self.own}")

    def use(self) -> list[str]:
        """Return the JVM's option that uses the archive; none as long as there is no archive."""
        return [f"-XX:SharedArchiveFile={self.shared}"] if self.shared.exists() else []

    def publish(self) -> None:
        """Move an archive that a JVM has written at its end to where the next one finds it."""
        if not self.own.exists():
            return
        # It only saves time: a full disk or a read-only cache is not worth an error.
        with contextlib.suppress(OSError):
            self.shared.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.shared.parent, prefix=".")
            os.close(handle)
            try:
                shutil.move(self.own, name)
                Path(name).replace(self.shared)
            finally:
                Path(name).unlink(missing_ok=True)


def broker_command(
    java: Path,
    class_path: str,
    *,
    heap_mib: int,
    short_lived: bool,
    log4j: Path,
    archive: ClassArchive,
) -> Sequence[str | Path]:
    """Return the command line up to the main class and its argument."""
    return [
        java,
        f"-Xms{heap_mib}m",
        f"-Xmx{heap_mib}m",
        "-XX:+UseParallelGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        *(_QUICK_COMPILER if short_lived else _COMPILERS),
        archive.option(),
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={log4j}",
        "-cp",
        class_path,
    ]
