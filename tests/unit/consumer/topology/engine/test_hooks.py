"""Hooks: what they are told, and what becomes of what they and other odd code raise."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    AckedEvent,
    BasicBolt,
    EventHook,
    FailedEvent,
    FailReason,
    ProcessSettings,
    Topology,
    TopologyBuilder,
    TopologyTester,
    bolt,
)
from sequitur.errors import BoltError, BoltStateError, TopologyBuildError, UngroupableValueError
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Tuple


_told: list[AckedEvent | FailedEvent] = []


@pytest.fixture
def told() -> Iterator[list[Any]]:
    _told.clear()
    yield _told
    _told.clear()


class Notes(EventHook):
    """Takes down what it is told."""

    def on_ack(self, done: AckedEvent, /) -> None:
        _told.append(done)
        raise ConnectionError("nobody listens")

    def on_fail(self, failed: FailedEvent, /) -> None:
        _told.append(failed)


@bolt
def refuse(given: Any) -> None:
    """Fail the first attempts of what says so."""
    if given.attempt <= int(given["value"]):
        raise ValueError("refused")


def _topology(tasks: int | None) -> Topology:
    builder = TopologyBuilder("hooked")
    builder.set_spout("events", tracked=_is_tracked)
    builder.set_bolt("refuse", refuse, tasks).shuffle_grouping("events")
    builder.set_hook(Notes())
    return builder.build()


def _is_tracked(given: Any) -> bool:
    return bool(given.value != b"99")


_EXPECTED = [
    ("acked", 1, 1, None),
    ("failed", 2, 1, False),
    ("failed", 3, 1, False),
    ("acked", 2, 2, None),
    ("failed", 3, 2, True),
]


def _told_as(told: list[Any]) -> list[tuple[Any, ...]]:
    for one in told:
        assert one.latency_ms >= 0
        if isinstance(one, FailedEvent):
            assert one.failure.reason is FailReason.EXCEPTION
            assert "refused" in one.failure.detail
            assert one.failure.path == ("events", "refuse")
    return [
        ("acked", one.event.offset, one.attempt, None)
        if isinstance(one, AckedEvent)
        else ("failed", one.event.offset, one.attempt, one.is_dead)
        for one in told
    ]


_GIVEN = [event(1, b"0"), event(2, b"1"), event(3, b"2"), event(4, b"99")]
_TWICE = ProcessSettings(max_attempts=2, retry_jitter=0)


@pytest.mark.promise("process-topology-hook-hook")
def test_a_hook_is_told_of_each_attempt(told: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Of tracked events: acked, failed, or given up. What it raises is logged, and that is all."""
    tester = TopologyTester(_topology(None), _TWICE)
    tester.run(_GIVEN)
    tester.retry_all()
    assert _told_as(told) == _EXPECTED
    assert [len(tester.acked), len(tester.dead_letters)] == [2, 1]
    assert {one.name for one in caplog.records} == {"sequitur.topology.hook"}


@pytest.mark.promise("process-topology-hook-hook")
@pytest.mark.parametrize("tasks", [None, 2], ids=["one stage", "several"])
@pytest.mark.parametrize("pending", [None, 1])
def test_a_job_tells_its_hook_the_same(
    told: list[Any],
    tmp_path: Path,
    tasks: int | None,
    pending: int | None,
) -> None:
    """Whoever knows the verdicts, and whatever the waves."""
    settings = ProcessSettings(max_attempts=2, retry_jitter=0, max_spout_pending=pending)
    runs = StepRuns(_topology(tasks), tmp_path, settings)
    runs.step(_GIVEN)
    runs.to_the_end()
    assert sorted(_told_as(told), key=lambda one: (one[2], one[1])) == _EXPECTED
    assert (runs.counts["acked"], runs.counts["dead"]) == (3, 1)


def test_a_hook_that_is_none_is_refused() -> None:
    builder = TopologyBuilder("hooked")
    with pytest.raises(TopologyBuildError, match="it is not an EventHook"):
        builder.set_hook(object())  # type: ignore[arg-type]
    builder.set_hook(Notes())
    with pytest.raises(TopologyBuildError, match="there is one already"):
        builder.set_hook(Notes())


_ODD = pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, GeneratorExit])
_ONE_ATTEMPT = ProcessSettings(max_attempts=1)


def _raise(kind: type[BaseException]) -> Any:
    raise kind("odd")


