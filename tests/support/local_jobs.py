"""A job of the local runner on a topic of its own, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from sequitur.consumer.reorder import ReorderSettings
from sequitur.kafka.admin import KafkaTopics
from sequitur.pipelines.local.job import run_local
from tests.support.events import Event, send
from tests.support.output_reading import read_output
from tests.support.tree import ROOT
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sequitur.consumer.reorder.step_log import StepDone, StepEntry
    from sequitur.pipelines.ordering.job_report import JobReport
    from sequitur.pipelines.ordering.opening import ProcessStage
    from sequitur.producer import KafkaSettings


class LocalJob:
    """A job on a topic of its own; each life is a call, or a program of its own."""

    def __init__(self, kafka: KafkaSettings, topic: str, folder: Path, **settings: Any) -> None:
        self.kafka = kafka
        self.topic = topic
        self.folder = folder
        self.process: ProcessStage | None = None
        self.steps: list[tuple[StepEntry, StepDone]] = []
        self.given = {
            "input_topics": [topic],
            "output_topic": f"{topic}.ordered",
            "event_time": "json:at",
            "delay": "1 s",
            "idle_timeout": "1 min",
            "checkpoint": str(folder / "checkpoint"),
            **settings,
        }

    @property
    def settings(self) -> ReorderSettings:
        return ReorderSettings.model_validate(self.given)

    def send(self, events: Sequence[Event]) -> None:
        send(self.kafka, self.topic, events)

    def run(
        self, *, stop: threading.Event | None = None, available_now: bool = True, **how: Any
    ) -> JobReport:
        return run_local(
            self.kafka,
            self.settings,
            stop=stop or threading.Event(),
            available_now=available_now,
            process=self.process,
            on_done=lambda entry, done: self.steps.append((entry, done)),
            **how,
        )

    @contextlib.contextmanager
    def running(self, **how: Any) -> Iterator[Life]:
        """The job on whatever comes, until the block ends; an error of it fails the test."""
        life = Life(self, how)
        life.start()
        try:
            yield life
        finally:
            life.stop.set()
            life.join(2 * PATIENCE_S)
        assert not life.is_alive()
        if life.error is not None:
            raise life.error

    def config(self) -> Path:
        """Its settings as a file."""
        path = self.folder / "job.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.given.items()]
        kafka = f"[kafka]\nbootstrap_servers = {json.dumps(self.kafka.bootstrap_servers)}\n"
        path.write_text(kafka + "[reorder]\n" + "\n".join([*lines, 'runner = "local"\n']))
        return path

    def start(self, log: Path, *command: str) -> subprocess.Popen[bytes]:
        """A life that reads whatever comes, in a process group of its own."""
        with log.open("ab") as said:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "sequitur", *(command or ("reorder",))),
                    *("--config", str(self.config())),
                ],
                cwd=ROOT,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def released(self) -> list[Any]:
        topic = self.settings.output_topic
        is_there = KafkaTopics(self.kafka).partitions(topic) is not None
        return read_output(self.kafka, topic) if is_there else []


class Life(threading.Thread):
    """A life of a job in a thread."""

    def __init__(self, job: LocalJob, how: dict[str, Any]) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.error: Exception | None = None
        self._job = job
        self._how = how

    def run(self) -> None:
        try:
            self._job.run(stop=self.stop, available_now=False, **self._how)
        except Exception as error:  # noqa: BLE001 - raised where the life is waited for
            self.error = error
