"""The guarantees page names tests that are there."""

from __future__ import annotations

import re

from tests.support.tree import ROOT


def test_each_named_test_exists() -> None:
    """A row whose test was renamed or removed would promise without proof."""
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert named, "the page names no tests"
    assert named - defined == set()
