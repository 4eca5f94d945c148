"""A job as its users start it: spark-submit, in a process group of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final, Self

import psutil

from sequitur.base.flags import given_flags
from sequitur.cli.jobs import secrets_of
from sequitur.consumer.topology import ProcessSettings
from sequitur.pipelines.launch import (
    PROCESS_JOB,
    REORDER_JOB,
    spark_submit_command,
    spark_submit_environment,
)
from sequitur.pipelines.run_options import ProcessJob, ReorderJob
from tests.support.held import held
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sequitur.consumer import ReorderSettings
    from sequitur.producer import KafkaSettings

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""For a JVM whose code never gets warm: it compiles quickly, collects beside nothing, and does not
collect all for each few thousand classes that it loads."""
_EXIT_TIMEOUT_S = 5 * PATIENCE_S
_MOST_SAID: Final = 1 << 24


class SubmittedJob:
    """One life of the job, from spark-submit to its end or its killing.

    Args:
        kafka: How to reach the brokers.
        settings: The job's settings.
        more: Further flags, such as `--available-now`.
        topology: File of a topology that runs behind it.
        process: How the topology is run.
        options: Further settings of Spark.
        master: Spark master; that of the options or of users who give none without.
        by_command: Whether it is started by `sequitur reorder` or `sequitur process`.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        *more: str,
        topology: Path | None = None,
        process: ProcessSettings | None = None,
        options: Mapping[str, str] | None = None,
        master: str | None = None,
        by_command: bool = False,
    ) -> None:
        whole: ReorderJob | ProcessJob = ReorderJob(kafka=kafka, reorder=settings)
        words: list[str] = []
        if topology is not None:
            whole = ProcessJob(kafka=kafka, reorder=settings, process=process or ProcessSettings())
            words = [str(topology)]
        words += [*given_flags(whole), *more]
        # Memory is what users get.
        options = {"spark.driver.extraJavaOptions": SHORT_LIVED, **(options or {})}
        if by_command:
            command = [
                sys.executable,
                "-m",
                "sequitur",
                "reorder" if topology is None else "process",
            ]
            command += [*words, *(["--master", master] if master else [])]
            command += [word for one in options.items() for word in ("--conf", "=".join(one))]
        else:
            job = REORDER_JOB if topology is None else PROCESS_JOB
            command = spark_submit_command(words, job=job, master=master, options=options)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        self.process = subprocess.Popen(
            command,
            # Those of the tests themselves are no settings of the job's, which would refuse them.
            env=spark_submit_environment(
                {name: value for name, value in os.environ.items() if "SEQUITUR" not in name}
                | secrets_of(whole)
            ),
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            start_new_session=True,  # a process group of its own, as a terminal gives it
        )
        assert self.process.stdout is not None
        self._stdout = self.process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Of the process that was started, which is the JVM, and of its group."""
        return self.process.pid

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Hold the JVM and the driver where they are; Python workers have another group."""
        return held([process for process in psutil.pids() if _group_of(process) == self.pid])

    def steps(self) -> Iterator[dict[str, Any]]:
        """What it says of each step, as it says it; at its end, the report."""
        yield from map(json.loads, self._stdout)

    def complaints(self) -> str:
        """What it said so far beside its steps."""
        # Its place in the file is that of the job, which may be writing.
        return os.pread(self._complaints.fileno(), _MOST_SAID, 0).decode()

    def end(self, status: int = 0) -> str:
        """Wait until it has ended with this status; the rest of its standard output."""
        output, _ = self.process.communicate(timeout=_EXIT_TIMEOUT_S)
        assert self.process.returncode == status, self.complaints()
        return output

    def kill(self) -> None:
        """SIGKILL to the whole group, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._stdout.close()
        self._complaints.close()


def _group_of(process: int) -> int | None:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return None
