"""A process is held where it stands, whatever it is in the middle of."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.held import held

if TYPE_CHECKING:
    from pathlib import Path

_CLONE = {"x86_64": 56, "aarch64": 220}

_PARENT = """
import ctypes, os, pathlib, signal, sys
begun = pathlib.Path(sys.argv[1])
is_continued = False
def note(*_):
    global is_continued
    is_continued = True
signal.signal(signal.SIGCONT, note)
child = ctypes.CDLL(None).syscall({number}, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0)  # CLONE_VFORK
if child == 0:
    begun.write_text(str(os.getpid()))
    while not is_continued:
        signal.pause()
    os._exit(0)
os.waitpid(child, 0)
begun.with_name("over").touch()
signal.pause()
"""


@pytest.mark.skipif(platform.machine() not in _CLONE, reason="the system call's number is unknown")
def test_a_process_that_waits_for_its_vfork_child_is_held(tmp_path: Path) -> None:
    """It cannot be stopped before its child runs a program of its own, as a JVM starts one."""
    begun, over = tmp_path / "begun", tmp_path / "over"
    program = _PARENT.format(number=_CLONE[platform.machine()])
    process = subprocess.Popen([sys.executable, "-c", program, str(begun)], start_new_session=True)
    try:
        while not (begun.exists() and begun.read_text()):
            assert process.poll() is None
            time.sleep(0.001)
        with held([process.pid, int(begun.read_text())]):
            assert process.poll() is None
        while not over.exists():
            assert process.poll() is None
            time.sleep(0.001)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
