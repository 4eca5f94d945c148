"""How often bolts are called, and what is committed, where calls fail by chance or for an event."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    ProcessSettings,
    TransactionalTopologyBuilder,
    TransactionTester,
    bolt,
)
from sequitur.consumer.topology.state import TransactionalState
from sequitur.consumer.topology.tester.in_memory import InMemoryBatch
from tests.support.chances import (
    ATTEMPTS,
    Ask,
    Chances,
    Part,
    Passing,
    Sum,
    Total,
    topology_of,
)
from tests.support.transactions import counts, events, store_in, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Tuple

_EVENTS = 500


class Planned(Chances):
    """Fails the calls that are named: the value, and the how manyth of its calls."""

    def __init__(self, component: str, *fails: tuple[str, int]) -> None:
        super().__init__([component])
        self.fails = fails

    def _fails(self, component: str, value: str, call: int) -> bool:
        del component
        return (value, call) in self.fails

    def calls_of(self, component: str, given: Tuple) -> int:
        return self.of_value[component, text(given["value"])]


class Stuttering(Ask):
    """Fails when it has passed on what it is given."""

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        collector.emit((tuple["transaction"], tuple["value"], self.chances.token(tuple)))
        self.chances.call(self.name, tuple)


class Awaiting(Ask):
    """Does so in a call that is awaited."""

    async def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # type: ignore[override]  # noqa: A002
        await asyncio.sleep(0)
        super().process(tuple, collector)


class AwaitingTotal(Total):
    """Does so in a call that is awaited."""

    async def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # type: ignore[override]  # noqa: A002
        await asyncio.sleep(0)
        super().process(tuple, collector)


class Hardening(Part):
    """Takes in what then fails; cannot be copied any more once it is given a value again."""

    chances: Planned

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self.given.append((tuple, self.chances.token(tuple)))
        self.chances.call(self.name, tuple)
        if self.chances.calls_of(self.name, tuple) == 2:
            self.lock = threading.Lock()


_SUM = {"sum": (Sum, ["part"])}


def _tester(
    chances: Chances,
    folder: Path,
    bolts: Mapping[str, tuple[Any, Sequence[str]]],
    *,
    is_shuffled: bool = False,
    concurrency: int = 1,
) -> TransactionTester:
    made = topology_of(
        chances, store_in(folder), bolts, is_shuffled=is_shuffled, concurrency=concurrency
    )
    return TransactionTester(made, ProcessSettings(max_attempts=ATTEMPTS))


def _chain(part: Part) -> dict[str, tuple[Any, Sequence[str]]]:
    return {"ask": (Ask, ["spout"]), "part": (part, ["ask"]), **_SUM}


def _values() -> list[str]:
    return [str(number) for number in range(_EVENTS)]


def _passed_at_once(chances: Chances, among: int = _EVENTS) -> int:
    """Return how many of the first events a plain topology acks in its first batch."""
    return sum(map(chances.passes_at_once, _values()[:among]))


def _check_exact(
    tester: TransactionTester, folder: Path, sources: Sequence[str] = ("part",)
) -> None:
    """What is acked is counted once, and goes out once, and nothing else; in the end all does."""
    assert len(tester.acked) + len(tester.failed) + len(tester.held) == _EVENTS
    for is_over in (False, True):
        if is_over:
            tester.retry_all()
            assert not tester.dead_letters
            assert len(tester.acked) == _EVENTS
        values = sorted(text(event.value) for event in tester.acked)
        expected = [f"{source} {value}" for source in sources for value in values]
        assert counts(store_in(folder), "counts") == dict.fromkeys(expected, 1)
        assert sorted(text(value) for _, value in tester.records("out")) == values


@pytest.mark.promise("state-event-fails-batch")
def test_a_snapshot_has_nothing_of_what_failed(tmp_path: Path) -> None:
    """Neither of what failed in its bolt nor of what did elsewhere; in the end it has all."""
    chances = Chances(["total", "sum"], 0.1)
    bolts = {"total": (Total, ["spout"]), "sum": (Sum, ["total"])}
    tester = _tester(chances, tmp_path, bolts)
    tester.run(events(*_values()))
    assert chances.totals[-1] == len(tester.acked) == _passed_at_once(chances) < _EVENTS
    _check_exact(tester, tmp_path, ["total"])
    assert chances.totals[-1] == _EVENTS


_chances: dict[str, Chances] = {}


@bolt(fields=Ask.fields)
def yielding(given: Tuple) -> Iterator[Any]:
    """Does as `Stuttering` does."""
    yield given["transaction"], given["value"], _chances["ask"].token(given)
    _chances["ask"].call("ask", given)


@pytest.mark.promise("state-calls-fail-chance")
@pytest.mark.parametrize("kind", [Stuttering, Awaiting, yielding])
def test_calls_side_by_side_are_repeated_where_they_run_again(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are behind a batch bolt, which keeps what fails in them; what they emitted is not."""
    monkeypatch.setattr(InMemoryBatch, "runs_inline", False)
    chances = Chances(["ask"], 0.1)
    monkeypatch.setitem(_chances, "ask", chances)
    bolts = {"part": (Passing, ["spout"]), "ask": (kind, ["part"]), "sum": (Sum, ["ask"])}
    tester = _tester(chances, tmp_path, bolts, concurrency=4)
    tester.run(events(*_values()))
    assert len(tester.acked) == _passed_at_once(chances) < _EVENTS
    assert chances.made["ask"] <= 2.3 * _EVENTS
    assert chances.beside >= chances.made["ask"]
    _check_exact(tester, tmp_path, ["ask"])


