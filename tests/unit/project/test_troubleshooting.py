"""The messages that docs/troubleshooting.md explains are messages of the code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tests.support.pages import rows_of, section
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES: Final = ("sequitur", "producer", "consumer", "pipelines")
_SECTIONS: Final = (
    "Look up an error",
    "The producer waits",
    "The daemon answers 503",
    "A subscription is refused or fenced",
)
_LINES_OF_ONE_TEXT: Final = re.compile(r'"\s*\n\s*[fr]*"')


def _messages() -> Iterator[str]:
    for title in _SECTIONS:
        for first, *others in rows_of(section("troubleshooting.md", title)):
            told = others[0] if title == "The daemon answers 503" and len(others) > 1 else first
            yield from re.findall(r"`([^`]+)`", told)


def test_each_message_of_the_page_is_in_the_code() -> None:
    """Between two ellipses stands what the code says, word for word."""
    texts = "\n".join(
        _LINES_OF_ONE_TEXT.sub("", path.read_text())
        for package in _PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    )
    messages = list(_messages())
    assert len(messages) > 30
    forms = {one: ".*".join(map(re.escape, re.findall(r"[^… '][^…]*", one))) for one in messages}
    assert [one for one, form in forms.items() if not re.search(form, texts)] == []
