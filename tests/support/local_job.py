"""A job on the local runner as its users start it: a command, in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from sequitur.base.flags import given_flags
from sequitur.cli.jobs import secrets_of
from sequitur.consumer.topology import ProcessSettings
from sequitur.pipelines.run_options import ProcessJob, ReorderJob
from tests.support import stopped_job
from tests.support.job_process import JobProcess

if TYPE_CHECKING:
    from sequitur.consumer.reorder import ReorderSettings
    from sequitur.producer import KafkaSettings


class LocalJob(JobProcess):
    """One life of the job on this machine.

    Attributes:
        has_workers: Whether processes do all that reads and stages its batches.

    Args:
        kafka: How to reach the brokers.
        settings: The job's settings.
        more: Further flags, such as `--available-now`.
        stops_before: The document before which it is stopped; see `stopped_job`.
        topology: File of a topology that runs behind it.
        process: How the topology is run.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: ReorderSettings,
        *more: str,
        stops_before: str | None = None,
        topology: Path | None = None,
        process: ProcessSettings | None = None,
    ) -> None:
        settings = settings.model_copy(update={"runner": "local"})
        whole = ReorderJob(kafka=kafka, reorder=settings)
        words = ["reorder"]
        if topology is not None:
            whole = ProcessJob(kafka=kafka, reorder=settings, process=process or ProcessSettings())
            words = ["process", str(topology)]
        self.has_workers = settings.small_batch_rows == 0
        program = ["-m", "sequitur"]
        if stops_before is not None:
            program = ["-P", str(Path(stopped_job.__file__)), stops_before]
        command = [sys.executable, *program, *words, *given_flags(whole), *more]
        # Those of the tests themselves are no settings of the job's, which would refuse them.
        environment = {name: value for name, value in os.environ.items() if "SEQUITUR" not in name}
        super().__init__(command, environment | secrets_of(whole))

    def is_stopped(self) -> bool:
        """Tell whether it was stopped, by itself or by others."""
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    def workers(self) -> list[psutil.Process]:
        """Return the processes that do its tasks, and the one that they are forks of."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for server in psutil.Process(self.pid).children():
                forks = server.children()
                found += [*forks, server] if forks else []
        return found
