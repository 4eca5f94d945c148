"""README.md, as its reader pastes it."""

from __future__ import annotations

import re

from tests.support.tree import ROOT


def pasted(section: str) -> str:
    """All blocks of a section, one after the other.

    Raises:
        ValueError: There is no such section, or one of its blocks is not for a shell.
    """
    text = (ROOT / "README.md").read_text().partition(f"\n## {section}\n")[2]
    blocks = re.findall(
        r"^```(\w*)\n(.*?)^```", text.partition("\n## ")[0], re.DOTALL | re.MULTILINE
    )
    if not blocks or {language for language, _ in blocks} != {"sh"}:
        raise ValueError(f"{section}: blocks of {[language for language, _ in blocks]}")
    return "\n".join(block for _, block in blocks)
