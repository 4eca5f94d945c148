"""Whatever fails, and however often: states hold each event once, as a plain count of them does."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    Committer,
    ProcessSettings,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.state import OpaqueState, SQLStore, TransactionalState
from sequitur.consumer.topology.state.sql.engines import engine_of
from sequitur.errors import FailBatch, TransactionError
from tests.support.examples import examples
from tests.support.state_history import StateHistory
from tests.support.transactions import FaultyStore, Journal, counts, faulty_store, unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sequitur.consumer.topology import Tuple


_ATTEMPTS = 3
_BOLTS = ("work", "sum", "after")
_STORES = ("words", "keys")


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of an event.

    Attributes:
        key: Its key.
        word: What is counted.
        where: The bolt that it fails in.
        times: In so many of its attempts.
    """

    key: str | None
    word: str
    where: str = "work"
    times: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, and what goes wrong with it.

    Attributes:
        plans: Of its events.
        asked: Points at which a try at it fails, and as often is asked for another.
        raised: Points at which a bolt raises; fewer than a transaction may fail.
        passes: How often a point is passed through before anything happens there.
        is_retried: Whether time passes before it, so that events that wait run along with it.
    """

    plans: Sequence[Plan]
    asked: Sequence[str]
    raised: Sequence[str]
    passes: Mapping[str, int]
    is_retried: bool


@dataclass(frozen=True, slots=True)
class Life:
    """A tester's batches, and how it ends: noted, not noted, or with a bolt that always raises.

    Attributes:
        batches: The batches.
        last: The last one, which no event of fails.
        end: `noted`, `unnoted`, or the point at which its last batch fails for good.
    """

    batches: Sequence[Batch]
    last: Batch
    end: str


class Works(BaseTransactionalBolt):
    """Passes on what it is given, and fails as events and the journal plan it.

    Args:
        journal: Plans failures of batches.
    """

    fields: Sequence[str] = ("transaction", "word", "value")

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.taken: list[tuple[int, dict[str, Any]]] = []

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        number, plan = json.loads(tuple["value"])
        if plan["where"] == self.context.component and tuple.attempt <= plan["times"]:
            raise ValueError(plan["where"])
        self.journal.pass_through(f"{self.context.component}.process")
        self.taken.append((number, plan))
        self.collector.emit((self.transaction, plan["word"], tuple["value"]))

    def finish_batch(self) -> None:
        self.journal.pass_through(f"{self.context.component}.finish")


class Sums(Works, Committer):
    """Counts words and keys, in a store for each."""

    streams: Mapping[str, Sequence[str]] = MappingProxyType(
        {"counts": ("transaction", "number", "key", "word", "before", "after")}
    )

    def finish_batch(self) -> None:
        words = [plan["word"] for _, plan in self.taken]
        pairs = self.context.state("words").multi_update(words, _one_more)
        keys = [f"{plan['key']}/{plan['word']}" for _, plan in self.taken]
        self.context.state("keys").multi_update(keys, _one_more)
        for (number, plan), (before, after) in zip(self.taken, pairs, strict=True):
            values = (self.transaction, number, plan["key"], plan["word"], before, after)
            self.collector.emit(values, "counts")
        super().finish_batch()


def _one_more(_: Any, count: int | None) -> int:
    return (count or 0) + 1


_words = st.sampled_from("abcd")
_keys = st.sampled_from([None, "k", "m"])
_plans = st.builds(
    Plan, _keys, _words, st.sampled_from(_BOLTS), st.sampled_from([0, 0, 0, 1, 2, 9])
)
_calm_plans = st.builds(Plan, _keys, _words)
_bolt_points = [f"{bolt}.{what}" for bolt in _BOLTS for what in ("process", "finish")]
_store_points = [f"{store}.{what}" for store in _STORES for what in ("commit", "committed")]
_finishes = [f"{bolt}.finish" for bolt in _BOLTS]


def _batches(plans: st.SearchStrategy[Plan], raised: Sequence[str]) -> st.SearchStrategy[Batch]:
    return st.builds(
        Batch,
        st.lists(plans, max_size=6),
        st.lists(st.sampled_from([*_bolt_points, *_store_points]), max_size=3),
        st.lists(st.sampled_from(raised), max_size=_ATTEMPTS - 1),
        st.dictionaries(st.sampled_from(_bolt_points), st.integers(1, 8), max_size=2),
        st.booleans(),
    )


_lives = st.builds(
    Life,
    st.lists(_batches(_plans, _bolt_points), max_size=3),
    _batches(_calm_plans, _finishes),
    st.sampled_from(["noted", "unnoted", *_finishes]),
)


class World:
    """A topology, its databases, its lives, and what is to be expected of them.

    Args:
        folder: Where the databases are.
        kind: Of the states.
        tasks: Of the committer.
    """

    def __init__(self, folder: Path, kind: Any, tasks: int) -> None:
        self.journal = Journal()
        self.stores: dict[str, FaultyStore] = {
            name: faulty_store(folder, name, self.journal) for name in _STORES
        }
        builder = TransactionalTopologyBuilder("counts", "spout")
        builder.set_bolt("work", Works(self.journal)).shuffle_grouping("spout")
        states = {name: kind(store, name) for name, store in self.stores.items()}
        declarer = builder.set_bolt("sum", Sums(self.journal), tasks, states=states)
        declarer.fields_grouping("work", "word")
        builder.set_bolt("after", Works(self.journal)).shuffle_grouping("sum")
        builder.set_output("out", key=None, value=None).local_grouping("sum", "counts")
        self._topology = builder.build()
        self._keeps_order = tasks == 1
        self._lives = self._committed = 0
        self._plans: list[Plan] = []
        self._dead: set[int] = set()
        self._records: list[dict[str, Any]] = []
        self._again: list[dict[str, Any]] | None = None  # events of the transaction to go on with
        self._emitted: list[dict[str, Any]] | None = None  # what it emitted, where that is known

    def live(self, life: Life) -> None:
        self._lives += 1
        tester = TransactionTester(
            self._topology,
            ProcessSettings(max_attempts=_ATTEMPTS),
            resumes_after=self._committed,
            life=self._lives,
        )
        begun = len(self._plans) - len(self._again or ())
        if self._again is not None:
            tester.run(self._again)
            assert self._emitted in (None, _records(tester))
        for batch in life.batches:
            self._run(tester, batch, self._events(batch.plans))
        tester.retry_all()
        assert len(tester.acked) + len(tester.dead_letters) == len(self._plans) - begun
        self._dead |= {json.loads(one.event.value or b"")[0] for one in tester.dead_letters}
        self._committed, emitted = tester.transaction_id, len(tester.outputs["out"])
        self._again, self._emitted = self._events(life.last.plans), None
        if life.end in _finishes:
            self.journal.faults = {life.end: [ValueError("for good") for _ in range(99)]}
            with pytest.raises(TransactionError):
                tester.run(self._again)
            self.journal.faults = {}
        else:
            self._run(tester, life.last, self._again)
            if life.end == "unnoted":
                self._emitted = _records(tester)[emitted:]
            else:
                self._committed, self._again = tester.transaction_id, None
                emitted = len(tester.outputs["out"])
        self._records += _records(tester)[:emitted]

    def check(self) -> None:
        """Compare states and outputs with a plain count."""
        hopeless = {place for place, one in enumerate(self._plans) if one.times >= _ATTEMPTS}
        assert hopeless <= self._dead
        numbered = [pair for pair in enumerate(self._plans) if pair[0] not in self._dead]
        passed = [one for _, one in numbered]
        assert counts(self.stores["words"], "words") == Counter(one.word for one in passed)
        by_key = Counter(f"{one.key}/{one.word}" for one in passed)
        assert counts(self.stores["keys"], "keys") == by_key
        numbers = [record["number"] for record in self._records]
        assert sorted(numbers) == [place for place, _ in numbered]
        for word in "abcd":
            of_word = [one for one in self._records if one["word"] == word]
            after = [one["after"] for one in of_word]
            assert after == list(range(1, len(of_word) + 1))
            assert [one["before"] or 0 for one in of_word] == list(range(len(of_word)))
        for key in ("k", "m") if self._keeps_order else ():
            of_key = [one["number"] for one in self._records if one["key"] == key]
            assert of_key == sorted(of_key)

    def close(self) -> None:
        for store in self.stores.values():
            engine_of(store).dispose()

    def _run(self, tester: TransactionTester, batch: Batch, events: list[dict[str, Any]]) -> None:
        if batch.is_retried:
            tester.advance(1000)
        self.journal.faults = {point: [None] * times for point, times in batch.passes.items()}
        for point in batch.asked:
            error = unavailable() if point in _store_points else FailBatch("asked")
            self.journal.faults.setdefault(point, []).append(error)
        for point in batch.raised:
            self.journal.faults.setdefault(point, []).append(ValueError("raised"))
        before = len(tester.failed_tries)
        tester.run(events)
        event(f"failed tries: {len(tester.failed_tries) - before}")
        self.journal.faults = {}

    def _events(self, plans: Sequence[Plan]) -> list[dict[str, Any]]:
        made = [
            {"key": plan.key, "value": json.dumps([number, asdict(plan)]), "event_time_ms": number}
            for number, plan in enumerate(plans, len(self._plans))
        ]
        self._plans += plans
        return made


def _records(tester: TransactionTester) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for _, value in tester.records("out")]


@pytest.mark.promise("state-random-against-plain")
@pytest.mark.parametrize("kind", [TransactionalState, OpaqueState])
@settings(max_examples=examples(0.4))
@given(lives=st.lists(_lives, min_size=1, max_size=3), tasks=st.sampled_from([1, 1, 2]))
def test_states_are_what_a_plain_count_gives(kind: Any, lives: Sequence[Life], tasks: int) -> None:
    """Through failed events, failed tries, databases that are away, and lives that end."""
    calm = Batch((), (), (), {}, is_retried=False)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), kind, tasks)
        try:
            for life in (*lives, Life((), calm, "noted")):
                world.live(life)
            world.check()
        finally:
            world.close()


@pytest.mark.promise("state-commit-tried-already", "state-key-taken-transaction")
def test_each_transaction_counts_once(tmp_path: Path) -> None:
    """Whatever fails, is repeated or comes late: the rows are those of one attempt at each."""
    store = SQLStore(f"sqlite:///{tmp_path}/state.db")
    numbers = itertools.count()

    class History(StateHistory):
        def __init__(self) -> None:
            super().__init__(store, next(numbers))

    run_state_machine_as_test(
        History,
        settings=settings(max_examples=examples(0.6), stateful_step_count=20),
    )
