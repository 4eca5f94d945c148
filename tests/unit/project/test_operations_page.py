"""The page for who runs it names metrics that are there."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.support.tree import ROOT

_SOURCES: Final = {
    "producer": ROOT / "producer" / "daemon" / "health.py",
    "reorder": ROOT / "pipelines" / "ordering" / "metrics.py",
    "process": ROOT / "pipelines" / "ordering" / "metrics.py",
}


@pytest.mark.parametrize("page", ["operations.md", "reorder.md", "sequitur-alerts.yml"])
def test_each_named_metric_exists(page: str) -> None:
    """An alert on a metric that was renamed would never fire."""
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"\bsequitur_(producer|reorder|process)_(\w+)", text))
    assert named, "the page names no metrics"
    prefixed = re.compile(r'"(?:\{[\w.]+\}_|sequitur_process_)?([a-z_]+)"')
    exported = {
        (kind, name)
        for kind, source in _SOURCES.items()
        for name in prefixed.findall(source.read_text())
    }
    assert {(kind, name.removesuffix("_total")) for kind, name in named} - exported == set()
