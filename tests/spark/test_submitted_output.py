"""What a driver that spark-submit started is told and says: between it and users is a JVM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sequitur.pipelines.spark_settings import spark_home
from tests.spark.submitted_probe import TASK
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = [pytest.mark.spark]

_PROBE = str(Path(__file__).with_name("submitted_probe.py"))
_TIMEOUT_S = 300
_WORDS = ["/tmp/prüfung", "json:größe", "日本 語", "plain"]
_USUAL = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
_SAID = ("UserWarning: a warning", "printed", "said by a child", "an error", "said by Java")


class _Run(NamedTuple):
    output: list[dict[str, Any]]
    errors: str


def _read(stream: socket.socket) -> str:
    with stream, stream.makefile("rb") as file:
        return file.read().decode()


def _run(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, *, status: int = 4
) -> _Run:
    """Run the probe, with streams as programs have them that Node or sshd starts.

    Nobody can open these files by their names.
    """
    ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
    out, err = theirs[0].fileno(), theirs[1].fileno()
    environ = {**environ, "PYTHONWARNINGS": "default", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=out, stderr=err, env=environ, cwd=folder) as run:
        for one in theirs:
            one.close()
        with ThreadPoolExecutor() as readers:
            output, errors = readers.map(_read, ours)
        assert run.wait(_TIMEOUT_S) == status, errors
    return _Run([json.loads(line) for line in output.splitlines()], errors)


@pytest.mark.promise("cli-progress-json", "cli-locale", "process-modules-beside")
def test_a_job_begun_by_a_command_has_its_streams_letters_and_modules(tmp_path: Path) -> None:
    """The JVM writes nothing to standard output, and has a locale in which it can name any file.

    Tasks find modules beside a topology's file, and not those of the working folder.
    """
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
        for name in ("random", "json", "types", "logging", "socket", "numpy", "pyarrow"):
            (folder / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    (beside / "of_topology.py").touch()
    (tmp_path / "program.py").write_text("import part_of_program; print('found')")
    (tmp_path / "part_of_program.py").touch()
    environ = {**_USUAL, "LC_ALL": "C", "JAVA_TOOL_OPTIONS": "-Xlog:safepoint:stdout"}
    environ["PYTHONUTF8"] = "0"  # Python itself has no other letters than ASCII then
    run = _run([sys.executable, _PROBE, *_WORDS, TASK, str(beside)], environ, here)
    (found,) = run.output
    assert found.pop("words") == [*_WORDS, TASK, str(beside)]
    assert found.pop("names") == {"/tmp/prüfung": True, "/tmp/plain": True}
    assert found.pop("said") == "found\n"
    assert found.pop("of_topology") == str(beside / "of_topology.py")
    assert len(found) == 7
    assert [file for file in found.values() if str(tmp_path) in file] == []
    assert [said for said in (*_SAID, "[safepoint") if said not in run.errors] == []


@pytest.mark.promise("cli-progress-json", "cli-locale")
def test_a_job_of_a_spark_submit_that_loses_letters_is_refused(tmp_path: Path) -> None:
    """Its state would be elsewhere, and its rows have no such field. Its streams are separate.

    No locale is set: Python would take one of UTF-8 by itself, and the JVM does not.
    """
    command = [str(spark_home() / "bin" / "spark-submit"), _PROBE, *_WORDS]
    environ = {**_USUAL, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    run = _run(command, environ, tmp_path, status=2)
    (found,) = run.output
    assert found["words"] != _WORDS
    assert found["names"] == {"/tmp/prüfung": False, "/tmp/plain": True}
    assert [said for said in _SAID if said not in run.errors] == []
    assert "sequitur: argument '/tmp/pr??fung': spark-submit makes question marks" in run.errors
