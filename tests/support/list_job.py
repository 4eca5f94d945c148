"""A reorder job of the local runner on lists, with the calls of `BrokerJob`: `run` is one life."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.base.retry import Outages
from sequitur.consumer.reorder import ReorderSettings
from sequitur.consumer.reorder.key_state import FOLD_LIMITS, FoldLimits
from sequitur.consumer.topology import ProcessSettings
from sequitur.pipelines.ordering.opening import ProcessStage
from sequitur.testing import ReorderedRecord
from tests.support.local_runs import LocalTester
from tests.support.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from sequitur.consumer.reorder.step_log import StepDone, StepEntry, StepKind
    from sequitur.consumer.topology import Topology
    from sequitur.pipelines.ordering.context import JobContext
    from sequitur.pipelines.ordering.job_report import JobReport
    from sequitur.pipelines.ordering.ordered_step import StepFunction
    from sequitur.pipelines.store.checkpoint import Checkpoint
    from tests.support.events import Event

Written = ReorderedRecord


class _Tester(LocalTester):
    """Runs whichever job is the next life, and shows its steps."""

    def __init__(self, settings: ReorderSettings, partitions: int, available_now: bool) -> None:
        super().__init__(settings, partitions=partitions, available_now=available_now)
        self._lives: ListJob

    def begin(self, job: ListJob) -> None:
        self._lives, self._stage, self._on_step = job, job.process, job.on_step
        self.restart(settings=job.settings)

    def grow(self, topic: str, partitions: int) -> None:
        written = self._topics.written[topic]
        written += [[] for _ in range(partitions - len(written))]

    def _context(self, checkpoint: Checkpoint) -> JobContext:
        self._job = replace(
            super()._context(checkpoint),
            on_done=lambda *step: self._lives.steps.append(step),
            outages=Outages(0.0, 0, wait=lambda _: False, tell=self._lives.told.append),
            fold_limits=self._lives.fold_limits,
        )
        return self._job


@dataclass
class ListJob:
    """A job that reads what there is, and ends."""

    settings: ReorderSettings
    tester: _Tester
    opened: contextlib.ExitStack
    process: ProcessStage | None = None
    fold_limits: FoldLimits = FOLD_LIMITS
    on_step: StepFunction | None = None
    steps: list[tuple[StepEntry, StepDone]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    report: JobReport | None = None

    @property
    def topic(self) -> str:
        return self.settings.input_topics[0]

    @property
    def folder(self) -> Path:
        return self.tester.folder

    def with_settings(self, **changes: Any) -> ListJob:
        settings = ReorderSettings.model_validate({**self.settings.model_dump(), **changes})
        return replace(self, settings=settings, steps=[], told=[], report=None, on_step=None)

    def anew(self, *, partitions: int = 4, available_now: bool = True, **changes: Any) -> ListJob:
        """The job with topics and a checkpoint of its own, in which there is nothing yet."""
        settings = self.with_settings(**changes).settings
        return list_job(settings, self.opened, partitions, available_now)

    def running_topology(self, topology: Topology, **process: Any) -> ListJob:
        stage = ProcessStage(topology, ProcessSettings.model_validate(process))
        return replace(self.with_settings(), process=stage)

    def produce(self, events: Iterable[Event], *, topic: str | None = None) -> None:
        self.tester.produce(_row(one, topic or self.topic) for one in events)

    def run(self, *, drain: bool = False) -> JobReport:
        self.tester.begin(self)
        self.tester.run()
        if drain:
            self.tester.drain()
            while self.process is not None and self._processed()["pending"]:
                self.tester.advance(0.1)
        self.report = self.tester.report()
        return self.report

    def processed(self) -> dict[str, int]:
        assert self.report is not None
        assert self.report.processed is not None
        return dict(self.report.processed)

    def _processed(self) -> Mapping[str, int]:
        return self.tester.report().processed or {}

    def grow(self, topic: str, partitions: int) -> None:
        """Have a topic gain partitions, as by an administrator."""
        self.tester.grow(topic, partitions)

    def kinds(self) -> list[StepKind]:
        return [entry.kind for entry, _ in self.steps]

    def released(self) -> list[Written]:
        return self.tester.records(self.settings.output_topic)

    def late(self) -> list[Written]:
        return self.tester.records(self.settings.late)

    def quarantined(self) -> list[Written]:
        return self.tester.records(self.settings.quarantine)

    def dead_letters(self) -> list[Written]:
        assert self.process is not None
        topic = self.process.settings.dead_letters(self.settings.output_topic)
        return self.tester.records(topic)


def _row(one: Event, topic: str) -> dict[str, Any]:
    return {
        "key": one.key,
        "value": one.value,
        "headers": one.headers,
        "topic": topic,
        "partition": None if one.partition < 0 else one.partition,
        **({"timestamp_ms": one.timestamp_ms} if one.timestamp_ms else {}),
    }


def list_job(
    settings: ReorderSettings,
    opened: contextlib.ExitStack,
    partitions: int = 4,
    available_now: bool = True,
) -> ListJob:
    tester = opened.enter_context(_Tester(settings, partitions, available_now))
    return ListJob(settings, tester, opened)


@pytest.fixture
def job() -> Iterator[ListJob]:
    settings = ReorderSettings.model_validate(
        {
            "input_topics": ["readings"],
            "output_topic": "ordered",
            "checkpoint": "none",
            "event_time": "json:at",
            "delay": "1 s",
            "idle_timeout": "1 min",
        }
    )
    with contextlib.ExitStack() as opened:
        yield list_job(settings, opened)
