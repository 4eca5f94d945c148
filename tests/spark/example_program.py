"""One life of a program in `examples/spark`, which ends by itself or is killed."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from sequitur.pipelines.launch import class_archive_options
from tests.spark.submitted_job import SHORT_LIVED
from tests.support.tree import EXAMPLES, ROOT
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

WAIT_S = 4 * PATIENCE_S


@contextlib.contextmanager
def example_program(
    name: str,
    *words: str,
    log: Path,
    prelude: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """One life, in a process group of its own; what is left of it is killed at the block's end.

    Args:
        name: The program's file in `examples/spark`.
        words: Its arguments.
        log: What it says.
        prelude: Code that runs in its process first; it is given the program and the arguments.
        options: Settings of Spark; some by which its JVM starts quickly without.
    """
    first = [] if prelude is None else ["-c", prelude]
    given = {"spark.driver.extraJavaOptions": _java_options(), **(options or {})}
    settings = [word for one in given.items() for word in ("--conf", "=".join(one))]
    with log.open("wb") as said:
        program = subprocess.Popen(
            [sys.executable, *first, str(EXAMPLES / "spark" / name), *words],
            cwd=ROOT,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_SUBMIT_ARGS": shlex.join([*settings, "pyspark-shell"]),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(WAIT_S)


def _java_options() -> str:
    """For the JVM alone: the program's session has the settings that the program gives it."""
    return " ".join([SHORT_LIVED, *class_archive_options()])
