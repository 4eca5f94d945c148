"""Spouts of rows in memory: how many a batch has, and when there are no more."""

from __future__ import annotations

from typing import Any

import pytest

from sequitur.consumer.topology import TopologyBuildError
from sequitur.consumer.topology.transactional import memory_spouts
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.consumer.topology.transactional.memory_spouts import (
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
)
from sequitur.consumer.topology.transactional.metadata_store import MemoryMetadataStore
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches

_KINDS = [MemoryTransactionalSpout, MemoryOpaqueTransactionalSpout]
_ROWS = {0: [["a", 1], ["b", 2], ["c", 3]], 2: [["d", 4]]}


def _all_of(
    batches: SpoutBatches, attempt_id: int = 0, first: int = 1
) -> list[list[tuple[Any, ...]]]:
    """Emit and commit until nothing is ready; return each batch's values."""
    found: list[list[tuple[Any, ...]]] = []
    while batches.is_ready():
        transaction = TransactionAttempt(first + len(found), attempt_id)
        found.append([values[1:] for task in batches.emit(transaction) for values in task])
        batches.committed(transaction.transaction_id)
    return found


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_batch_takes_so_many_of_each_partition(kind: Any, tasks: int) -> None:
    """Until all are emitted: then it is not ready. A partition between may be empty."""
    batches = SpoutBatches(kind(_ROWS, ["name", "n"], 2), MemoryMetadataStore(), tasks)
    assert _all_of(batches) == [[("a", 1), ("b", 2), ("d", 4)], [("c", 3)]]
    assert not batches.is_ready()


@pytest.mark.parametrize("kind", _KINDS)
def test_without_rows_it_is_never_ready(kind: Any) -> None:
    """Neither without partitions nor with empty ones."""
    without: list[dict[int, list[Any]]] = [{}, {0: [], 1: []}]
    for partitions in without:
        assert not SpoutBatches(kind(partitions, ["n"], 1), MemoryMetadataStore(), 1).is_ready()


@pytest.mark.parametrize("kind", _KINDS)
def test_a_spout_runs_anew_over_another_store(kind: Any) -> None:
    spout = kind(_ROWS, ["name", "n"], 2)
    first = _all_of(SpoutBatches(spout, MemoryMetadataStore(), 1))
    assert _all_of(SpoutBatches(spout, MemoryMetadataStore(), 1)) == first


@pytest.mark.parametrize("kind", _KINDS)
def test_a_closed_spout_leaves_nothing_in_the_process(kind: Any) -> None:
    """Its coordinator took note of how far its emitters were."""
    before = dict(memory_spouts._POSITIONS)
    with SpoutBatches(kind(_ROWS, ["name", "n"], 2), MemoryMetadataStore(), 1) as batches:
        _all_of(batches)
        assert before != memory_spouts._POSITIONS
    assert before == memory_spouts._POSITIONS


@pytest.mark.parametrize("kind", _KINDS)
def test_a_life_over_a_finished_store_has_one_empty_batch(kind: Any) -> None:
    """By which the coordinator gets to know that all rows are emitted."""
    spout, store = kind(_ROWS, ["name", "n"], 2), MemoryMetadataStore()
    batches = _all_of(SpoutBatches(spout, store, 1))
    assert _all_of(SpoutBatches(spout, store, 1), first=len(batches) + 1) == [[]]


def _away_at_first(transaction: TransactionAttempt, partition: int) -> int:
    return -1 if transaction.attempt_id == 0 and partition == 0 else 5


def test_a_limit_holds_rows_back_for_later_batches() -> None:
    """A partition that is away in one attempt gives its rows in another."""
    spout = MemoryOpaqueTransactionalSpout(_ROWS, ["name", "n"], 2, _away_at_first)
    batches = SpoutBatches(spout, MemoryMetadataStore(), 1)
    batches.emit(TransactionAttempt(1, 0))
    assert batches.is_ready()
    batches.committed(1)
    assert _all_of(batches, 1, first=2) == [[("a", 1), ("b", 2)], [("c", 3)]]


def test_opaque_says_whether_repeats_may_differ() -> None:
    assert (MemoryTransactionalSpout.is_opaque, MemoryOpaqueTransactionalSpout.is_opaque) == (
        False,
        True,
    )


@pytest.mark.parametrize("kind", _KINDS)
def test_wrong_arguments_are_refused(kind: Any) -> None:
    """A negative partition would never be asked for, and a batch of no rows never end."""
    with pytest.raises(TopologyBuildError, match=r"numbers from 0 on: \[0, -1\]"):
        kind({0: [], -1: []}, ["n"], 1)
    with pytest.raises(TopologyBuildError, match="take = 0"):
        kind({}, ["n"], 0)
