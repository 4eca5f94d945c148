"""The demo is a test too: the whole way from readings to order, through the programs users run.

It is run as it is installed, where a user has a producer.py, consumer.py and pipelines.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from sequitur.cli.demo import run_demo
from sequitur.errors import DemoError
from tests.support.installed import install_wheel
from tests.support.readme import blocks, is_shown
from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TEST_ALL: Final = pytest.mark.test_all
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.promise("cli-make-demo-fresh")
@pytest.mark.slow
def test_the_demo_loses_nothing_and_restores_the_order(tmp_path: Path) -> None:
    """Three daemons, the job on both runners and an independent reader agree on each event."""
    installed = install_wheel(tmp_path)
    plot, report_file = tmp_path / "demo.png", tmp_path / "demo.json"
    with _watched_jobs() as has_java:
        run = installed.run(
            "sequitur", "demo", "--seconds", "8", "--rate-hz", "50",
            "--plot", str(plot), "--report", str(report_file),
            without=("KAFKA_BOOTSTRAP_SERVERS",),
        )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert has_java == {"local": False, "spark": True}
    report = json.loads(report_file.read_text())
    assert report["problems"] == []
    assert report["differing"] == 0
    assert report["sent"] == report["before"]["records"] > 0
    assert report["before"]["event_inversions"] > 0
    assert list(report["runners"]) == ["local", "spark"]
    for job in report["runners"].values():
        assert (job["lost"], job["duplicates"], job["held"]) == (0, 0, 0)
        assert report["sent"] == job["read"] == job["released"] + job["late"] + job["quarantined"]
        assert job["after"]["event_inversions"] == 0
        assert job["seconds"] > 0
    assert {p["producer"].partition("~")[0] for p in report["before"]["producers"]} == {
        "cpu-1",
        "cpu-2",
        "cpu-3",
    }
    assert plot.read_bytes().startswith(PNG_SIGNATURE)
    assert "nothing lost, nothing duplicated" in run.stdout
    assert "both runners wrote the same rows" in run.stdout
    means = report["means"]
    assert sum(one["count"] for one in means["found"]) == report["sent"]
    assert len(means["found"]) == len(means["pandas"])
    assert "each mean is out once, and to nine digits that of pandas" in run.stdout
    (shown,) = blocks("See it")
    assert is_shown(shown.output, run.stdout), run.stdout
    said = [*run.stdout.splitlines(), *run.stderr.splitlines()]
    assert sum(line.startswith("step ") for line in said) >= 4
    assert sum(line.startswith("demo: ") for line in said) == 6
    assert [line for line in said if "{" in line or "WARNING" in line] == []


@contextlib.contextmanager
def _watched_jobs() -> Iterator[dict[str, bool]]:
    """Look at the jobs that run while the block does; by runner, whether Java is one of them."""
    runners: dict[int, str] = {}
    has_java: dict[str, bool] = {}
    is_over = threading.Event()

    def look() -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = _words(process)
                if "--runner" in words:  # spark-submit, which it becomes, keeps its number
                    runners[process.pid] = words[words.index("--runner") + 1]
                if (runner := runners.get(process.pid)) is not None:
                    started = [process, *process.children(recursive=True)]
                    is_java = any(one.name() == "java" for one in started)
                    has_java[runner] = is_java or has_java.get(runner, False)

    def watch() -> None:
        while not is_over.wait(0.1):
            look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield has_java
    finally:
        is_over.set()
        watcher.join()


def test_a_delay_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """And by name, not by the job some seconds later."""
    with pytest.raises(DemoError, match="--delay '10 parsecs'"):
        run_demo(seconds=1, rate_hz=1, delay="10 parsecs", plot=tmp_path / "demo.png")


@pytest.mark.promise("cli-sequitur-demo-ended")
@pytest.mark.parametrize(
    ("seconds", "at_work", "processes"),
    [
        pytest.param(600, ("sequitur.producer", "--topic"), 3, id="the-daemons"),
        pytest.param(1, ("--runner", "local"), 1, id="the-local-runner", marks=_TEST_ALL),
    ],
)
def test_a_demo_that_is_ended_leaves_nothing_running(
    tmp_path: Path, seconds: int, at_work: tuple[str, str], processes: int
) -> None:
    """Its broker and what is at work end with it, and its folder is gone."""
    environ = {k: v for k, v in os.environ.items() if k != "KAFKA_BOOTSTRAP_SERVERS"}
    environ["TMPDIR"] = str(tmp_path)
    command = [sys.executable, "-m", "sequitur", "demo", "--seconds", str(seconds)]
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as demo:
        myself = psutil.Process(demo.pid)

        def working() -> list[psutil.Process]:
            assert demo.poll() is None
            return [one for one in myself.children() if at_work in pairwise(_words(one))]

        wait_until(lambda: len(working()) == processes)
        for one in working():
            one.suspend()  # else it might have ended by itself
        started = myself.children(recursive=True)
        assert len(started) >= processes + 1
        demo.send_signal(signal.SIGTERM)
        assert demo.wait() == 143
    gone, alive = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert (len(gone), alive) == (len(started), [])
    assert list(tmp_path.glob("sequitur-demo-*")) == []


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []
