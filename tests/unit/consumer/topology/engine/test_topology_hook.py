"""What a hook is told of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    AckedEvent,
    EventHook,
    FailedEvent,
    FailReason,
    ProcessSettings,
    Topology,
    TopologyBuilder,
    TopologyBuildError,
    TopologyTester,
    bolt,
)
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    monkeypatch: pytest.MonkeyPatch,
    tasks: int | None,
    pending: int | None,
) -> None:
    """Whoever knows the verdicts, and whatever the waves."""
    settings = ProcessSettings(max_attempts=2, retry_jitter=0, max_spout_pending=pending)
    runs = StepRuns(_topology(tasks), tmp_path, settings)
    runs.step(monkeypatch, _GIVEN)
    runs.to_the_end(monkeypatch)
    assert sorted(_told_as(told), key=lambda one: (one[2], one[1])) == _EXPECTED
    assert (runs.counts["acked"], runs.counts["dead"]) == (3, 1)


def test_a_hook_that_is_none_is_refused() -> None:
    builder = TopologyBuilder("hooked")
    with pytest.raises(TopologyBuildError, match="it is no EventHook"):
        builder.set_hook(object())  # type: ignore[arg-type]
    builder.set_hook(Notes())
    with pytest.raises(TopologyBuildError, match="there is one already"):
        builder.set_hook(Notes())
