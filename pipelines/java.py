"""The Java that runs Kafka and Spark: where it is, and whether it is new enough."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sequitur.errors import JavaError

MINIMUM_VERSION: Final = 17
_ADVICE: Final = (
    f"install Java {MINIMUM_VERSION} or newer, on Debian: apt-get install openjdk-17-jre-headless"
)
# `openjdk version "17.0.15"`, and before Java 9 `java version "1.8.0_452"`.
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its program and its feature version, such as 17."""

    program: Path
    version: int


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java of ``JAVA_HOME``, or else the one on ``PATH``."""
    home = environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        if not os.access(program, os.X_OK):
            raise JavaError(
                f"JAVA_HOME is {home}, and there is no Java there: correct it, or {_ADVICE}"
            )
    else:
        found = shutil.which("java", path=environ.get("PATH", os.defpath))
        if found is None:
            raise JavaError(f"Java is not installed: {_ADVICE}")
        program = Path(found)
    version = _version(program)
    if version < MINIMUM_VERSION:
        raise JavaError(f"{program} is Java {version}, too old: {_ADVICE}")
    return Java(program, version)


@functools.cache
def _version(program: Path) -> int:
    """Ask the program for its Java version, once a process: the answer costs a JVM's start."""
    try:
        run = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{program} does not run ({error}): {_ADVICE}") from error
    match = _VERSION.search(run.stderr + run.stdout)
    if match is None:
        said = (run.stderr + run.stdout).strip() or "nothing"
        raise JavaError(
            f"{program} does not print its version (exit {run.returncode}, it says: {said}): "
            f"{_ADVICE}"
        )
    return int(match.group(1))
