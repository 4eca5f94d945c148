"""How often bolts are called, and what is committed, where calls fail by chance or for an event."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    BasicBolt,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.state import TransactionalState
from tests.support.transactions import Journal, counts, events, store_in, text

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from sequitur.consumer.topology import BasicOutputCollector, Tuple

_EVENTS = 1_000


class Chances(Journal):
    """Counts calls, and fails some.

    Args:
        failing: The bolt that fails.
        share: Of its calls, by chance.
        values: It fails in the first attempt at these.
    """

    def __init__(self, failing: str, share: float = 0.0, values: Collection[str] = ()) -> None:
        super().__init__()
        self.made: Counter[str] = Counter()
        self.failed = 0
        self._failing = failing
        self._share = share
        self._values = values
        self._random = random.Random(3)

    def call(self, component: str, given: Tuple) -> None:
        """Count a call, and maybe fail it."""
        self.made[component] += 1
        if component == self._failing and (
            self._random.random() < self._share
            or (given.attempt == 1 and text(given["value"]) in self._values)
        ):
            self.failed += 1
            raise ConnectionError("503")


class Ask(BasicBolt):
    """Passes on what it is given."""

    fields = ("transaction", "value")

    def __init__(self, chances: Chances) -> None:
        self.chances = chances

    def process(self, tuple: Tuple, collector: BasicOutputCollector, /) -> None:  # noqa: A002
        """Pass it on."""
        self.chances.call("ask", tuple)
        collector.emit((tuple["transaction"], tuple["value"]))


class Part(BaseTransactionalBolt):
    """Counts the values of a batch, and how many are open; holds the tuples.

    Args:
        chances: Fails calls.
        is_locked: Whether it cannot be copied.
    """

    fields = ("transaction", "value")

    def __init__(self, chances: Chances, *, is_locked: bool = False) -> None:
        self.chances = chances
        self.is_locked = is_locked
        self.given: list[Any] = []
        self.open = 0

    def prepare(self, *given: Any) -> None:
        """Begin a batch."""
        super().prepare(*given)
        self.lock = threading.Lock() if self.is_locked else None

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        """Count it; what fails in between leaves it open."""
        self.open += 1
        self.chances.call("part", tuple)
        self.given.append(tuple)
        self.open -= 1

    def finish_batch(self) -> None:
        """Emit the count."""
        if self.open:
            raise ValueError(f"{self.open} are open")
        for given in self.given:
            self.collector.emit((self.transaction, given["value"]))


class Passing(Part):
    """Emits at once.

    Args:
        chances: Fails calls.
        size: How much it keeps.
    """

    def __init__(self, chances: Chances, size: int = 0) -> None:
        super().__init__(chances)
        self.kept = "x" * size

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        """Emit it."""
        super().process(tuple)
        self.given.clear()
        self.collector.emit((self.transaction, tuple["value"]))


class Sum(BaseTransactionalBolt):
    """Counts all values."""

    def __init__(self, chances: Chances) -> None:
        self.chances = chances
        self.values: Counter[Any] = Counter()

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        """Count it."""
        self.chances.call("sum", tuple)
        self.values[text(tuple["value"])] += 1

    def finish_batch(self) -> None:
        """Write the counts."""
        state = self.context.state("count")
        state.multi_update(list(self.values), lambda key, count: (count or 0) + self.values[key])


def _tester(
    chances: Chances,
    folder: Path,
    *,
    is_shuffled: bool = False,
    part: Part | None = None,
) -> TransactionTester:
    """Return: ask, behind it part, and behind that the committer sum."""
    states = {"count": TransactionalState(store_in(folder), "counts")}
    builder = TransactionalTopologyBuilder("calls", "spout")
    if is_shuffled:
        builder.set_bolt("ask", Ask(chances), 3).shuffle_grouping("spout")
        builder.set_bolt("part", part or Part(chances), 2).shuffle_grouping("ask")
    else:
        builder.set_bolt("ask", Ask(chances)).local_grouping("spout")
        builder.set_bolt("part", part or Part(chances)).local_grouping("ask")
    committer = builder.set_committer_bolt("sum", Sum(chances), states=states)
    committer.global_grouping("part")
    return TransactionTester(builder.build())


def _values() -> list[str]:
    return [str(number) for number in range(_EVENTS)]


def _check_exact(tester: TransactionTester, folder: Path) -> None:
    """What is acked is counted once, and nothing else; in the end all is."""
    assert len(tester.acked) + len(tester.failed) + len(tester.held) == _EVENTS
    values = [text(event.value) for event in tester.acked]
    assert counts(store_in(folder), "counts") == dict.fromkeys(values, 1)
    tester.retry_all()
    assert not tester.dead_letters
    assert counts(store_in(folder), "counts") == dict.fromkeys(_values(), 1)


@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_a_function_is_not_called_again(share: float, is_shuffled: bool, tmp_path: Path) -> None:
    """Some of its calls fail: the others count, as in a plain topology."""
    chances = Chances("ask", share)
    tester = _tester(chances, tmp_path, is_shuffled=is_shuffled)
    tester.run(events(*_values()))
    assert chances.failed > share * _EVENTS / 2
    assert chances.made["ask"] == _EVENTS
    assert chances.made["part"] == len(tester.acked) == _EVENTS - chances.failed
    _check_exact(tester, tmp_path)


@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize(("share", "most"), [(0.01, 1.15), (0.1, 1.4)])
def test_a_batch_bolt_goes_on_without_what_failed(
    share: float, most: float, is_shuffled: bool, tmp_path: Path
) -> None:
    """Only what is behind its newest copy is called again; that may fail, too."""
    chances = Chances("part", share)
    tester = _tester(chances, tmp_path, is_shuffled=is_shuffled)
    tester.run(events(*_values()))
    assert chances.failed > share * _EVENTS / 2
    assert chances.made["ask"] == _EVENTS < chances.made["part"] <= most * _EVENTS
    assert len(tester.acked) >= 0.95 * (1 - share) * _EVENTS
    _check_exact(tester, tmp_path)


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_a_call_that_emitted_is_not_repeated(is_shuffled: bool, tmp_path: Path) -> None:
    """The bolt goes on from a copy behind it, and each event comes out once."""
    chances = Chances("part", 0.1)
    tester = _tester(chances, tmp_path, is_shuffled=is_shuffled, part=Passing(chances))
    tester.run(events(*_values()))
    assert chances.failed > 0.05 * _EVENTS
    assert chances.made["ask"] == chances.made["part"] == _EVENTS
    assert len(tester.acked) == _EVENTS - chances.failed
    _check_exact(tester, tmp_path)


def test_a_large_bolt_that_emitted_is_run_again_once(tmp_path: Path) -> None:
    """It is not copied for each tuple."""
    chances = Chances("part", values=_values()[5::10])
    tester = _tester(chances, tmp_path, part=Passing(chances, size=5_000))
    tester.run(events(*_values()))
    assert len(tester.acked) == 0.9 * _EVENTS
    assert chances.made["part"] == 1.9 * _EVENTS
    _check_exact(tester, tmp_path)


@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("component", ["ask", "part"])
def test_what_cannot_be_copied_is_run_again_once(
    component: str, is_shuffled: bool, tmp_path: Path
) -> None:
    """All events that fail are known by then."""
    chances = Chances(component, values=_values()[5::10])
    part = Part(chances, is_locked=True)
    tester = _tester(chances, tmp_path, is_shuffled=is_shuffled, part=part)
    tester.run(events(*_values()))
    assert len(tester.acked) == _EVENTS - chances.failed == 0.9 * _EVENTS
    again = 0 if component == "ask" else 0.9 * _EVENTS
    assert chances.made["ask"] == _EVENTS + again
    _check_exact(tester, tmp_path)


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_what_a_committer_cannot_process_is_not_committed(
    is_shuffled: bool, tmp_path: Path
) -> None:
    """Bolts that keep nothing of their batch are called once; the committer, in each phase."""
    chances = Chances("sum", values=_values()[5::10])
    builder = TransactionalTopologyBuilder("calls", "spout")
    asks = builder.set_bolt("ask", Ask(chances), 3 if is_shuffled else None)
    (asks.shuffle_grouping if is_shuffled else asks.local_grouping)("spout")
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    builder.set_committer_bolt("sum", Sum(chances), states=states).global_grouping("ask")
    tester = TransactionTester(builder.build())
    tester.run(events(*_values()))
    assert len(tester.acked) == _EVENTS - chances.failed == 0.9 * _EVENTS
    assert chances.made["ask"] == _EVENTS
    assert chances.made["sum"] <= 2.3 * _EVENTS
    assert not tester.failed_tries
    _check_exact(tester, tmp_path)


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_what_fails_by_chance_behind_a_batch_bolt_has_it_run_again_once(
    share: float, tmp_path: Path
) -> None:
    """The batch bolt keeps what fails behind it; the calls that passed do so in the next run."""
    chances = Chances("ask", share)
    builder = TransactionalTopologyBuilder("calls", "spout")
    builder.set_bolt("part", Passing(chances)).local_grouping("spout")
    builder.set_bolt("ask", Ask(chances)).local_grouping("part")
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    builder.set_committer_bolt("sum", Sum(chances), states=states).global_grouping("ask")
    tester = TransactionTester(builder.build())
    tester.run(events(*_values()))
    assert chances.failed > share * _EVENTS / 2
    assert _EVENTS < chances.made["part"] <= 2 * _EVENTS
    assert len(tester.acked) >= 0.95 * (1 - share) * _EVENTS
    _check_exact(tester, tmp_path)
