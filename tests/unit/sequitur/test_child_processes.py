"""What a command has started ends with it, whichever signal ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from sequitur.base.child_processes import run_with_children
from tests.support.waiting import PATIENCE_S

_CHILD = """
import os, subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), grandchild.pid, flush=True)
grandchild.wait()
"""
_COMMAND = f"""
import os, sys
from sequitur.base.child_processes import leaving_on_signals, run_with_children
with leaving_on_signals():
    try:
        run_with_children([sys.executable, "-c", {_CHILD!r}], os.environ, timeout_s=600)
    finally:
        print("cleaning up", flush=True)
        sys.stdin.readline()
        print("cleaned up", flush=True)
"""


def test_what_nobody_needs_is_left_out_of_what_it_says(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Lines that begin so, and no others; the last one need not end."""
    says = "import sys; sys.stderr.write('WARNING: x\\nfailed\\nno WARNING: x'); sys.exit(3)"
    command = [sys.executable, "-c", says]
    status = run_with_children(command, os.environ, timeout_s=PATIENCE_S, leave_out="WARNING: ")
    assert status == 3
    assert capfd.readouterr().err == "failed\nno WARNING: x"


@pytest.mark.promise("cli-sequitur-demo-ended")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)]
)
def test_a_signal_ends_what_was_started(number: signal.Signals, status: int) -> None:
    """Also what the child has started; a second signal does not cut the cleaning up short."""
    with subprocess.Popen(
        [sys.executable, "-c", _COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        started = [psutil.Process(int(pid)) for pid in command.stdout.readline().split()]
        assert len(started) == 2
        command.send_signal(number)
        assert command.stdout.readline() == "cleaning up\n"
        gone, alive = psutil.wait_procs(started, timeout=PATIENCE_S)
        assert (len(gone), alive) == (2, [])
        command.send_signal(number)
        command.send_signal(signal.SIGTERM)
        output, _ = command.communicate("\n")
        assert output == "cleaned up\n"
        assert command.returncode == status


_INTERRUPTED = """
import os, signal, subprocess, sys, tempfile
from pathlib import Path
from sequitur.cli import demo
from sequitur.base.child_processes import leaving_on_signals, run_with_children

class Interrupted(subprocess.Popen):
    def __init__(self, command, **options):
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        super().__init__(command, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Interrupted
with leaving_on_signals():
    {start}
"""


@pytest.mark.parametrize(
    "start",
    [
        "demo._run_daemons(os.environ, Path(tempfile.gettempdir()), seconds=1, rate_hz=1)",
        "run_with_children([], os.environ, timeout_s=600)",
    ],
)
def test_a_signal_while_a_process_is_started_ends_that_process(start: str) -> None:
    """It comes when the process runs and nobody knows of it yet."""
    with subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED.format(start=start)], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        child = int(command.stdout.readline())
        assert command.wait() == 143
    outlives = psutil.pid_exists(child)
    if outlives:
        os.kill(child, signal.SIGKILL)
    assert not outlives
