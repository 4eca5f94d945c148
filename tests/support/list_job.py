"""A reorder job on lists, with the calls of `tests.spark.conftest.Job`; each `run` is one life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer import ReorderSettings
from sequitur.testing import ReorderedRecord, ReorderTester

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sequitur.pipelines.ordering.progress import JobReport
    from sequitur.pipelines.ordering.step import StepFunction
    from sequitur.spark import OrderedStep
    from tests.support.events import Event

Written = ReorderedRecord


@dataclass
class _Given:
    """What the job gives its steps to, whatever that is now."""

    function: StepFunction | None = None

    def __call__(self, step: OrderedStep) -> None:
        if self.function is not None:
            self.function(step)


class ListJob:
    """A job that reads what there is, and ends."""

    def __init__(self, settings: ReorderSettings, tester: ReorderTester, given: _Given) -> None:
        self.settings = settings
        self.topic = settings.input_topics[0]
        self._tester = tester
        self._given = given
        self.on_step: StepFunction | None = None

    def with_settings(self, **changes: Any) -> ListJob:
        settings = ReorderSettings.model_validate({**self.settings.model_dump(), **changes})
        return ListJob(settings, self._tester, self._given)

    def produce(self, events: Iterable[Event]) -> None:
        self._tester.produce(
            {
                "key": one.key,
                "value": one.value,
                "headers": one.headers,
                "partition": None if one.partition < 0 else one.partition,
                **({"timestamp_ms": one.timestamp_ms} if one.timestamp_ms else {}),
            }
            for one in events
        )

    def run(self, *, drain: bool = False) -> JobReport:
        self._given.function = self.on_step
        self._tester.restart(settings=self.settings)
        self._tester.run()
        if drain:
            self._tester.drain()
        return self._tester.report()

    def released(self) -> list[Written]:
        return self._tester.released

    def late(self) -> list[Written]:
        return self._tester.late


@pytest.fixture
def job() -> Iterator[ListJob]:
    settings = ReorderSettings.model_validate(
        {
            "input_topics": ["readings"],
            "output_topic": "ordered",
            "checkpoint": "none",
            "event_time": "json:at",
            "delay": "1 s",
        }
    )
    given = _Given()
    with ReorderTester(settings, partitions=4, on_step=given, available_now=True) as tester:
        yield ListJob(settings, tester, given)
