"""Pages of docs/, as their reader sees them: sections, and the rows of their tables."""

from __future__ import annotations

import re

from tests.support.tree import ROOT


def section(page: str, title: str) -> str:
    """Return the text of a section of a page.

    Raises:
        ValueError: The page has no section of that title.
    """
    _, found, text = (ROOT / "docs" / page).read_text().partition(f"\n## {title}\n")
    if not found:
        raise ValueError(f"{page} has no section {title!r}")
    return text.partition("\n## ")[0]


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row of all tables in a text, without their heads."""
    blocks = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for block in blocks
        for line in block.splitlines()[2:]
    ]
