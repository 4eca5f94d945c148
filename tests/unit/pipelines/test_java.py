"""Java is found, or the message says what to install."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.errors import JavaError
from sequitur.pipelines.java import Java, find_java

if TYPE_CHECKING:
    from pathlib import Path

_INSTALL = "apt-get install openjdk-17-jre-headless"


def _fake_java(home: Path, script: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx\nopenjdk version "17.0.1" 2021-10-19', 17),
    ],
)
def test_a_java_new_enough_is_taken(tmp_path: Path, said: str, version: int) -> None:
    """Whatever else it prints, its version counts."""
    program = _fake_java(tmp_path, f"cat >&2 <<'END'\n{said}\nEND")
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) == Java(program, version)
    assert find_java({"PATH": str(program.parent)}) == Java(program, version)


@pytest.mark.parametrize(
    ("said", "version"),
    [('openjdk version "11.0.27" 2025-04-15', 11), ('java version "1.8.0_452"', 8)],
)
def test_an_old_java_is_refused(tmp_path: Path, said: str, version: int) -> None:
    """The message names the program, its version and what to install."""
    program = _fake_java(tmp_path, f"echo '{said}' >&2")
    with pytest.raises(JavaError) as refused:
        find_java({"JAVA_HOME": str(tmp_path)})
    assert f"{program} is Java {version}, too old" in str(refused.value)
    assert _INSTALL in str(refused.value)


def test_no_java_is_told(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="Java is not installed") as refused:
        find_java({"PATH": str(tmp_path)})
    assert _INSTALL in str(refused.value)


def test_a_wrong_java_home_is_told(tmp_path: Path) -> None:
    """Another Java on the path is no answer to a JAVA_HOME that leads nowhere."""
    _fake_java(tmp_path, "echo 'openjdk version \"17\"'")
    environ = {"JAVA_HOME": str(tmp_path / "away"), "PATH": str(tmp_path / "bin")}
    with pytest.raises(JavaError, match=f"JAVA_HOME is {tmp_path / 'away'}"):
        find_java(environ)


@pytest.mark.parametrize("script", ["exit 3", "echo what"])
def test_a_program_that_is_no_java_is_told(tmp_path: Path, script: str) -> None:
    _fake_java(tmp_path, script)
    with pytest.raises(JavaError, match="does not print its version"):
        find_java({"JAVA_HOME": str(tmp_path)})