@pytest.mark.parametrize("seed", range(6))
def test_all_tasks_that_either_run_has_sent_to_run_again(seed: int, tmp_path: Path) -> None:
    """Few events have drawn other tasks in the second run: none counts twice, or not at all."""
    chances = Chances(["two"], values=["0"])
    chances._random = random.Random(seed)
    builder = TransactionalTopologyBuilder("calls", "spout")
    builder.set_bolt("part", Passing(chances)).local_grouping("spout")
    builder.set_bolt("two", Part(chances, "two"), 8).fields_grouping("part", "token")
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    builder.set_committer_bolt("sum", Sum(chances), states=states).global_grouping("two")
    builder.set_output("out", key=None, value="value").local_grouping("sum")
    tester = TransactionTester(builder.build(), ProcessSettings(max_attempts=ATTEMPTS))
    tester.run(events("0", "1", "2"))
    assert chances.failed
    assert not tester.failed_tries
    assert sorted(text(event.value) for event in tester.acked) == ["1", "2"]
    assert counts(store_in(tmp_path), "counts") == {"two 1": 1, "two 2": 1}
    assert sorted(text(value) for _, value in tester.records("out")) == ["1", "2"]


def test_what_fails_behind_a_copy_that_was_lost_is_run_again_without(tmp_path: Path) -> None:
    """Back behind 22 it is given others again, and cannot be copied from then on; then 21 fails."""
    chances = Planned("part", ("22", 1), ("21", 2))
    tester = _tester(chances, tmp_path, _chain(Hardening(chances)))
    tester.run(events(*_values()))
    assert chances.failed == 2
    assert not tester.failed_tries
    assert len(tester.acked) == _EVENTS - 2
    _check_exact(tester, tmp_path)


def test_a_bolt_is_given_what_came_since_its_copy_in_the_same_order(tmp_path: Path) -> None:
    """Also where a tuple that passed before fails now, so that it goes back once more."""
    chances = Planned("part", ("6", 1), ("4", 2))
    part = Part(chances, size=400_000)  # so that it is not copied again before
    tester = _tester(chances, tmp_path, _chain(part))
    tester.run(events(*"0123456789"))
    assert chances.failed == 2
    assert [text(value) for _, value in tester.records("out")] == list("012345789")


def test_side_by_side_nothing_is_repeated_of_what_keeps_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a bolt is run again without those that failed in any of its runs."""
    monkeypatch.setattr(InMemoryBatch, "runs_inline", False)
    chances = Planned("ask", ("5", 1), ("7", 2))
    bolts = {"ask": (AwaitingTotal, ["spout"]), "sum": (Sum, ["ask"])}
    tester = _tester(chances, tmp_path, bolts, concurrency=4)
    tester.run(events(*_values()))
    assert chances.failed == 2
    assert chances.totals[-1] == len(tester.acked) == _EVENTS - 2
    _check_exact(tester, tmp_path, ["ask"])


def test_a_call_that_emitted_is_not_repeated(tmp_path: Path) -> None:
    """Others have that already; also in a run that is one again, where calls are repeated."""
    chances = Chances(["ask"], 0.1)
    bolts = {"part": (Passing, ["spout"]), "ask": (Stuttering, ["part"]), "sum": (Sum, ["ask"])}
    tester = _tester(chances, tmp_path, bolts)
    tester.run(events(*_values()[:40]))
    assert chances.made["part"] > 40
    assert chances.failed > 40 - _passed_at_once(chances, 40)
    tester.retry_all()
    assert len(tester.acked) == 40
    expected = {f"ask {value}": 1 for value in _values()[:40]}
    assert counts(store_in(tmp_path), "counts") == expected


@pytest.mark.promise("state-event-fails-batch")
@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("component", ["ask", "part"])
def test_what_cannot_be_copied_is_run_again_once(
    component: str, is_shuffled: bool, tmp_path: Path
) -> None:
    """All events that fail are known by then; the function before it is not called again."""
    chances = Chances([component], values=_values()[5::10])
    bolts = _chain(Part(chances, is_locked=True))
    tester = _tester(chances, tmp_path, bolts, is_shuffled=is_shuffled)
    tester.run(events(*_values()))
    assert len(tester.acked) == _EVENTS - chances.failed == 0.9 * _EVENTS
    assert chances.made["ask"] == _EVENTS
    assert chances.made["part"] == {"ask": 0.9, "part": 1.9}[component] * _EVENTS
    _check_exact(tester, tmp_path)
