"""A reorder job on topics of its own, on a real broker; each `run` is one life of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pytest

from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.reorder.key_state import FOLD_LIMITS, FoldLimits
from sequitur.consumer.topology import ProcessSettings
from sequitur.pipelines.ordering.opening import ProcessStage
from sequitur.pipelines.ordering.run_job import run_reorder
from tests.support.events import send
from tests.support.output_reading import read_output
from tests.support.values import replace
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sequitur.cli.topic_reader import TopicRecord
    from sequitur.consumer.reorder.step_log import StepDone, StepEntry, StepKind
    from sequitur.consumer.topology import Topology
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.pipelines.ordering.job_report import JobReport
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.ordering.run_job import Runner
    from sequitur.pipelines.store.storage import Location
    from tests.support.events import Event

_END_TIMEOUT_S: Final = 5 * PATIENCE_S

BY_TASKS: Final = {"small_batch_rows": 0}
"""Tasks stage all batches of a job with these settings."""
BY_DRIVER: Final = {"small_batch_rows": 50_000}
"""And the driver those of a test."""

BOTH_WAYS: Final = pytest.mark.parametrize(
    "way",
    [
        pytest.param(BY_DRIVER, id="by the driver"),
        pytest.param(BY_TASKS, id="by tasks", marks=pytest.mark.test_all),
    ],
)
"""Of a test whose few rows the driver stages, and which is also of what tasks meet."""


class StorageFolder(NamedTuple):
    """A folder where a checkpoint can stand, and where its files can be looked at."""

    uri: str
    location: Location


@dataclass(slots=True)
class BrokerJob:
    """A reorder job, whatever it runs on.

    Attributes:
        runner: Makes what a life runs on.
        kafka: The broker.
        settings: The job's settings.
        process: The topology behind it, if any.
        steps: The steps of all lives since these settings.
        report: That of the last life.
    """

    runner: Callable[[], Runner]
    kafka: KafkaSettings
    settings: ReorderSettings
    process: ProcessStage | None = None
    steps: list[tuple[StepEntry, StepDone]] = field(default_factory=list)
    report: JobReport | None = None
    fold_limits: FoldLimits = FOLD_LIMITS
    on_step: StepFunction | None = None

    @property
    def topic(self) -> str:
        return self.settings.input_topics[0]

    def produce(self, events: Iterable[Event], *, topic: str | None = None) -> None:
        """Send events, each partition in order, and wait until they are there."""
        send(self.kafka, topic or self.topic, events)

    def run(
        self,
        *,
        drain: bool = False,
        available_now: bool = True,
        stop: threading.Event | None = None,
        reset_input: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        runner: Runner | None = None,
    ) -> JobReport:
        self.report = run_reorder(
            runner or self.runner(),
            self.kafka,
            self.settings,
            stop=stop or threading.Event(),
            available_now=available_now,
            drain=drain,
            on_done=lambda entry, done: self.steps.append((entry, done)),
            now_ms=now_ms,
            process=self.process,
            reset_input=reset_input,
            fold_limits=self.fold_limits,
            on_step=self.on_step,
        )
        return self.report

    @contextlib.contextmanager
    def running(self) -> Iterator[concurrent.futures.Future[JobReport]]:
        """The job on whatever comes, until the block ends; an error of it fails the test."""
        stop = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            life = pool.submit(self.run, available_now=False, stop=stop)
            try:
                yield life
            finally:
                stop.set()
            life.result(_END_TIMEOUT_S)

    def with_settings(self, **changes: Any) -> Self:
        settings = ReorderSettings.model_validate({**self.settings.model_dump(), **changes})
        return replace(self, settings=settings, steps=[], report=None, on_step=None)

    def running_topology(self, topology: Topology, **process: Any) -> Self:
        stage = ProcessStage(topology, ProcessSettings.model_validate(process))
        return replace(self.with_settings(), process=stage)

    def processed(self) -> dict[str, int]:
        assert self.report is not None
        assert self.report.processed is not None
        return dict(self.report.processed)

    def dead_letters(self) -> list[TopicRecord]:
        assert self.process is not None
        topic = self.process.settings.dead_letters(self.settings.output_topic)
        return read_output(self.kafka, topic)

    def kinds(self) -> list[StepKind]:
        return [entry.kind for entry, _ in self.steps]

    def released(self) -> list[TopicRecord]:
        return read_output(self.kafka, self.settings.output_topic)

    def late(self) -> list[TopicRecord]:
        return read_output(self.kafka, self.settings.late)

    def quarantined(self) -> list[TopicRecord]:
        return read_output(self.kafka, self.settings.quarantine)


def job_on(topic: str, folder: str, **more: Any) -> ReorderSettings:
    """Return the settings of a job that reads a topic and has its checkpoint in a folder."""
    return ReorderSettings.model_validate(
        {
            "input_topics": [topic],
            "output_topic": f"{topic}.ordered",
            "event_time": "json:at",
            "delay": "1 s",
            "idle_timeout": "1 min",
            "checkpoint": folder,
            **more,
        }
    )
