"""A job as its users start it: spark-submit, in a process group of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

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
from tests.support.job_process import JobProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.producer import KafkaSettings

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""For a JVM whose code never gets warm: it compiles quickly, collects beside nothing, and does not
collect all for each few thousand classes that it loads."""


class SubmittedJob(JobProcess):
    """One life of the job on Spark.

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
        # Those of the tests themselves are no settings of the job's, which would refuse them.
        environment = spark_submit_environment(
            {name: value for name, value in os.environ.items() if "SEQUITUR" not in name}
            | secrets_of(whole)
        )
        super().__init__(command, environment)
