"""What a driver that spark-submit started says, and where: between them is a JVM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sequitur.pipelines.launch import spark_submit_environment
from sequitur.pipelines.spark_settings import spark_home

pytestmark = [pytest.mark.spark]

_PROBE = Path(__file__).with_name("submitted_probe.py")
_TIMEOUT_S = 300


def _read(stream: socket.socket) -> str:
    with stream, stream.makefile("rb") as file:
        return file.read().decode()


@pytest.mark.promise("cli-progress-json")
@pytest.mark.parametrize("is_command", [True, False])
def test_standard_output_has_json_alone(is_command: bool) -> None:
    """Whatever else is printed, and by whom, is on standard error, of whatever kind the two are.

    `sequitur reorder` gives its standard output to the driver; what the JVM prints is not there.
    """
    command = [sys.executable, str(_PROBE), "a", "b"]
    environ = {**os.environ, "PYTHONWARNINGS": "default"}
    if is_command:
        environ["JAVA_TOOL_OPTIONS"] = "-Xlog:safepoint:stdout"
    else:
        command = [str(spark_home() / "bin" / "spark-submit"), *command[1:]]
        environ = spark_submit_environment(environ)
    # As a program that Node or sshd starts has them: files that nobody can open by their names.
    ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
    out, err = theirs[0].fileno(), theirs[1].fileno()
    with subprocess.Popen(command, stdout=out, stderr=err, env=environ) as run:
        for one in theirs:
            one.close()
        with ThreadPoolExecutor() as readers:
            output, errors = readers.map(_read, ours)
        status = run.wait(_TIMEOUT_S)
    assert [json.loads(line) for line in output.splitlines()] == [{"words": ["a", "b"]}], errors
    for said in ("UserWarning: a warning", "printed", "said by a child", "an error"):
        assert said in errors
    assert ("[safepoint" in errors) == is_command
    assert status == 4
