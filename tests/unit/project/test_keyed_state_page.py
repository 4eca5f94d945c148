"""The samples of the page on keyed state print what the page shows."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from sequitur.pipelines.topology.topology_file import load_topology
from tests.support.pages import run, samples
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_samples_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet, tried, counts = samples("keyed-state.md")[:3]
    for name, sample in (("quiet", quiet), ("counts", counts)):
        (tmp_path / f"{name}.py").write_text(sample)
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is gone after the test
        monkeypatch.delitem(sys.modules, name)
    load_topology(tmp_path / "quiet.py")
    run("try_quiet", tried)
    load_topology(tmp_path / "counts.py")
    page = (ROOT / "docs" / "keyed-state.md").read_text()
    shown = re.findall(r"```\n\n```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert capsys.readouterr().out == "".join(shown)
