"""The session in README.md, as a new user pastes it, who has neither Spark nor Java."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.newcomer import BROKER_UP, home_of_a_newcomer, paste
from tests.support.readme import blocks, is_shown, shape

if TYPE_CHECKING:
    from pathlib import Path

_SECTIONS = ("Measure your own topic", "Reorder a topic", "Send from Python")
_END = "--- end of a block ---"


@pytest.mark.slow
@pytest.mark.test_all
@pytest.mark.promise("cli-new-user-pastes", "cli-readme-md-pasted")
def test_the_session_runs_as_it_stands(tmp_path: Path) -> None:
    """From a broker to events, the ordered topic and a send, with the outputs shown."""
    session = blocks(*_SECTIONS)
    commands = "".join(f"{block.commands}\necho '{_END}'\n" for block in session)
    assert commands.startswith(BROKER_UP)
    assert "sequitur reorder --config job.toml --runner local" in commands
    with home_of_a_newcomer(tmp_path) as home:
        # A shell continues after a command that failed; here that is the end.
        run = paste(home, "set -euo pipefail\n" + commands.removeprefix(BROKER_UP))
    said = f"{run.stdout}\n{run.stderr}"
    assert run.returncode == 0, said
    assert "Traceback" not in said
    *outputs, rest = run.stdout.split(f"{_END}\n")
    assert rest == ""
    assert all(block.output for block in session)
    for block, output in zip(session, outputs, strict=True):
        assert is_shown(block.output, output), f"{shape(block.output)}\n---\n{output}"
