"""The page for who runs it names metrics that are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_SOURCES: Final = {
    "producer": _ROOT / "producer" / "daemon" / "health.py",
    "reorder": _ROOT / "pipelines" / "ordering" / "metrics.py",
    "process": _ROOT / "pipelines" / "ordering" / "metrics.py",
}


@pytest.mark.parametrize("page", ["operations.md", "reorder.md"])
def test_each_named_metric_exists(page: str) -> None:
    """An alert on a metric that was renamed would never fire."""
    text = (_ROOT / "docs" / page).read_text()
    named = set(re.findall(r"\bsequitur_(producer|reorder|process)_(\w+)", text))
    assert named, "the page names no metrics"
    prefixed = re.compile(r'"(?:\{[\w.]+\}_|sequitur_process_)?([a-z_]+)"')
    exported = {
        (kind, name)
        for kind, source in _SOURCES.items()
        for name in prefixed.findall(source.read_text())
    }
    assert {(kind, name.removesuffix("_total")) for kind, name in named} - exported == set()
