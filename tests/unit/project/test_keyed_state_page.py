"""The samples of the page on keyed state print what the page shows."""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING

import pytest

from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.pages import samples
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "places", "shown"),
    [("quiet", (0, 1), 0), ("counts", (2,), 1), ("visits", (3, 4), 2), ("visits", (3, 6), 3)],
)
def test_the_sample_prints_what_the_page_shows(
    name: str,
    *,
    places: tuple[int, ...],
    shown: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first one is a topology, and the second one tries it."""
    modules = [name, f"try_{name}_{shown}"][: len(places)]
    for module, place in zip(modules, places, strict=True):
        (tmp_path / f"{module}.py").write_text(samples("keyed-state.md")[place])
        monkeypatch.setitem(sys.modules, module, sys)  # so that it is gone after the test
        monkeypatch.delitem(sys.modules, module)
    load_topology(tmp_path / f"{name}.py")
    for module in modules[1:]:
        importlib.import_module(module)
    page = (ROOT / "docs" / "keyed-state.md").read_text()
    printed = re.findall(r"```\n\n```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert capsys.readouterr().out == printed[shown]
