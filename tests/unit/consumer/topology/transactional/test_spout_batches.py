"""What a driver of transactional spouts emits, what again, and what it keeps of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches
from sequitur.consumer.topology.transactional.spouts import (
    FolderMetadataStore,
    MemoryMetadataStore,
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
)
from sequitur.errors import EmitError, TopologyBuildError, TransactionOrderError
from tests.support.transactional_spouts import (
    SOURCES,
    KilledStore,
    OpaqueSourceSpout,
    Source,
    SourceSpout,
    WholeSpout,
    committed_through,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sequitur.consumer.topology.transactional.spouts import MetadataStore

_ROWS = [(number,) for number in range(1, 151)]


def _tx(transaction_id: int, attempt_id: int = 0) -> TransactionAttempt:
    return TransactionAttempt(transaction_id, attempt_id)


def _numbers(batches: SpoutBatches, transaction: TransactionAttempt) -> list[Any]:
    """Return the last value of each tuple of a batch, of one task after the other."""
    tuples = [one for task in batches.emit(transaction) for one in task]
    assert {first for first, *_ in tuples} <= {transaction}
    return [values[-1] for values in tuples]


def _to(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def _first_attempt_of_one_gives_40(transaction: TransactionAttempt, partition: int) -> int:
    del partition
    return 40 if transaction == (1, 1) else 50


def _source(name: str, *partitions: int, take: int = 3) -> Source:
    SOURCES[name] = Source([list(range(count)) for count in partitions], take)
    return SOURCES[name]


def test_a_failed_batch_is_the_same_again() -> None:
    """Batches of 50 that fail are emitted with the same tuples, and so are those behind them."""
    batches = SpoutBatches(MemoryTransactionalSpout({0: _ROWS}, ["n"], 50), KilledStore(), 1)
    assert _numbers(batches, _tx(1)) == _to(1, 50)
    assert _numbers(batches, _tx(2)) == _to(51, 100)
    assert batches.failed(1) == [1, 2]
    assert _numbers(batches, _tx(1, 1)) == _to(1, 50)
    assert _numbers(batches, _tx(2, 1)) == _to(51, 100)
    batches.committed(1)
    assert batches.failed(2) == [2]
    assert _numbers(batches, _tx(2, 2)) == _to(51, 100)
    batches.committed(2)
    assert _numbers(batches, _tx(3)) == _to(101, 150)


@pytest.mark.promise("state-spout-give-batch")
def test_an_opaque_repeat_leaves_nothing_out() -> None:
    spout = MemoryOpaqueTransactionalSpout({0: _ROWS}, ["n"], 50, _first_attempt_of_one_gives_40)
    batches = SpoutBatches(spout, KilledStore(), 1)
    assert _numbers(batches, _tx(1)) == _to(1, 50)
    assert _numbers(batches, _tx(2)) == _to(51, 100)
    assert batches.failed(1) == [1, 2]
    assert _numbers(batches, _tx(1, 1)) == _to(1, 40)
    assert _numbers(batches, _tx(2, 1)) == _to(41, 90)
    batches.committed(1)
    batches.committed(2)
    assert _numbers(batches, _tx(3)) == _to(91, 140)


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_the_same_id_is_the_same_batch_after_restarts(tmp_path: Path, tasks: int) -> None:
    """With the metadata in files, whatever was appended meanwhile, and over other tasks."""
    source = _source("restarts", 4, 2)
    with SpoutBatches(SourceSpout("restarts"), FolderMetadataStore(tmp_path), 2) as batches:
        expected = [sorted(_numbers(batches, _tx(number))) for number in (1, 2, 3)]
        batches.committed(1)
    assert expected == [[0, 0, 1, 1, 2], [3], []]
    source.partitions = [list(range(9)), list(range(9)), list(range(9))]
    with SpoutBatches(SourceSpout("restarts"), FolderMetadataStore(tmp_path), tasks) as batches:
        assert committed_through(FolderMetadataStore(tmp_path)) == 1
        assert [sorted(_numbers(batches, _tx(number, 1))) for number in (2, 3)] == expected[1:]
        assert sorted(_numbers(batches, _tx(4))) == [0, 1, 2, 2, 3, 4, 4, 5, 6]


def test_an_opaque_batch_goes_on_from_the_committed_one_after_a_restart(tmp_path: Path) -> None:
    source = _source("opaque restarts", 10)
    spout = OpaqueSourceSpout("opaque restarts")
    batches = SpoutBatches(spout, FolderMetadataStore(tmp_path), 1)
    assert [_numbers(batches, _tx(number)) for number in (1, 2, 3)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
    ]
    batches.committed(1)
    source.take = 2
    again = SpoutBatches(spout, FolderMetadataStore(tmp_path), 1)
    assert [_numbers(again, _tx(number, 1)) for number in (2, 3)] == [[3, 4], [5, 6]]


@pytest.mark.parametrize("kind", [SourceSpout, OpaqueSourceSpout])
def test_a_driver_that_missed_a_commit_emits_that_batch_again(
    kind: Callable[[str], Any],
) -> None:
    """From where the one before left off, whose metadata is kept for it."""
    _source("missed", 20)
    store = KilledStore()
    batches = SpoutBatches(kind("missed"), store, 1)
    for number in (1, 2, 3):
        batches.emit(_tx(number))
        batches.committed(number)
    again = SpoutBatches(kind("missed"), store, 1)
    assert committed_through(store) == 3
    assert _numbers(again, _tx(3, 1)) == [6, 7, 8]
    assert again.failed(3) == [3]  # so it is not committed any more
    assert _numbers(again, _tx(3, 2)) == [6, 7, 8]
    again.committed(3)
    assert _numbers(again, _tx(4)) == [9, 10, 11]


def test_a_batch_that_a_driver_missed_stays_the_next_one_if_it_raises() -> None:
    source = _source("missed and broken", 20)
    store = KilledStore()
    batches = SpoutBatches(OpaqueSourceSpout("missed and broken"), store, 1)
    for number in (1, 2, 3):
        batches.emit(_tx(number))
        batches.committed(number)
    again = SpoutBatches(OpaqueSourceSpout("missed and broken"), store, 1)
    source.broken = 0
    with pytest.raises(ConnectionResetError):
        again.emit(_tx(3, 1))
    with pytest.raises(TransactionOrderError, match="transaction 2 cannot be emitted: 3 is next"):
        again.emit(_tx(2, 1))
    assert _numbers(again, _tx(3, 2)) == [6, 7, 8]


def test_partitions_are_spread_by_their_number() -> None:
    rows = {number: [(number,)] for number in range(5)}
    batches = SpoutBatches(MemoryTransactionalSpout(rows, ["n"], 1), MemoryMetadataStore(), 3)
    first = _tx(1)
    assert batches.emit(first) == [
        [(first, 0), (first, 3)],
        [(first, 1), (first, 4)],
        [(first, 2)],
    ]


@pytest.mark.parametrize("kind", [SourceSpout, OpaqueSourceSpout])
def test_new_partitions_appear_between_batches(kind: Callable[[str], Any]) -> None:
    """Theirs begin at their first row; the others go on."""
    source = _source("new", 4)
    batches = SpoutBatches(kind("new"), MemoryMetadataStore(), 1)
    assert _numbers(batches, _tx(1)) == [0, 1, 2]
    source.partitions.append([0, 1])
    assert _numbers(batches, _tx(2)) == [3, 0, 1]


def test_a_repeat_has_the_partitions_of_the_first_emission() -> None:
    """A partition that came meanwhile begins with the next new batch."""
    source = _source("partitions", 4)
    batches = SpoutBatches(SourceSpout("partitions"), MemoryMetadataStore(), 1)
    assert _numbers(batches, _tx(1)) == [0, 1, 2]
    source.partitions.append([0, 1])
    batches.failed(1)
    assert _numbers(batches, _tx(1, 1)) == [0, 1, 2]
    assert _numbers(batches, _tx(2)) == [3, 0, 1]


@pytest.mark.parametrize("kind", [SourceSpout, OpaqueSourceSpout])
def test_a_partition_that_was_away_goes_on_where_it_was(kind: Callable[[str], Any]) -> None:
    """For however many batches: its metadata is not cleaned up behind them."""
    source = _source("away", 0, 9)
    store = KilledStore()
    batches = SpoutBatches(kind("away"), store, 1)
    for number, reachable in enumerate([2, 1, 1, 1, 1], 1):
        source.reachable = reachable
        batches.emit(_tx(number))
        batches.committed(number)
    source.reachable = 2
    again = SpoutBatches(kind("away"), store, 1)
    assert _numbers(again, _tx(6)) == [3, 4, 5]


def test_a_partition_away_in_a_repeat_does_not_keep_what_did_not_count() -> None:
    """Not even if a power cut brings back what the emission that failed had left."""
    source = _source("power", 0, 9)
    store = KilledStore()
    batches = SpoutBatches(OpaqueSourceSpout("power"), store, 1)
    assert _numbers(batches, _tx(1)) == [0, 1, 2]
    batches.failed(1)
    source.reachable = 1
    assert _numbers(batches, _tx(1, 1)) == []
    batches.committed(1)
    store.cut_power(-1)
    source.reachable = 2
    again = SpoutBatches(OpaqueSourceSpout("power"), store, 1)
    assert _numbers(again, _tx(2)) == [0, 1, 2]


def test_a_spout_that_is_not_partitioned_keeps_the_metadata_of_its_coordinator() -> None:
    """Each task emits its share, the same again, and is told what it can forget."""
    source = _source("whole", 7, take=4)
    store = KilledStore()
    with SpoutBatches(WholeSpout("whole"), store, 2) as batches:
        first = _tx(1)
        assert batches.emit(first) == [
            [(first, 0, 0), (first, 0, 2)],
            [(first, 0, 1), (first, 0, 3)],
        ]
        assert _numbers(batches, _tx(2)) == [4, 6, 5]
        source.partitions[0].extend([7, 8, 9])
        batches.failed(1)
        assert _numbers(batches, _tx(1, 1)) == [0, 2, 1, 3]
        assert _numbers(batches, _tx(2, 1)) == [4, 6, 5]
        batches.committed(1)
        batches.committed(2)
        assert source.cleaned == [1, 1, 2, 2]
        assert store.names("coordinator") == ["coordinator/1", "coordinator/2"]
        batches.emit(_tx(3))
        batches.committed(3)
        assert store.names("coordinator") == ["coordinator/2", "coordinator/3"]
        assert source.closed == 0
    assert source.closed == 3
    source.partitions[0].append(10)
    again = SpoutBatches(WholeSpout("whole"), store, 1)
    assert _numbers(again, _tx(4)) == [10]


def test_a_spout_that_raises_is_asked_again() -> None:
    """The transaction is still the next one, and partitions that had a batch give the same."""
    source = _source("broken", 4, 4)
    batches = SpoutBatches(SourceSpout("broken"), MemoryMetadataStore(), 1)
    source.broken = 1
    with pytest.raises(ConnectionResetError):
        batches.emit(_tx(1))
    assert batches.is_ready()
    with pytest.raises(TransactionOrderError, match=r"transaction 1 cannot be committed: it must"):
        batches.committed(1)
    source.partitions[0].insert(0, -1)
    source.take = 2
    assert _numbers(batches, _tx(1)) == [-1, 0, 1, 0, 1]


def test_a_failed_batch_is_ready_though_there_are_no_new_ones() -> None:
    """In the same life and in the next; when all are committed, nothing is."""
    spout = MemoryTransactionalSpout({0: [(1,)]}, ["n"], 1)
    store = KilledStore()
    batches = SpoutBatches(spout, store, 1)
    assert batches.is_ready()
    batches.emit(_tx(1))
    assert not batches.is_ready()
    batches.failed(1)
    assert batches.is_ready()
    again = SpoutBatches(spout, store, 1)
    assert _numbers(again, _tx(1, 1)) == [1]
    again.committed(1)
    assert not again.is_ready()


@pytest.mark.parametrize("kind", [SourceSpout, OpaqueSourceSpout, WholeSpout])
def test_what_a_life_before_has_begun_is_ready(kind: Callable[[str], Any]) -> None:
    source = _source("begun", 9)
    store = KilledStore()
    batches = SpoutBatches(kind("begun"), store, 1)
    for number in (1, 2, 3):
        batches.emit(_tx(number))
    batches.committed(1)
    source.is_ready = False
    again = SpoutBatches(kind("begun"), store, 1)
    for number in (2, 3):
        assert again.is_ready()
        again.emit(_tx(number, 1))
    assert not again.is_ready()


def test_one_that_fails_along_with_one_before_waits_for_that() -> None:
    """The news of its own failure comes later, and changes nothing."""
    _source("both", 9)
    batches = SpoutBatches(OpaqueSourceSpout("both"), MemoryMetadataStore(), 1)
    batches.emit(_tx(1))
    batches.emit(_tx(2))
    assert (batches.failed(1), batches.failed(2)) == ([1, 2], [])
    with pytest.raises(TransactionOrderError, match="transaction 2 cannot be emitted: 1 is next"):
        batches.emit(_tx(2, 1))
    assert _numbers(batches, _tx(1, 1)) == [0, 1, 2]


def test_only_the_next_transaction_is_emitted() -> None:
    """A gap, a step back without failure, and an attempt that was there are refused by name."""
    _source("order", 100)
    batches = SpoutBatches(SourceSpout("order"), MemoryMetadataStore(), 1)
    with pytest.raises(TransactionOrderError, match="transaction 2 cannot be emitted: 1 is next"):
        batches.emit(_tx(2))
    with pytest.raises(TransactionOrderError, match="transaction 0 cannot be emitted: 1 is next"):
        batches.emit(_tx(0))
    batches.emit(_tx(1))
    batches.emit(_tx(2))
    with pytest.raises(TransactionOrderError, match="transaction 1 cannot be emitted: 3 is next"):
        batches.emit(_tx(1, 1))
    batches.failed(2)
    with pytest.raises(TransactionOrderError, match="attempt 0 of it was emitted before"):
        batches.emit(_tx(2))
    assert _numbers(batches, _tx(2, 1)) == [3, 4, 5]


def test_transactions_are_committed_in_order() -> None:
    """None before the one before it, none that failed, and one twice without harm."""
    _source("commits", 100)
    store = MemoryMetadataStore()
    batches = SpoutBatches(SourceSpout("commits"), store, 1)
    batches.emit(_tx(1))
    batches.emit(_tx(2))
    with pytest.raises(TransactionOrderError, match="transaction 2 cannot be committed: 1 is the"):
        batches.committed(2)
    batches.committed(1)
    batches.committed(1)
    assert committed_through(store) == 1
    with pytest.raises(TransactionOrderError, match="transaction 1 cannot be emitted: 3 is next"):
        batches.emit(_tx(1, 1))
    with pytest.raises(TransactionOrderError, match="transaction 1 cannot fail: it is committed"):
        batches.failed(1)
    with pytest.raises(TransactionOrderError, match="transaction 3 cannot fail: it was never"):
        batches.failed(3)
    assert batches.failed(2) == [2]
    assert batches.failed(2) == []
    with pytest.raises(TransactionOrderError, match="transaction 2 cannot be committed: it must"):
        batches.committed(2)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ((1,), "1 values"),
        ((1, 2, 3), "3 values"),
        ({"a": 1}, "no field 'b'"),
        ({"a": 1, "b": 2, "c": 3}, "unknown field 'c'"),
        (7, "7"),
    ],
)
def test_other_fields_than_declared_are_refused(row: object, what: str) -> None:
    """The message names the spout, the transaction, what is wrong, and the declared fields."""
    batches = SpoutBatches(_Raw(row), MemoryMetadataStore(), 1, component="readings")
    said = f"spout 'readings' emitted for transaction 1: {what}. Its fields are: a, b"
    with pytest.raises(EmitError, match=f"^{re.escape(said)}$"):
        batches.emit(_tx(1))


def test_values_may_be_given_by_field() -> None:
    batches = SpoutBatches(_Raw({"b": 2, "a": 1}), MemoryMetadataStore(), 1)
    assert batches.emit(_tx(1)) == [[(_tx(1), 1, 2)]]


def test_nothing_is_emitted_when_the_batch_is_over() -> None:
    """An emitter that keeps the collector is told: the tuple would be in no batch."""
    _Raw.collectors.clear()
    SpoutBatches(_Raw((1, 2)), MemoryMetadataStore(), 1).emit(_tx(1))
    with pytest.raises(EmitError, match="transaction 1 when that batch was over"):
        _Raw.collectors[0].emit((3, 4))


@pytest.mark.parametrize("fields", ["word", [], ["a", "a"], [1], None])
def test_fields_are_a_list_of_names(fields: Any) -> None:
    """Text is not taken apart into letters."""
    spout = MemoryTransactionalSpout({}, fields, 1)
    with pytest.raises(TopologyBuildError, match="spout 'spout': its fields are a list"):
        SpoutBatches(spout, MemoryMetadataStore(), 1)


def test_what_is_no_spout_is_refused() -> None:
    """So are too few tasks, and a spout that cannot be pickled."""
    store: MetadataStore = MemoryMetadataStore()
    with pytest.raises(TopologyBuildError, match="spout 'spout': 0 tasks"):
        SpoutBatches(MemoryTransactionalSpout({}, ["n"], 1), store, 0)
    spout = MemoryOpaqueTransactionalSpout({}, ["n"], 1, lambda *_: 1)
    with pytest.raises(TopologyBuildError, match="spout 'spout' cannot be pickled"):
        SpoutBatches(spout, store, 1)
    foreign: Any = _Foreign()
    with pytest.raises(TopologyBuildError, match="_Foreign is not a transactional spout"):
        SpoutBatches(foreign, store, 1)


class _Foreign:
    fields = ("a",)


class _Raw(WholeSpout):
    """Emits one value as it is."""

    fields = ("a", "b")
    collectors: list[Any] = []  # noqa: RUF012 - copies find it here

    def __init__(self, row: object) -> None:
        SOURCES["raw"] = Source([[]])
        super().__init__("raw")
        self.row = row

    def emitter(self, context: object) -> Any:
        del context
        return self

    def emit_batch(self, transaction: object, metadata: object, collector: Any) -> None:
        del transaction, metadata
        self.collectors.append(collector)
        collector.emit(self.row)

    def close(self) -> None:
        """Nothing was acquired."""
