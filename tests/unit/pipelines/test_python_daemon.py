"""The process that Spark forks its Python processes from."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sequitur.pipelines import python_daemon
from tests.support.waiting import PATIENCE_S

_NEEDED = (
    "numpy",
    "pandas",
    "pyarrow.compute",
    "sequitur.pipelines.ordering.key_tasks",
    "sequitur.pipelines.rows.run_writer",
    "sequitur.pipelines.rows.selection",
    "sequitur.pipelines.sink.sink",
    "sequitur.pipelines.topology.batch",
)


def test_what_tasks_import_is_loaded_once() -> None:
    """A Python process that loaded it by itself would take a second longer for its first task."""
    program = f"""if True:
        import sequitur.pipelines.python_daemon, sys
        print([name for name in {_NEEDED} if name not in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout == "[]\n"


@pytest.mark.promise("cli-job-fails-runs")
def test_daemon_does_not_tell_that_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    """A job that ends leaves workers whose pipe is broken; other errors are still told."""
    for error in (BrokenPipeError(), ConnectionResetError(), OSError("disk full")):
        try:
            raise error
        except OSError:
            vars(vars(python_daemon)["daemon"])["traceback"].print_exc()
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1
    assert said.endswith("OSError: disk full\n")
