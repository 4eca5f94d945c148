"""How the broker's JVM is started: memory and compilers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sequitur.pipelines.class_archive import ClassArchive

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
