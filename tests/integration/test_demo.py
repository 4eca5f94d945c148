"""The demo is a test too: the whole way from readings to order, through the programs users run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_loses_nothing_and_restores_the_order(tmp_path: Path) -> None:
    """Three daemons, the job under spark-submit and an independent reader agree on each event."""
    environ = {k: v for k, v in os.environ.items() if k != "KAFKA_BOOTSTRAP_SERVERS"}
    plot, report_file = tmp_path / "demo.png", tmp_path / "demo.json"
    run = subprocess.run(
        [
            sys.executable, "-m", "sequitur", "demo", "--seconds", "8", "--rate-hz", "50",
            "--plot", str(plot), "--report", str(report_file),
        ],
        env=environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(report_file.read_text())
    assert report["problems"] == []
    assert (report["lost"], report["doubled"], report["held"]) == (0, 0, 0)
    assert report["sent"] == report["read"] == report["before"]["records"] > 0
    assert report["read"] == report["released"] + report["late"] + report["quarantined"]
    assert report["before"]["event_inversions"] > 0
    assert report["after"]["event_inversions"] == 0
    assert {p["producer"].partition("~")[0] for p in report["before"]["producers"]} == {
        "cpu-1",
        "cpu-2",
        "cpu-3",
    }
    assert plot.read_bytes().startswith(PNG_SIGNATURE)
    assert "nothing lost, nothing doubled" in run.stdout
