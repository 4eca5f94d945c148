"""Pages say what is there: README.md's installation, and the metrics for who runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from tests.house.reference import DOCS
from tests.support.readme import pasted
from tests.support.tree import ROOT
from tests.support.waiting import PATIENCE_S


@pytest.mark.test_all
@pytest.mark.promise("cli-readme-md-pasted")
@pytest.mark.slow  # builds, and makes a virtual environment
def test_the_installation_can_be_pasted(tmp_path: Path) -> None:
    """It gives an environment with the commands; dependencies are those of these tests."""
    own = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_IGNORE_INSTALLED": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which is pip's way to say that there is none
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
    }
    kept = {
        name: os.environ[name]
        for name in ("SEQUITUR_CACHE", "SEQUITUR_IVY_SETTINGS", "JAVA_HOME")
        if name in os.environ
    }
    run = subprocess.run(
        ["bash"], input=f"set -euo pipefail\n{pasted('Install')}\ncommand -v sequitur\n",
        cwd=ROOT, env={**own, **kept}, timeout=5 * PATIENCE_S, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Usage: sequitur" in run.stdout
    assert run.stdout.endswith(f"\n{tmp_path}/sequitur/bin/sequitur\n")
    assert list(tmp_path.glob("sequitur/lib/python3*/site-packages/sequitur/cli/main.py"))


@pytest.mark.parametrize("page", ["operate.md", "troubleshooting.md", "sequitur-alerts.yml"])
def test_each_named_metric_exists(page: str) -> None:
    """An alert on a metric that was renamed would never fire."""
    metric = re.compile(r"\bsequitur_(?:producer|reorder|process)_\w+")
    named = set(metric.findall((DOCS / page).read_text()))
    assert named, "the page names no metrics"
    assert named <= set(metric.findall((DOCS / "metrics.md").read_text()))


_PAGES: Final = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_BLOCK: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE: Final = re.compile(r"`[^`\n]*`")


def _anchors(page: Path) -> set[str]:
    """Return what headings are called in links, as GitHub does."""
    titles = re.findall(r"^#+ (.*)$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of the project, and to a heading of it."""
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", _BLOCK.sub("", page.read_text()))):
        place, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / place if place else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            missing.append(link)
    assert missing == []
