"""Makes what a peer runs in, below build/peers, where it is not there yet.

The first time takes minutes: pip, Go and the jars' fetcher ask their registries.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sequitur.errors import JarError
from sequitur.pipelines.jars import LOCK_FILE, locked_jars
from sequitur.pipelines.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HERE: Final = Path(__file__).parent
_LOCK: Final = _HERE / "jars.lock"
_FOLDER: Final = Path("build/peers")
_LINES_SHOWN: Final = 10


class PeerMissingError(RuntimeError):
    """A peer cannot be had here; the message says what is missing, and the way out."""


@dataclass(frozen=True, slots=True)
class FlinkEnvironment:
    """What a Flink job is started with.

    Attributes:
        python: The interpreter that has PyFlink.
        connector: The jar of its Kafka connector.
    """

    python: Path
    connector: Path


def flink_environment() -> FlinkEnvironment:
    """Return PyFlink as pinned, and its connector.

    Raises:
        PeerMissingError: One of them cannot be had.
    """
    (connector,) = _jars("flink")
    return FlinkEnvironment(python_of("flink"), connector)


def python_of(name: str) -> Path:
    """Return the interpreter that has the packages of NAME.txt.

    Raises:
        PeerMissingError: pip could not install them.
    """
    packages = _HERE / f"{name}.txt"

    def install(home: Path) -> None:
        _run(sys.executable, "-m", "venv", home)
        pip = (home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
        _run(*pip, "-r", packages)

    return _made(name, [packages], install) / "bin" / "python"


def tools_class_path() -> str:
    """Return the class path of Kafka's tools, of the version that the embedded broker has.

    Raises:
        PeerMissingError: A jar cannot be had.
    """
    return os.pathsep.join(map(str, (*_jars("tools"), *_broker_jars())))


def streams_class_path() -> str:
    """Return the class path of StreamsJob.java, compiled.

    Raises:
        PeerMissingError: Java's compiler is missing, or a jar cannot be had.
    """
    jars = [*_jars("streams"), *_broker_jars()]
    return os.pathsep.join(map(str, (_compiled("StreamsJob", jars), *jars)))


def flink_function() -> Path:
    """Return the jar of InOrder.java, compiled with the jars that PyFlink brings.

    Raises:
        PeerMissingError: Java's compiler or PyFlink cannot be had.
    """
    libraries = python_of("flink").parents[1].glob("lib/python*/site-packages/pyflink/lib/*.jar")
    classes = _compiled("InOrder", sorted(libraries))
    jar = classes / "InOrder.jar"
    if not jar.exists():
        with zipfile.ZipFile(jar, "w") as archive:
            archive.write(classes / "InOrder.class", "InOrder.class")
    return jar


def go_program() -> Path:
    """Return the program of franz_go/.

    Raises:
        PeerMissingError: Go is missing or too old, or a module cannot be had.
    """
    source = _HERE / "franz_go"
    if shutil.which("go") is None:
        raise PeerMissingError("Go is missing; install it (its version stands in franz_go/go.mod)")

    def build(home: Path) -> None:
        home.mkdir(parents=True)
        _run("go", "build", "-C", source, "-o", home / "franz_go", ".")

    return _made("franz_go", sorted(source.iterdir()), build) / "franz_go"


def _jars(group: str, lock_file: Path = _LOCK) -> list[Path]:
    try:
        return locked_jars(group, lock_file=lock_file)
    except JarError as error:
        raise PeerMissingError(str(error)) from error


def _broker_jars() -> list[Path]:
    return _jars("broker", LOCK_FILE)


def _compiled(name: str, jars: Sequence[Path]) -> Path:
    source = _HERE / f"{name}.java"
    compiler = find_java().program.with_name("javac")
    if shutil.which(compiler) is None:
        raise PeerMissingError(
            f"{compiler} is missing; on Debian: apt-get install openjdk-17-jdk-headless"
        )

    def compile_it(home: Path) -> None:
        home.mkdir(parents=True)
        _run(compiler, "-parameters", "-d", home, "-cp", os.pathsep.join(map(str, jars)), source)

    return _made(name, [source], compile_it)


def _made(name: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """Return a folder that was made of these sources, made again where they are others."""
    home = (_FOLDER / name).absolute()
    wanted = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    installed = home / "installed"
    if not installed.exists() or installed.read_text() != wanted:
        sys.stderr.write(f"making {home}\n")
        shutil.rmtree(home, ignore_errors=True)  # one begun and not ended, or of other sources
        make(home)
        installed.write_text(wanted)
    return home


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        shown = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES_SHOWN:])
        raise PeerMissingError(f"{' '.join(map(str, words[:4]))} failed:\n{shown}")
