"""A new user's shell, into which pages are pasted: it has the local runner, no Spark, no Java."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sequitur.embedded import EmbeddedBroker
from sequitur.pipelines.java import find_java
from tests.support.installed import install_wheel
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S: Final = 8 * PATIENCE_S
_SPARK: Final = ("pyspark", "py4j", "pandas")
_OF_OTHERS: Final = ("SEQUITUR", "KAFKA", "XDG", "PYTHON", "SPARK", "JAVA")
_KEPT: Final = ("SEQUITUR_CACHE", "SEQUITUR_IVY_SETTINGS")
BROKER_UP: Final = 'eval "$(.venv/bin/sequitur broker up)"'
"""The one command that needs Java; `.venv` is the clone's environment, which has Spark, too."""
_HAS_NEITHER: Final = """
if command -v java || python -c 'import pyspark' 2>/dev/null; then exit 3; fi
"""


@contextmanager
def home_of_a_newcomer(folder: Path) -> Iterator[Path]:
    """Yield a home that is the clone as well: it has `sequitur`, what is installed, and `.venv`."""
    home = folder / "home"
    programs = home / "programs"
    programs.mkdir(parents=True)
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = programs / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    (home / "sequitur").symlink_to(install_wheel(folder, without=_SPARK).environment)
    (home / ".venv").symlink_to(sys.prefix)
    try:
        yield home
    finally:
        EmbeddedBroker(home / "state" / "sequitur" / "broker").stop()


def paste(home: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """Start a broker, then paste commands into the bash of an environment without Spark and Java.

    What is pasted is the shell's standard input, and so that of each command: a command that read
    it would swallow the rest.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(_OF_OTHERS)
    }
    environ |= {
        "HOME": str(home),
        "PATH": str(home / "programs"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        # The broker's JVM is short-lived: the second compiler would take a third of the time.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    java = find_java().program.resolve().parents[1]
    broker = f"export JAVA_HOME='{java}'\n{BROKER_UP}\nunset JAVA_HOME"
    script = f"{broker}\n. ~/sequitur/bin/activate\n{_HAS_NEITHER}\n{commands}"
    return subprocess.run(
        ["bash"], input=script, cwd=home, env=environ, timeout=_TIMEOUT_S, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
