"""Words and sentences of what users read: pages, public docstrings, help, log lines, errors.

`python -m tests.house.prose [page ...]` names each sentence that is too long, holds two rules, or
has a word of our own dialect. CONTRIBUTING.md has the rules; this is their floor.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.house import face
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_WORDS: Final = 30
_DIALECT: Final = re.compile(
    r"\b(anew|by name|told|is had|are had|(?:is|are|was) given up|go(?:es)? on|went on|gone on"
    r"|likewise"
    r"|dear|mended|lets? go|behind|(?<!there )(?:is|are) no(?! (?:more|\w+er)\b)|house)\b",
    re.IGNORECASE,
)
_TWO_RULES: Final = re.compile(r"; |, also\b|(?:, and .*){2}")
_PACKAGES: Final = ("sequitur", "producer", "consumer", "pipelines")
_SAYS: Final = {"debug", "info", "warning", "error", "exception", "critical", "complain"}
_PAGES: Final = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("docs/*.md", "docs/inside/*.md", "docs/reference/*.md"),
)


def of_page(text: str) -> Iterator[str]:
    """Paragraphs, items and cells of a page; commands and samples are not prose."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"::\n(?:\n| {4}.*\n)+", "\n\n", text)
    text = re.sub(r"^(?:#+ .*|\|[-| :]+\|)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*>]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n", text):
        for line in part.splitlines() if part.lstrip().startswith("|") else [part]:
            if line.startswith("|"):  # cells are lists, not sentences
                yield line.strip().strip("|").replace("; ", ". ").replace("|", ". ")
            else:
                yield line


def of_help(text: str) -> Iterator[str]:
    """Paragraphs of a help text, and what it says of each option and command."""
    shown = re.sub(r"^[╭╰].*$", "", text, flags=re.MULTILINE)
    shown = re.sub(r"^│ {1,6}(?=\S)", "\n\n", shown, flags=re.MULTILINE)
    yield from re.split(r"\n\s*\n", shown.replace("│", " "))


def _texts(node: ast.AST) -> Iterator[str]:
    """What an error or a log line says, with `x` for each value in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(v.value if isinstance(v, ast.Constant) else "x" for v in node.values)  # type: ignore[misc]


def of_code(path: Path) -> Iterator[str]:
    """Texts that a module raises, logs or prints."""
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        if isinstance(node, ast.Raise) or name in _SAYS:
            for argument in call.args:
                yield from _texts(argument)


def everything() -> Iterator[tuple[str, str]]:
    """Each text with the place where it stands."""
    for page in sorted(path for pattern in _PAGES for path in ROOT.glob(pattern)):
        yield from ((str(page.relative_to(ROOT)), text) for text in of_page(page.read_text()))
    for path in sorted(path for one in _PACKAGES for path in (ROOT / one).rglob("*.py")):
        yield from ((str(path.relative_to(ROOT)), text) for text in of_code(path))
    yield from ((name, text) for name, shown in face.helps() for text in of_help(shown))


def faults(text: str) -> Iterator[str]:
    """What is wrong with each sentence of a text."""
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "x", text)
    for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(plain.split())):
        if len(re.findall(r"\w[\w'-]*", sentence)) > _MOST_WORDS:
            yield f"more than {_MOST_WORDS} words: {sentence}"
        if _TWO_RULES.search(sentence):
            yield f"two rules in one sentence: {sentence}"
        if found := _DIALECT.search(sentence):
            yield f"{found[0]!r}: {sentence}"


def main() -> None:
    pages = sys.argv[1:]
    texts = [(page, text) for page in pages for text in of_page(Path(page).read_text())]
    found = [f"{place}: {one}" for place, text in texts or everything() for one in faults(text)]
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()
