"""Calls that fail by chance: bolts are called little more often, and each event is committed once.

The rows are those of the table in ADR 39.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sequitur.consumer.topology import ProcessSettings, TransactionTester
from sequitur.consumer.topology.state.sql.engines import engine_of
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
from tests.support.examples import examples_in
from tests.support.transactions import counts, events, store_in, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = {0.01: 2.1, 0.1: 2.5}
"""So many calls of a bolt for an event, by the share of calls that fail."""
_SLACK = 60
"""And so many for each batch: how far its first failure is behind a copy is chance."""


@dataclass(frozen=True)
class Row:
    """A topology.

    Attributes:
        bolts: By name, what each is and reads; `sum` commits.
        failing: The bolts that fail by chance.
        counted: The bolts whose calls are counted.
        fails_events: Whether a failure is an event's: what belongs to the batch, or to its
            commit, is repeated.
    """

    bolts: Mapping[str, tuple[type[Any], Sequence[str]]]
    failing: Sequence[str]
    counted: Sequence[str]
    fails_events: bool = True


_ASK = {"ask": (Ask, ["spout"])}
_SUM = {"sum": (Sum, ["part"])}
_BESIDE = {
    **_ASK,
    "one": (Part, ["ask"]),
    "two": (Part, ["ask"]),
    "sum": (Sum, ["one", "two"]),
}
_TABLE = {
    "a function before the batch bolts": Row(
        {**_ASK, "part": (Part, ["ask"]), **_SUM}, ["ask"], ["ask", "part", "sum"]
    ),
    "a function behind a batch bolt that emits at once": Row(
        {"part": (Passing, ["spout"]), "ask": (Ask, ["part"]), "sum": (Sum, ["ask"])},
        ["ask"],
        ["part", "ask"],
    ),
    "a function behind what a batch bolt emits at its end": Row(
        {"part": (Part, ["spout"]), "ask": (Ask, ["part"]), "sum": (Sum, ["ask"])},
        ["ask"],
        ["part", "ask", "sum"],
        fails_events=False,
    ),
    "a batch bolt": Row({**_ASK, "part": (Part, ["ask"]), **_SUM}, ["part"], ["ask", "part"]),
    "a batch bolt that emits at once": Row(
        {**_ASK, "part": (Passing, ["ask"]), **_SUM}, ["part"], ["ask", "part"]
    ),
    "one of two batch bolts": Row(_BESIDE, ["two"], ["ask", "one", "two"]),
    "two batch bolts, each by itself": Row(_BESIDE, ["one", "two"], ["ask", "one", "two"]),
    "a batch bolt behind another": Row(
        {**_ASK, "one": (Passing, ["ask"]), "part": (Part, ["one"]), **_SUM},
        ["part"],
        ["ask", "one", "part"],
    ),
    "a bolt with a snapshot": Row(
        {**_ASK, "total": (Total, ["ask"]), "sum": (Sum, ["total"])}, ["total"], ["ask", "total"]
    ),
    "a committer": Row({**_ASK, "sum": (Sum, ["ask"])}, ["sum"], ["ask", "sum"]),
    "a function behind a committer": Row(
        {"part": (Part, ["spout"]), **_SUM, "ask": (Ask, ["sum"])},
        ["ask"],
        ["part", "sum", "ask"],
        fails_events=False,
    ),
}
_MORE = {
    "a committer behind a batch bolt": Row(
        {**_ASK, "part": (Part, ["ask"]), **_SUM},
        ["sum"],
        ["ask", "part", "sum"],
        fails_events=False,
    ),
    "a committer behind a batch bolt that emits at once": Row(
        {**_ASK, "part": (Passing, ["ask"]), **_SUM}, ["sum"], ["ask", "part"]
    ),
    "what reads a random batch bolt": Row(
        {
            "random": (Passing, ["spout"]),
            "one": (Passing, ["random"]),
            "two": (Ask, ["random"]),
            "sum": (Sum, ["one", "two"]),
        },
        ["one", "two"],
        ["random", "one", "two"],
    ),
}
_ROWS = {**_TABLE, **_MORE}


class World:
    """A topology, its database and its lives.

    Args:
        folder: Where the database is.
        row: The topology.
        chances: Fails its calls.
        is_shuffled: Whether each bolt has two or three tasks elsewhere, or is where its input is.
    """

    def __init__(self, folder: Path, row: Row, chances: Chances, *, is_shuffled: bool) -> None:
        self._row, self._chances, self._store = row, chances, store_in(folder)
        self._topology = topology_of(chances, self._store, row.bolts, is_shuffled=is_shuffled)
        self._keeps_order = not is_shuffled
        self._lives = self._committed = self._events = self._begun = 0
        self._out: list[str] = []
        self._tester = self._born()

    def run(self, count: int) -> Counter[str]:
        """Run a batch; return how often bolts were called."""
        tester, chances = self._tester, self._chances
        values = [str(self._events + number) for number in range(count)]
        before = chances.made.copy()
        acked, put_out = len(tester.acked), len(tester.outputs["out"])
        tester.run(events(*values))
        self._events += count
        assert not tester.failed_tries
        expected = values
        if self._row.fails_events:
            expected = [value for value in values if chances.passes_at_once(value)]
        assert sorted(text(one.value) for one in tester.acked[acked:]) == sorted(expected)
        found = [text(value) for _, value in tester.records("out")[put_out:]]
        assert (found if self._keeps_order else sorted(found, key=int)) == expected
        return chances.made - before

    def die(self, count: int, call: int) -> None:
        """Begin a batch, and die in one of its calls; the batch is still to come then.

        Args:
            count: How many events it has.
            call: In which call, unless it is committed by then.
        """
        self.settle()
        chances = self._chances
        before = chances.made.copy(), chances.of_value.copy()
        chances.dies_in, chances.is_committing = call, False
        values = [str(self._events + number) for number in range(count)]
        try:
            self._tester.run(events(*values))
        except KeyboardInterrupt:
            chances.made, chances.of_value = before
            self._end()
        else:
            self._events += count
        finally:
            chances.dies_in = None

    def settle(self) -> None:
        """Run what waits, and compare all that was committed with all that was given."""
        tester = self._tester
        tester.retry_all()
        assert not tester.dead_letters
        assert not tester.failed_tries
        assert len(tester.acked) == self._events - self._begun
        values = [str(number) for number in range(self._events)]
        found = [*self._out, *(text(value) for _, value in tester.records("out"))]
        assert sorted(found, key=int) == values
        expected = {f"{one} {value}": 1 for one in self._row.bolts["sum"][1] for value in values}
        assert (counts(self._store, "counts") if values else {}) == expected
        assert not self._chances.mixed
        if "total" in self._row.bolts and self._keeps_order and tester.acked:
            assert self._chances.totals[-1] == len(tester.acked)

    def close(self) -> None:
        engine_of(self._store).dispose()

    def _born(self) -> TransactionTester:
        self._lives += 1
        return TransactionTester(
            self._topology,
            ProcessSettings(max_attempts=ATTEMPTS),
            resumes_after=self._committed,
            life=self._lives,
        )

    def _end(self) -> None:
        tester = self._tester
        self._committed, self._begun = tester.transaction_id, self._events
        self._out += [text(value) for _, value in tester.records("out")]
        self._tester = self._born()


_sizes = st.one_of(st.integers(1, 60), st.integers(1, 700), st.integers(1, 5_000))
_deaths = st.none() | st.integers(1, 300)


@pytest.mark.promise("state-calls-fail-chance", "state-event-fails-batch")
@pytest.mark.parametrize("share", _MOST)
@pytest.mark.parametrize("name", _ROWS)
def test_calls_that_fail_by_chance_cost_few_calls_and_no_event(name: str, share: float) -> None:
    """In batches of any size, of bolts that change and then raise, through deaths."""
    row, made, failed = _ROWS[name], Counter[str](), 0
    allowed = 0.0

    @settings(max_examples=examples_in(test=1, test_all=8))
    @example(batches=[(500, 300)], seed=3, is_shuffled=False)
    @given(
        batches=st.lists(st.tuples(_sizes, _deaths), min_size=1, max_size=3),
        seed=st.integers(0, 2**32),
        is_shuffled=st.booleans(),
    )
    def holds(batches: Sequence[tuple[int, int | None]], seed: int, *, is_shuffled: bool) -> None:
        nonlocal allowed, failed
        chances = Chances(row.failing, share, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), row, chances, is_shuffled=is_shuffled)
            try:
                for count, call in batches:
                    if call is not None:
                        world.die(count, call)
                    made.update(world.run(count))
                    allowed += _MOST[share] * count + _SLACK
                world.settle()
            finally:
                world.close()
        failed += chances.failed

    holds()
    assert failed >= share * 500 / 3
    assert {one: made[one] for one in row.counted if made[one] > allowed} == {}
