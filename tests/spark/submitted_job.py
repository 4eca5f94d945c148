"""A job as its users start it: spark-submit, in a process group of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Self

from consumer.topology import ProcessSettings
from pipelines.launch import (
    PROCESS_JOB,
    REORDER_JOB,
    spark_submit_command,
    spark_submit_environment,
)
from pipelines.settings import ProcessJob, ReorderJob
from producer.settings_flags import given_flags

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from consumer import ReorderSettings
    from producer import KafkaSettings

_EXIT_TIMEOUT_S = 120


class SubmittedJob:
    """One life of the job, from spark-submit to its end or its killing.

    Args:
        kafka: How to reach the brokers.
        settings: The job's settings.
        more: Further flags, such as `--available-now`.
        topology: File of a topology that runs behind it.
        process: How the topology is run.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        *more: str,
        topology: Path | None = None,
        process: ProcessSettings | None = None,
    ) -> None:
        words = given_flags(ReorderJob(kafka=kafka, reorder=settings))
        if topology is not None:
            whole = ProcessJob(kafka=kafka, reorder=settings, process=process or ProcessSettings())
            words = [str(topology), *given_flags(whole)]
        command = spark_submit_command(
            [*words, *more],
            job=REORDER_JOB if topology is None else PROCESS_JOB,
            options={
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
                "spark.driver.memory": "700m",
            },
        )
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by kill
        self._said: list[str] = []
        self.process = subprocess.Popen(
            command,
            # Those of the tests themselves are no settings of the job's, which would refuse them.
            env=spark_submit_environment(
                {name: value for name, value in os.environ.items() if "SEQUITUR" not in name}
            ),
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            start_new_session=True,  # a process group of its own, as a terminal gives it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Of the process that was started, which is the JVM, and of its group."""
        return self.process.pid

    def steps(self) -> Iterator[dict[str, Any]]:
        """What it says of each step, as it says it; at its end, the report."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                self._said.append(line)

    def complaints(self) -> str:
        """What it said so far beside its steps; spark-submit puts Python's on standard output."""
        self._complaints.seek(0)
        return "".join(self._said) + self._complaints.read()

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
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._complaints.close()
