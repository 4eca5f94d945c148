"""The session of docs/quickstart.md gives the output that the page shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.newcomer import home_of_a_newcomer, paste
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.slow
@pytest.mark.test_all
def test_the_session_gives_what_the_page_shows(tmp_path: Path) -> None:
    """Jobs and topology run without Spark and Java, as the page says."""
    page = (ROOT / "docs" / "quickstart.md").read_text()
    blocks = _BLOCK.findall(page.partition("\n## 3. ")[2])
    commands = [text for language, text in blocks if language == "sh"]
    assert sum(text.count("--runner local") for text in commands) == 3
    with home_of_a_newcomer(tmp_path) as home:
        run = paste(home, f"\necho '{_END}'\n".join(["", *commands, ""]))
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
