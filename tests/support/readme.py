"""README.md, as its reader pastes it, and what it says that one will see."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.tree import ROOT


class Block(NamedTuple):
    """Commands, and the output that the page shows below them; empty where it shows none."""

    commands: str
    output: str


def blocks(*sections: str) -> list[Block]:
    """All blocks of some sections, one after the other.

    Raises:
        ValueError: There is no such section, or one of its blocks is neither commands nor output.
    """
    found: list[Block] = []
    for section in sections:
        text = (ROOT / "README.md").read_text().partition(f"\n## {section}\n")[2]
        parts = re.findall(
            r"^```(\w*)\n(.*?)^```", text.partition("\n## ")[0], re.DOTALL | re.MULTILINE
        )
        if not parts or {language for language, _ in parts} - {"sh", "text"}:
            raise ValueError(f"{section}: blocks of {[language for language, _ in parts]}")
        for language, part in parts:
            if language == "sh":
                found.append(Block(part, ""))
            else:
                found[-1] = found[-1]._replace(output=part)
    return found


def pasted(*sections: str) -> str:
    """The commands of some sections, one after the other."""
    return "\n".join(block.commands for block in blocks(*sections))


def shape(text: str) -> str:
    """A text without what differs from run to run: numbers, ids, times, widths of columns."""
    text = re.sub(r"\b[0-9a-f]{8,}\b", "#", text)
    text = re.sub(r"-?\d+(?:[.,:]\d+)*", "#", text)
    lines = (re.sub(r"[\s─━]+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def is_shown(output: str, said: str) -> bool:
    """Whether what was said looks as the page shows it; `...` stands for any lines."""
    parts = [re.escape(part.strip()) for part in shape(output).split("...")]
    return re.fullmatch(r"\s*" + r"(?:.*)".join(parts) + r"\s*", shape(said), re.DOTALL) is not None
