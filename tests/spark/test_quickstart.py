"""The session of docs/quickstart.md gives the output that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from sequitur.embedded import EmbeddedBroker
from tests.support.tree import ROOT
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_BLOCK: Final = re.compile(r"^```(sh|)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_END: Final = "=== end of block"
_NEW_EACH_TIME: Final = (
    (re.compile(r"^(\d+:\d+ +)\S+T\S+", re.MULTILINE), r"\1TIME"),
    (re.compile(r"~[0-9a-f]{8}:"), "~LIFE:"),
    (re.compile(r"\(\d+/s"), "(RATE/s"),
)


def _steady(text: str) -> str:
    for pattern, instead in _NEW_EACH_TIME:
        text = pattern.sub(instead, text)
    return text


def _missing(shown: str, seen: str) -> list[str]:
    """Return the lines that the page shows and the session did not give in this order."""
    left = iter(_steady(seen).splitlines())
    return [
        line
        for line in _steady(shown).splitlines()
        if line != "..."
        and not any(
            found.startswith(line.removesuffix(" ...")) if line.endswith(" ...") else found == line
            for found in left
        )
    ]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A user's home, whose broker is ended."""
    yield tmp_path
    EmbeddedBroker(tmp_path / "state" / "sequitur" / "broker").stop()


@pytest.mark.test_all
def test_the_session_gives_what_the_page_shows(home: Path) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text()
    blocks = _BLOCK.findall(page.partition("\n## 3. ")[2])
    commands = [text for language, text in blocks if language == "sh"]
    kept = ("SEQUITUR_CACHE", "SEQUITUR_IVY_SETTINGS")
    environ = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(("SEQUITUR", "KAFKA", "XDG", "PYTHON", "SPARK"))
    }
    environ |= {
        "PATH": f"{sys.prefix}/bin:{environ['PATH']}",
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",  # each JVM of it is short-lived
    }
    script = f"\necho '{_END}'\n".join(['eval "$(sequitur broker up)"', *commands, ""])
    run = subprocess.run(
        ["bash"], input=script, cwd=home, env=environ, timeout=8 * PATIENCE_S, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    said = f"{run.stdout}\n{run.stderr}"
    seen = iter(run.stdout.split(f"{_END}\n")[1:])
    output = ""
    compared = 0
    for language, text in blocks:
        if language == "sh":
            output = next(seen, "")
        else:
            assert _missing(text, output) == [], said
            compared += 1
    assert compared == 6
    assert "Traceback" not in said
