"""The end of a run that is bounded: what failed is tried again until nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    BatchBolt,
    Bolt,
    ProcessSettings,
    TopologyBuilder,
    bolt,
)
from sequitur.pipelines.ordering.opening import ProcessStage
from sequitur.testing import ReorderTester

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sequitur.consumer.topology import (
        BaseBolt,
        BasicOutputCollector,
        OutputCollector,
        Topology,
        TopologyContext,
        Tuple,
    )

_AT_MS = 1_700_000_000_000
_SETTINGS = {
    "input_topics": ["in"],
    "output_topic": "out",
    "event_time": "json:at",
    "delay": "0 s",
}


class AtTicks(BasicBolt):
    """Makes a tuple at each tick."""

    fields = ("made",)

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        if tuple.is_tick:
            collector.emit(("at a tick",))


class Holds(BatchBolt):
    """Fails each event at its first attempt, and puts out at the end of its batch what it holds."""

    fields = ("value",)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.collector = collector
        self.held: list[Tuple] = []

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple.attempt == 1:
            self.collector.fail(tuple)
        else:
            self.held.append(tuple)

    def finish_batch(self) -> None:
        for one in self.held:
            self.collector.emit((one["value"],), anchors=one)
            self.collector.ack(one)


class AtEnds(Bolt):
    """Makes a tuple at the end of each batch."""

    fields = ("made",)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.collector = collector

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.ack(tuple)

    def finish_batch(self) -> None:
        self.collector.emit(("at an end",))


@bolt(fields=("made",))
def fails_once(given: Tuple) -> Iterator[object]:
    """Fail each tuple at its first attempt."""
    if given.attempt == 1:
        raise ValueError("not yet")
    yield given["made"]


def _topology(makes: BaseBolt, interval: str = "1 s") -> Topology:
    builder = TopologyBuilder("ends")
    builder.set_spout("events")
    ticks = interval if isinstance(makes, AtTicks) else None
    builder.set_bolt("makes", makes, tick_interval=ticks).local_grouping("events")
    builder.set_bolt("fails", fails_once).shuffle_grouping("makes")
    builder.set_output("out", topic="made", key=None, value="made").local_grouping("fails")
    return builder.build()


class _Waits:
    """Waits two seconds each time, and stops the job after some."""

    def __init__(self, tester: ReorderTester) -> None:
        self.count = 0
        self._tester = tester

    def __call__(self, _seconds: float) -> bool:
        self.count += 1
        self._tester.now_ms += 2_000
        return self.count > 5


def _processed(tester: ReorderTester) -> Mapping[str, int]:
    processed = tester.report().processed
    assert processed is not None
    return processed


@pytest.mark.promise("process-run-ends-while-ticks-make")
@pytest.mark.parametrize("makes", [AtTicks, AtEnds])
def test_a_run_ends_though_each_step_takes_as_long_as_a_tick(
    makes: Callable[[], BaseBolt],
) -> None:
    """Of ticks and ends of batches comes what fails at first: something waits after each step."""
    process = ProcessSettings(retry_delay="1 ms", retry_maximum="1 ms")
    with ReorderTester(_SETTINGS, _topology(makes()), process=process, now_ms=_AT_MS) as tester:
        tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        tester.advance(2)
        engine = tester._opened()
        assert _processed(tester)["made_pending"] == 1
        steps = []

        def wait(seconds: float) -> bool:
            tester.now_ms += 2_000
            steps.append(seconds)
            return len(steps) > 20

        engine.process_pending(wait)
        assert len(steps) <= 2
        totals = _processed(tester)
        assert (totals["made_pending"], totals["made"]) == (0, totals["made_acked"])
        assert len(tester.records("made")) == totals["made"] > 0


@pytest.mark.promise("process-run-ends-while-ticks-make")
def test_a_tick_that_was_due_at_the_end_of_a_run_comes_with_the_next() -> None:
    """The steps that only try again took its time, and it was never given."""
    process = ProcessSettings(retry_delay="1 ms", retry_maximum="1 ms")
    topology = _topology(AtTicks(), interval="1 h")
    with ReorderTester(_SETTINGS, topology, process=process, now_ms=_AT_MS) as tester:
        tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        tester.advance(3_600)
        assert (made := _processed(tester)["made"]) == 1

        def wait(_seconds: float) -> bool:
            tester.now_ms += 3_600_000
            return False

        tester._opened().process_pending(wait)
        assert (_processed(tester)["made_pending"], _processed(tester)["made"]) == (0, made)
        tester.restart()
        tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        assert _processed(tester)["made"] == made + 1


@pytest.mark.parametrize("makes", [AtTicks, AtEnds])
def test_new_events_are_read_though_each_step_makes_as_many_that_wait(
    makes: Callable[[], BaseBolt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job with so few that may wait would read no more for good."""
    process = ProcessSettings(retry_delay="1 ms", retry_maximum="1 ms", max_pending=1)
    with ReorderTester(_SETTINGS, _topology(makes()), process=process, now_ms=_AT_MS) as tester:
        tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        tester.advance(2)
        waits = _Waits(tester)
        monkeypatch.setattr(tester._opened()._stopping, "wait", waits)
        assert _processed(tester)["made_pending"] >= 1
        tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        assert _processed(tester)["taken"] == 2
        assert waits.count > 0


@pytest.mark.parametrize("makes", [AtTicks, AtEnds])
def test_input_is_reset_though_each_step_makes_as_many_that_wait(
    makes: Callable[[], BaseBolt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is tried again before a recreated topic is read."""
    process = ProcessSettings(retry_delay="1 ms", retry_maximum="1 ms")
    with ReorderTester(_SETTINGS, _topology(makes()), process=process, now_ms=_AT_MS) as tester:
        tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        tester.advance(2)
        monkeypatch.setattr(tester._topics, "ids", lambda topics: dict.fromkeys(topics, "another"))
        waits, made = _Waits(tester), _processed(tester)["made"]
        assert tester._opened().input.reset(waits)
        assert _processed(tester)["made_acked"] == made > 0
        assert waits.count > 0


@pytest.mark.parametrize("ackers", [1, 0])
def test_a_batch_of_what_is_tried_again_is_finished(ackers: int) -> None:
    """Also where the next life tracks nothing: else what the bolt holds would be gone."""
    builder = TopologyBuilder("holds")
    builder.set_spout("events")
    builder.set_bolt("holds", Holds()).local_grouping("events")
    builder.set_output("out", topic="made", key=None, value="value").local_grouping("holds")
    topology = builder.build()
    given = {"retry_delay": "1 ms", "retry_maximum": "1 ms"}
    process = ProcessSettings.model_validate(given)
    with ReorderTester(_SETTINGS, topology, process=process, now_ms=_AT_MS) as tester:
        tester.run([{"value": f'{{"at": {_AT_MS}}}'}])
        assert _processed(tester)["pending"] == 1
        again = ProcessSettings.model_validate({**given, "ackers": ackers})
        tester._stage = ProcessStage(topology, again)
        tester.restart()
        tester.now_ms += 2_000
        tester._opened().process_pending(lambda _seconds: False)
        assert _processed(tester)["pending"] == 0
        assert len(tester.records("made")) == 1
