"""What the user's code raises beside its calls for tuples, `Exception` or not."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BasicBolt,
    BoltError,
    BoltStateError,
    ProcessSettings,
    TopologyBuilder,
    UngroupableValueError,
    bolt,
)
from tests.support.step_runs import StepRuns, event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Topology, Tuple

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


def _topology(odd: Odd, *, concurrency: int = 1) -> Topology:
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
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
    concurrency: int,
    where: str,
) -> None:
    """To a later stage, also out of a call that ran beside others."""
    runs = StepRuns(_topology(Odd(where, kind), concurrency=concurrency), tmp_path, _ONE_ATTEMPT)
    runs.step(monkeypatch, [event(1, b"1"), event(2, b"odd"), event(3, b"3")])
    assert runs.records("out") == [(None, b"1"), (None, b"3")]
    assert runs.dead() == [(None, b"odd")]


@pytest.mark.promise("process-cleanup-bolt-raises")
@_ODD
def test_whatever_cleanup_raises_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    runs = StepRuns(_alone(Odd("cleanup", kind)), tmp_path)
    runs.step(monkeypatch, [event(1, b"1")])
    assert (runs.counts["acked"], runs.records("out")) == (1, [(None, b"1")])


@pytest.mark.promise("process-bolt-get-ready")
@_ODD
@pytest.mark.parametrize("where", ["prepare", "snapshot", "state"])
def test_whatever_a_hook_raises_is_told_by_the_bolts_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], where: str
) -> None:
    runs = StepRuns(_alone(Odd(where, kind)), tmp_path)
    with pytest.raises((BoltError, BoltStateError), match="bolt 'odd', task 0: its"):
        runs.step(monkeypatch, [event(1, b"1")])


@bolt(fields=("value",))
def lock(given: Tuple) -> Iterator[Any]:
    """A value without a hash, where the event's says so."""
    value = given["value"]
    yield (threading.Lock() if value == b"odd" else value,)


@bolt(fields=("value",))
def same(given: Tuple) -> Iterator[Any]:
    yield (given["value"],)


@pytest.mark.promise("process-grouping-given-value")
def test_a_value_without_a_hash_ends_the_job_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the event, which is no dead letter."""
    builder = TopologyBuilder("hashes")
    builder.set_spout("events")
    builder.set_bolt("lock", lock).local_grouping("events")
    builder.set_bolt("same", same, concurrency=2).fields_grouping("lock", "value")
    builder.set_output("out", key=None).local_grouping("same")
    runs = StepRuns(builder.build(), tmp_path, _ONE_ATTEMPT)
    with pytest.raises(UngroupableValueError, match="bolt 'same': tuples cannot be grouped"):
        runs.step(monkeypatch, [event(1, b"1"), event(2, b"odd"), event(3, b"3")])
    assert runs.dead() == []
