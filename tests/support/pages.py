"""Pages of docs/, as their reader sees them: sections, rows of tables, and samples to copy."""

from __future__ import annotations

import re
from typing import Any

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


def samples(page: str) -> list[str]:
    """Return the Python samples of a page in `docs/`, in their order."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(where: str, *several: str) -> dict[str, Any]:
    """Run samples one after the other, as in one file; return the names that they have made."""
    names: dict[str, Any] = {"__name__": where}
    for sample in several:
        exec(compile(sample, where, "exec"), names)
    return names
