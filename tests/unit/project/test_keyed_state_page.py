"""The samples of the page on keyed state print what the page shows."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.pages import run, samples
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("first", "name"), [(0, "quiet"), (2, "visits")])
def test_the_sample_prints_what_the_page_shows(
    first: int,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topology, tried = samples("keyed-state.md")[first : first + 2]
    (tmp_path / f"{name}.py").write_text(topology)
    monkeypatch.setitem(sys.modules, name, sys)  # so that it is gone after the test
    monkeypatch.delitem(sys.modules, name)
    load_topology(tmp_path / f"{name}.py")
    run(f"try_{name}", tried)
    page = (ROOT / "docs" / "keyed-state.md").read_text()
    shown = re.findall(r"```\n\n```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert capsys.readouterr().out == shown[first // 2]
