"""Transactional spouts under random failures, kills and power cuts: each tuple counts once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches
from tests.support.transactional_spouts import (
    SOURCES,
    KilledError,
    KilledStore,
    OpaqueSourceSpout,
    Source,
    SourceSpout,
    committed_through,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_events = st.one_of(
    st.tuples(st.just("emit"), st.just(0)),
    st.tuples(st.just("commit"), st.just(0)),
    st.tuples(st.just("commit and forget"), st.integers(0, 255)),
    st.tuples(st.just("fail"), st.integers(0, 3)),
    st.tuples(st.just("restart"), st.integers(0, 255)),
    st.tuples(st.just("kill"), st.integers(0, 8)),
    st.tuples(st.just("break"), st.integers(0, 4)),
    st.tuples(st.just("take"), st.integers(0, 4)),
    st.tuples(st.just("reach"), st.integers(0, 5)),
    st.tuples(st.just("add rows"), st.integers(0, 4)),
    st.tuples(st.just("add partition"), st.integers(0, 4)),
)


@dataclass
class _World:
    """A driver and its committing bolt, which keeps each batch under its transaction id."""

    source: Source
    spout: Any
    store: KilledStore = field(default_factory=KilledStore)
    tasks: int = 1
    attempts: int = 0
    emitted: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    ever: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    kept: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    noted: int = 0
    begun: int = 0

    def __post_init__(self) -> None:
        self.batches = SpoutBatches(self.spout, self.store, self.tasks)

    def next_id(self) -> int:
        return max(self.emitted, default=self.noted) + 1

    def emit(self, _: int) -> None:
        transaction_id = self.next_id()
        self.attempts += 1
        self.begun = max(self.begun, transaction_id)
        transaction = TransactionAttempt(transaction_id, self.attempts)
        try:
            by_task = self.batches.emit(transaction)
        except ConnectionResetError:
            return
        rows = []
        for task, tuples in enumerate(by_task):
            for first, partition, row in tuples:
                assert (first, partition % self.tasks) == (transaction, task)
                rows.append((partition, row))
        rows.sort()  # rows of a partition grow
        if not self.spout.is_opaque:
            assert self.ever.setdefault(transaction_id, rows) == rows
        self.emitted[transaction_id] = rows

    def commit(self, _: int) -> None:
        transaction_id = self.noted + 1
        if transaction_id in self.emitted:
            self.kept[transaction_id] = self.emitted[transaction_id]
            self.batches.committed(transaction_id)
            self.noted = transaction_id
            del self.emitted[transaction_id]

    def commit_and_forget(self, number: int) -> None:
        before = self.noted
        self.commit(0)
        self.noted = before
        self.restart(number)

    def fail(self, back: int) -> None:
        transaction_id = self.next_id() - 1 - back
        if transaction_id in self.emitted:
            again = self.batches.failed(transaction_id)
            assert again == sorted(one for one in self.emitted if one >= transaction_id)
            for one in again:
                del self.emitted[one]

    def restart(self, number: int) -> None:
        self.store.changes_left = None
        self.store.cut_power(number)
        self.emitted.clear()
        self.tasks = number % 3 + 1
        self.batches = SpoutBatches(self.spout, self.store, self.tasks)
        assert committed_through(self.store) in {self.noted, self.noted + 1}

    def change_source(self, what: str, number: int) -> None:
        source = self.source
        if what == "break":
            source.broken = number
        elif what == "take":
            source.take = number
        elif what == "reach":
            source.reachable = number
        elif what == "add partition":
            source.partitions.append(list(range(number)))
        elif number < len(source.partitions):
            rows = source.partitions[number]
            rows.extend(range(len(rows), len(rows) + 3))

    def run(self, what: str, number: int) -> None:
        steps: dict[str, Callable[[int], None]] = {
            "emit": self.emit,
            "commit": self.commit,
            "commit and forget": self.commit_and_forget,
            "fail": self.fail,
            "restart": self.restart,
        }
        if what == "kill":
            self.store.changes_left = number
        elif what not in steps:
            self.change_source(what, number)
        else:
            try:
                steps[what](number)
            except KilledError:
                self.restart(number)

    def drain(self) -> None:
        self.source.reachable, self.source.broken, self.source.take = None, None, 5
        self.restart(0)
        longest = max(map(len, self.source.partitions), default=0)
        repeats = self.begun - self.noted  # their batches may be fixed, and small
        for _ in range(repeats + longest // self.source.take + 1):
            self.emit(0)
            self.commit(0)


@pytest.mark.promise("state-random-against-plain")
@pytest.mark.parametrize("kind", [SourceSpout, OpaqueSourceSpout])
@given(events=st.lists(_events, max_size=60), partitions=st.lists(st.integers(0, 9), max_size=4))
def test_each_tuple_is_in_one_committed_batch(
    kind: Callable[[str], Any], events: list[tuple[str, int]], partitions: list[int]
) -> None:
    """In order by partition, whatever fails; for one id the same batch, if the spout can do so."""
    SOURCES["random"] = source = Source([list(range(count)) for count in partitions])
    world = _World(source, kind("random"))
    for what, number in events:
        world.run(what, number)
    world.drain()
    committed: dict[int, list[int]] = {number: [] for number in range(len(source.partitions))}
    for transaction_id in sorted(world.kept):
        for partition, row in world.kept[transaction_id]:
            committed[partition].append(row)
    assert committed == dict(enumerate(source.partitions))
    assert sorted(world.kept) == list(range(1, world.noted + 1))


@pytest.mark.parametrize("kind", [SourceSpout, OpaqueSourceSpout])
@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 3))
def test_little_metadata_is_kept(
    kind: Callable[[str], Any], count: int, partitions: int, pending: int
) -> None:
    """Of each partition that of the last committed, of the one before, and of those behind."""
    SOURCES["many"] = Source([list(range(100)) for _ in range(partitions)])
    store = KilledStore()
    spout = kind("many")
    batches = SpoutBatches(spout, store, 2)
    for transaction_id in range(1, count + pending + 1):
        batches.emit(TransactionAttempt(transaction_id, 0))
    for transaction_id in range(1, count + 1):
        batches.committed(transaction_id)
    expected = list(range(max(1, count - 1), count + pending + 1))
    folders = [f"partition/{number}" for number in range(partitions)]
    for folder in folders if spout.is_opaque else [*folders, "coordinator"]:
        names = store.names(folder)
        assert sorted(int(name.rpartition("/")[2]) for name in names) == expected
