"""The session in README.md, as a new user pastes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sequitur.embedded import EmbeddedBroker
from tests.support.readme import blocks, is_shown, shape
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_TIMEOUT_S = 8 * PATIENCE_S
_SECTIONS = ("Measure your own topic", "Reorder a topic", "Send from Python")
_END = "--- end of a block ---"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder that stands for the clone, with a user's home of its own; its broker is ended."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    yield tmp_path
    EmbeddedBroker(tmp_path / "state" / "sequitur" / "broker").stop()


@pytest.mark.test_all
@pytest.mark.promise("cli-new-user-pastes", "cli-readme-md-pasted")
def test_the_session_runs_as_it_stands(home: Path) -> None:
    """From a broker to events, the ordered topic and a send, with the outputs shown."""
    clean = ("SEQUITUR", "KAFKA", "XDG", "PYTHON", "SPARK")
    kept = ("SEQUITUR_CACHE", "SEQUITUR_IVY_SETTINGS")
    environ = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(clean)
    }
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    own = {
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": cache,
        # Each JVM of it is short-lived: the second compiler would take a third of the time.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    # A shell goes on after a command that failed; here that is the end. What is pasted is the
    # shell's standard input, and so that of each command: one that read it would swallow the rest.
    session = blocks(*_SECTIONS)
    commands = "".join(f"{block.commands}\necho '{_END}'\n" for block in session)
    run = subprocess.run(
        ["bash"], input=f"set -euo pipefail\n{commands}",
        cwd=home, env={**environ, **own}, timeout=_TIMEOUT_S, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    said = f"{run.stdout}\n{run.stderr}"
    assert run.returncode == 0, said
    assert "Traceback" not in said
    *outputs, rest = run.stdout.split(f"{_END}\n")
    assert rest == ""
    assert all(block.output for block in session)
    for block, output in zip(session, outputs, strict=True):
        assert is_shown(block.output, output), f"{shape(block.output)}\n---\n{output}"
