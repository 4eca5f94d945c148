"""What `finish_batch` raises: the events that its bolt was given fail, and no other."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    FailReason,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Event, Topology, Tuple

_plan: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def plan() -> Iterator[dict[str, Any]]:
    """What bolts do in this process, and how often they did it."""
    _plan.clear()
    _plan.update(calls=0, finishes=0, raises=lambda _: False)
    yield _plan
    _plan.clear()


class Sums(BasicBolt):
    """Emits the values of a batch, joined, at its end; then raises for them if that is planned."""

    fields = ("values",)

    def __init__(self) -> None:
        self.values: list[str] = []

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        del collector
        _plan["calls"] += 1
        if not tuple.is_tick:
            self.values.append(tuple["value"].decode())

    def finish_batch(self) -> None:
        values, self.values = self.values, []
        _plan["finishes"] += 1
        if values:
            self.collector.emit((",".join(values),))
        if _plan["raises"](values):
            raise ConnectionError("503")


class NeverFinishes(Sums):
    """The same without an end of a batch."""

    finish_batch = BasicBolt.finish_batch


@bolt
def sibling(given: Event) -> None:
    """Fail some events once."""
    _plan["calls"] += 1
    if given.attempt == 1 and given.value in _plan["bad"]:
        raise ConnectionError("503")


@bolt
def pass_on(given: Tuple) -> Any:
    yield given["values"]


def _topology(
    *, tasks: int | None = None, sums: BasicBolt | None = None, is_beside: bool = False, **more: Any
) -> Topology:
    builder = TopologyBuilder("sums")
    builder.set_spout("events")
    made = builder.set_bolt("sums", sums or Sums(), tasks, **more)
    made.local_grouping("events") if tasks is None else made.global_grouping("events")
    builder.set_bolt("pass", pass_on).local_grouping("sums")
    builder.set_output("out", key=None, value="value").local_grouping("pass")
    if is_beside:
        builder.set_bolt("beside", sibling).local_grouping("events")
    return builder.build()


_EVERYWHERE = pytest.mark.parametrize("tasks", [None, 2])
"""In the stage of the spout, and in one behind it."""


def _records(tester: TopologyTester) -> list[str]:
    return [(value or b"").decode() for _, value in tester.records("out")]


@pytest.mark.promise("process-finish-batch-raises")
@_EVERYWHERE
def test_a_failure_of_the_end_of_a_batch_fails_its_events(tasks: int | None) -> None:
    """It raised once: they are tried again, and what it had emitted before does not go out."""
    _plan["raises"] = lambda _: _plan["finishes"] == 1
    tester = TopologyTester(_topology(tasks=tasks))
    tester.run([("k", "a"), ("k", "b")])
    assert (len(tester.acked), len(tester.failed), _records(tester)) == (0, 2, [])
    tester.run([("m", "c")])
    tester.retry_all()
    assert (len(tester.acked), tester.dead_letters) == (3, [])
    assert sorted(",".join(_records(tester)).split(",")) == ["a", "b", "c"]


@pytest.mark.promise("process-finish-batch-raises")
def test_a_failure_of_one_end_drops_nothing_of_the_end_before() -> None:
    """A batch of more events than may be pending has several, in one task."""
    _plan["raises"] = lambda _: _plan["finishes"] == 2
    builder = TopologyBuilder("sums")
    builder.set_spout("events")
    builder.set_bolt("sums", Sums()).local_grouping("events")
    builder.set_output("out", key=None, value="values").local_grouping("sums")
    tester = TopologyTester(builder.build(), ProcessSettings(max_spout_pending=1), partitions=1)
    tester.run([("k", "a"), ("m", "b"), ("n", "c")])
    assert _records(tester) == ["a", "c"]
    tester.retry_all()
    assert _records(tester) == ["a", "c", "b"]


@pytest.mark.promise("process-finish-batch-raises")
@_EVERYWHERE
def test_events_that_no_batch_can_be_ended_with_are_dead_with_its_words(tasks: int | None) -> None:
    _plan["raises"] = bool
    tester = TopologyTester(_topology(tasks=tasks), ProcessSettings(max_attempts=2))
    tester.run([(str(at), str(at)) for at in range(3)])
    tester.retry_all()
    assert (len(tester.acked), _records(tester)) == (0, [])
    assert [one.attempts for one in tester.dead_letters] == [2] * 3
    for letter in tester.dead_letters:
        assert letter.reason is FailReason.EXCEPTION
        assert letter.path[-1] == "sums"
        assert "finish_batch of 'sums'" in letter.detail
        assert "ConnectionError: 503" in letter.detail


@pytest.mark.promise("process-finish-batch-raises")
@_EVERYWHERE
@pytest.mark.parametrize("bad", [["17"], ["0", "1", "99"], ["99"]])
def test_no_innocent_dies_of_a_batch_that_cannot_be_ended(
    tasks: int | None, bad: list[str]
) -> None:
    """Those to blame are found in the last attempt, the first that raises first."""
    _plan["raises"] = lambda values: any(one in bad for one in values)
    tester = TopologyTester(_topology(tasks=tasks), ProcessSettings(max_attempts=3))
    tester.run([(str(at), str(at), at) for at in range(100)])
    tester.retry_all()
    assert [one.event.value for one in tester.dead_letters] == [one.encode() for one in bad]
    assert {one.attempts for one in tester.dead_letters} == {3}
    assert len(tester.acked) == 100 - len(bad)
    out = ",".join(_records(tester)).split(",")
    assert sorted(out) == sorted({str(at) for at in range(100)} - set(bad))


@_EVERYWHERE
def test_an_end_that_raises_without_events_blames_no_single_one(tasks: int | None) -> None:
    _plan["raises"] = lambda _: True
    tester = TopologyTester(_topology(tasks=tasks), ProcessSettings(max_attempts=1))
    tester.run([(str(at), str(at)) for at in range(40)])
    assert len(tester.dead_letters) == 40
    assert _plan["finishes"] < 10


@pytest.mark.promise("process-finish-batch-raises")
@pytest.mark.parametrize("share", [100, 10])
def test_a_sibling_that_fails_costs_no_calls_of_a_batch(share: int) -> None:
    """Events are not tied to each other by the end of a batch."""
    _plan["bad"] = {str(at).encode() for at in range(0, 2_000, share)}
    given = [(str(at), str(at)) for at in range(2_000)]
    calls = []
    for sums in (NeverFinishes(), Sums()):
        _plan["calls"] = 0
        tester = TopologyTester(_topology(sums=sums, is_beside=True))
        tester.run(given)
        tester.retry_all()
        assert (len(tester.acked), tester.dead_letters) == (2_000, [])
        calls.append(_plan["calls"])
    assert calls[0] > 4_000
    assert calls[1] <= 1.2 * calls[0]


@pytest.mark.promise("process-finish-batch-raises")
def test_an_end_of_a_batch_without_events_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """No dead letter can tell of it."""
    _plan["raises"] = lambda _: True
    tester = TopologyTester(_topology(tick_interval="1 s"))
    tester.run()
    tester.advance(2)
    with caplog.at_level(logging.ERROR):
        tester.run()
    assert "finish_batch of 'sums': " in caplog.text
    assert tester.untracked_failures >= 1


@pytest.mark.promise("process-finish-batch-raises")
@_EVERYWHERE
def test_a_job_tells_innocents_apart_too(tasks: int | None, tmp_path: Path) -> None:
    """By its files: nothing of a run that raised goes out, and counts add up."""
    _plan["raises"] = lambda values: "bad" in values
    runs = StepRuns(_topology(tasks=tasks), tmp_path, ProcessSettings(max_attempts=2), life="x")
    values = [b"a", b"b", b"bad", b"c"]
    runs.step([event(at, value) for at, value in enumerate(values)])
    assert runs.counts["acked"] == 0
    runs.to_the_end()
    assert runs.records("out") == [(None, b"a,b,c")]
    assert [value for _, value in runs.dead()] == [b"bad"]
    assert (runs.counts["acked"], runs.counts["dead"]) == (3, 1)


def test_an_end_that_raises_drops_nothing_of_another_wave(tmp_path: Path) -> None:
    """Each wave of a step has a batch of its own, with the same tasks."""
    _plan["raises"] = lambda values: bool(values) and values[0] == "a" and "b" in values
    settings = ProcessSettings(max_spout_pending=2)
    runs = StepRuns(_topology(tasks=2), tmp_path, settings)
    values = [b"a", b"b", b"c", b"d"]
    runs.step([event(at, value) for at, value in enumerate(values)])
    assert runs.counts["acked"] == 2
    assert runs.records("out") == [(None, b"c,d")]
