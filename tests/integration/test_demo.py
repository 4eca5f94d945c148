"""The demo is a test too: the whole way from readings to order, through the programs users run.

It is run as it is installed, where a user has a producer.py, consumer.py and pipelines.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from sequitur.cli.demo import run_demo
from sequitur.errors import DemoError
from tests.support.installed import install_wheel
from tests.support.readme import blocks, is_shown
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.promise("cli-make-demo-fresh")
@pytest.mark.slow
def test_the_demo_loses_nothing_and_restores_the_order(tmp_path: Path) -> None:
    """Three daemons, the job under spark-submit and an independent reader agree on each event."""
    installed = install_wheel(tmp_path)
    plot, report_file = tmp_path / "demo.png", tmp_path / "demo.json"
    run = installed.run(
        "sequitur", "demo", "--seconds", "8", "--rate-hz", "50",
        "--plot", str(plot), "--report", str(report_file),
        without=("KAFKA_BOOTSTRAP_SERVERS",),
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(report_file.read_text())
    assert report["problems"] == []
    assert (report["lost"], report["duplicates"], report["held"]) == (0, 0, 0)
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
    assert "nothing lost, nothing duplicated" in run.stdout
    (shown,) = blocks("See it")
    assert is_shown(shown.output, run.stdout), run.stdout
    said = [*run.stdout.splitlines(), *run.stderr.splitlines()]
    assert sum(line.startswith("step ") for line in said) >= 2
    assert sum(line.startswith("demo: ") for line in said) == 4
    assert [line for line in said if "{" in line or "WARNING" in line] == []


def test_a_delay_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """And by name, not by the job some seconds later."""
    with pytest.raises(DemoError, match="--delay '10 parsecs'"):
        run_demo(seconds=1, rate_hz=1, delay="10 parsecs", plot=tmp_path / "demo.png")


@pytest.mark.promise("cli-sequitur-demo-ended")
def test_a_demo_that_is_ended_leaves_nothing_running(tmp_path: Path) -> None:
    """Neither its broker nor its three daemons outlive it, and its folder is gone."""
    environ = {k: v for k, v in os.environ.items() if k != "KAFKA_BOOTSTRAP_SERVERS"}
    environ["TMPDIR"] = str(tmp_path)
    command = [sys.executable, "-m", "sequitur", "demo", "--seconds", "600"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "daemons sample" in line:
                break
        myself = psutil.Process(demo.pid)
        while len(started := myself.children(recursive=True)) < 4:
            assert demo.poll() is None
        demo.send_signal(signal.SIGTERM)
        assert demo.wait() == 143
    gone, alive = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert (len(gone), alive) == (len(started), [])
    assert list(tmp_path.glob("sequitur-demo-*")) == []