class Refuses:
    """Raises when it is pickled, or when it is made again."""

    def __init__(self, kind: type[BaseException], *, when_loaded: bool) -> None:
        self.kind = kind
        self.when_loaded = when_loaded

    def __reduce__(self) -> Any:
        return (_raise, (self.kind,)) if self.when_loaded else _raise(self.kind)


class Odd(BasicBolt):
    """Raises in a hook, or where the value says so emits what `Refuses`."""

    fields = ("key", "value")

    def __init__(self, where: str, kind: type[BaseException]) -> None:
        self.where = where
        self.kind = kind

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self._hook("prepare")

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        value = tuple["value"]
        if value == b"odd":
            value = Refuses(self.kind, when_loaded=self.where == "load")
        collector.emit((tuple["key"], value))

    def snapshot(self) -> Any:
        self._hook("snapshot")
        return Refuses(self.kind, when_loaded=False) if self.where == "state" else None

    def cleanup(self) -> None:
        self._hook("cleanup")

    def _hook(self, where: str) -> None:
        if where == self.where:
            _raise(self.kind)


@bolt(fields=("key", "value"))
def pass_on(given: Tuple) -> Iterator[Any]:
    yield given["key"], given["value"]


def _alone(odd: Odd) -> Topology:
    builder = TopologyBuilder("odd")
    builder.set_spout("events")
    builder.set_bolt("odd", odd).local_grouping("events")
    builder.set_output("out").local_grouping("odd")
    return builder.build()


def _odd_topology(odd: Odd, *, concurrency: int = 1) -> Topology:
    """The odd bolt, and another in a stage of its own."""
    builder = TopologyBuilder("odd")
    builder.set_spout("events")
    builder.set_bolt("odd", odd, concurrency=concurrency).local_grouping("events")
    builder.set_bolt("pass", pass_on, 2).shuffle_grouping("odd")
    builder.set_output("out").local_grouping("pass")
    return builder.build()


@pytest.mark.promise("process-bolt-emits-values")
@_ODD
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("where", ["dump", "load"])
def test_whatever_a_value_raises_on_its_way_fails_its_event(
    tmp_path: Path,
    kind: type[BaseException],
    concurrency: int,
    where: str,
) -> None:
    """To a later stage, also out of a call that ran beside others."""
    runs = StepRuns(
        _odd_topology(Odd(where, kind), concurrency=concurrency), tmp_path, _ONE_ATTEMPT
    )
    runs.step([event(1, b"1"), event(2, b"odd"), event(3, b"3")])
    assert runs.records("out") == [(None, b"1"), (None, b"3")]
    assert runs.dead() == [(None, b"odd")]


@pytest.mark.promise("process-cleanup-bolt-raises")
@_ODD
def test_whatever_cleanup_raises_changes_nothing(tmp_path: Path, kind: type[BaseException]) -> None:
    runs = StepRuns(_alone(Odd("cleanup", kind)), tmp_path)
    runs.step([event(1, b"1")])
    assert (runs.counts["acked"], runs.records("out")) == (1, [(None, b"1")])


@pytest.mark.promise("process-bolt-get-ready")
@_ODD
@pytest.mark.parametrize("where", ["prepare", "snapshot", "state"])
def test_whatever_a_hook_raises_is_told_by_the_bolts_name(
    tmp_path: Path, kind: type[BaseException], where: str
) -> None:
    runs = StepRuns(_alone(Odd(where, kind)), tmp_path)
    with pytest.raises((BoltError, BoltStateError), match="bolt 'odd', task 0: its"):
        runs.step([event(1, b"1")])


@bolt(fields=("value",))
def lock(given: Tuple) -> Iterator[Any]:
    """A value without a hash, where the event's says so."""
    value = given["value"]
    yield (threading.Lock() if value == b"odd" else value,)


@bolt(fields=("value",))
def same(given: Tuple) -> Iterator[Any]:
    yield (given["value"],)


@pytest.mark.promise("process-grouping-given-value")
def test_a_value_without_a_hash_ends_the_job_by_name(tmp_path: Path) -> None:
    """It is no fault of the event, which is no dead letter."""
    builder = TopologyBuilder("hashes")
    builder.set_spout("events")
    builder.set_bolt("lock", lock).local_grouping("events")
    builder.set_bolt("same", same, concurrency=2).fields_grouping("lock", "value")
    builder.set_output("out", key=None).local_grouping("same")
    runs = StepRuns(builder.build(), tmp_path, _ONE_ATTEMPT)
    with pytest.raises(UngroupableValueError, match="bolt 'same': tuples cannot be grouped"):
        runs.step([event(1, b"1"), event(2, b"odd"), event(3, b"3")])
    assert runs.dead() == []
