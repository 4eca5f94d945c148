"""Spouts of rows in memory: how many a batch has, and when there are no more."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    Committer,
    MemoryMetadataStore,
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
    ProcessSettings,
    TransactionalTopologyBuilder,
    TransactionTester,
)
from sequitur.consumer.topology.state import OpaqueState, SQLStore, TransactionalState
from sequitur.consumer.topology.transactional import spouts
from sequitur.consumer.topology.transactional.attempt import TransactionAttempt
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches
from sequitur.errors import FailBatch, TopologyBuildError, TopologyError, TransactionError
from tests.support.transactions import Gather, Journal, Noting, counts, events, rows, store_in

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import (
        MetadataStore,
        TransactionalTopology,
        Tuple,
    )


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
    before = dict(spouts._POSITIONS)
    with SpoutBatches(kind(_ROWS, ["name", "n"], 2), MemoryMetadataStore(), 1) as batches:
        _all_of(batches)
        assert before != spouts._POSITIONS
    assert before == spouts._POSITIONS


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


_DATA = {
    0: [[word] for word in ("cat", "dog", "chicken", "cat", "dog", "apple")],
    1: [[word] for word in ("cat", "dog", "apple", "banana")],
    2: [[word] for word in ("cat", "cat", "cat", "cat", "cat", "dog", "dog")],
}


class BatchCount(BaseTransactionalBolt):
    """Counts its part of a batch, as in Storm's documentation."""

    fields = ("id", "count")

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self._count = 0

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002, ARG002
        self._count += 1

    def finish_batch(self) -> None:
        self.collector.emit((self.transaction, self._count))


class UpdateGlobalCount(BaseTransactionalBolt, Committer):
    """Adds up the counts of a batch, and writes the sum of all batches.

    Args:
        journal: Plans its failures.
    """

    fields = ("id", "sum")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self._sum = 0

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self._sum += tuple["count"]

    def finish_batch(self) -> None:
        state = self.context.state("count")
        _, total = state.update("all", lambda _, count: (count or 0) + self._sum)
        self._journal.pass_through("sum")
        self.collector.emit((self.transaction, total))


class LessInRepeats:
    """Gives 50 rows of a partition, and 40 in each further life at the first batch."""

    def __call__(self, transaction: TransactionAttempt, partition: int) -> int:
        del partition
        is_repeat = transaction.transaction_id == 1 and transaction.attempt_id > 1 << 20
        return 40 if is_repeat else 50


class LessInEachTry:
    """Gives a row less in each try."""

    def __call__(self, transaction: TransactionAttempt, partition: int) -> int:
        del partition
        return 4 - transaction.attempt_id


def _global_count(store: SQLStore, journal: Journal) -> TransactionTester:
    """Return the topology of Storm's documentation, with its parallelism."""
    spout = MemoryTransactionalSpout(_DATA, ["word"], 3)
    builder = TransactionalTopologyBuilder("global-count", "spout", spout, 3)
    builder.set_bolt("partial-count", BatchCount(), 5).shuffle_grouping("spout")
    builder.set_bolt(
        "sum",
        UpdateGlobalCount(journal),
        states={"count": TransactionalState(store, "global_count")},
    ).global_grouping("partial-count")
    builder.set_output("sums", key=None, value="sum").local_grouping("sum")
    return TransactionTester(builder.build())


def _counting(store: SQLStore, journal: Journal, spout: Any) -> TransactionalTopology:
    """Count each row, behind a bolt that may fail."""
    builder = TransactionalTopologyBuilder("rows", "spout", spout)
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    state: Any = OpaqueState if spout.is_opaque else TransactionalState
    builder.set_bolt(
        "sum", Gather(journal), states={"count": state(store, "counts")}
    ).global_grouping("a")
    builder.set_bolt("after", Noting(journal)).shuffle_grouping("sum")
    return builder.build()


def _run_all(tester: TransactionTester) -> None:
    while tester.run_batch():
        pass


@pytest.mark.parametrize("fails", [0, 1, 3])
def test_the_global_count_of_storms_documentation(fails: int, tmp_path: Path) -> None:
    """Three of each partition a batch; a repeat changes neither the count nor what is emitted."""
    store, journal = store_in(tmp_path), Journal()
    tester = _global_count(store, journal)
    for error in (FailBatch("again"), ValueError("cannot")):
        journal.faults["sum"] = [error] * fails
        assert tester.run_batch()
    _run_all(tester)
    assert tester.records("sums") == [(None, b"9"), (None, b"16"), (None, b"17")]
    assert rows(store, "global_count") == {"all": (17, 16, 3)}
    assert len(tester.failed_tries) == 2 * fails
    assert not tester.run_batch()
    assert tester.transaction_id == 3


def test_a_global_count_goes_on_in_another_life(tmp_path: Path) -> None:
    store, journal, metadata = store_in(tmp_path), Journal(), MemoryMetadataStore()
    spout = MemoryTransactionalSpout(_DATA, ["value"], 2)
    topology = _counting(store, journal, spout)
    first = TransactionTester(topology, metadata=metadata)
    assert first.run_batch()
    assert first.run_batch()
    # The last life took note of the first commit alone, if at all.
    second = TransactionTester(topology, metadata=metadata, resumes_after=1, life=2)
    _run_all(second)
    words = [word for part in _DATA.values() for (word,) in part]
    assert counts(store, "counts") == {word: words.count(word) for word in words}


def test_a_tuple_of_a_spout_that_fails_is_tried_again(tmp_path: Path) -> None:
    """In a later transaction, along with what the spout emits then, or alone."""
    store, journal = store_in(tmp_path), Journal()
    spout = MemoryTransactionalSpout({0: [["x"], ["y"], ["z"]]}, ["value"], 2)
    tester = TransactionTester(_counting(store, journal, spout))
    journal.faults["a.y"] = [ValueError("cannot")] * 2
    assert tester.run_batch()
    assert counts(store, "counts") == {"x": 1}
    tester.advance(10)
    assert tester.run_batch()
    assert counts(store, "counts") == {"x": 1, "z": 1}
    assert not tester.run_batch()
    tester.retry_all()
    assert counts(store, "counts") == {"x": 1, "y": 1, "z": 1}
    assert tester.transaction_id == 3
    verdicts = [tree.verdict for tree in tester.trees if str(tree.event.value) == "('z',)"]
    assert set(verdicts) == {"acked"}


def test_a_batch_is_not_lost_with_its_transaction(tmp_path: Path) -> None:
    """The transaction fails for good; in the next run the spout emits the same again."""
    store, journal = store_in(tmp_path), Journal()
    spout = MemoryTransactionalSpout({0: [["x"], ["y"]]}, ["value"], 2)
    tester = TransactionTester(_counting(store, journal, spout), ProcessSettings(max_attempts=2))
    journal.faults["sum.finish"] = [ValueError("cannot")] * 2
    journal.faults["after.finish"] = [ValueError("cannot")] * 2
    for _ in range(2):
        with pytest.raises(TransactionError):
            tester.run_batch()
    assert tester.run_batch()
    assert counts(store, "counts") == {"x": 1, "y": 1}
    assert (tester.transaction_id, len(tester.acked)) == (1, 2)


def test_events_are_given_to_the_ordered_stream_alone(tmp_path: Path) -> None:
    """And batches are asked of other spouts alone; each is told by name."""
    spout = MemoryTransactionalSpout({0: [["x"]]}, ["value"], 2)
    tester = TransactionTester(_counting(store_in(tmp_path), Journal(), spout))
    with pytest.raises(TopologyError, match="'spout' emits by itself"):
        tester.run(events("x"))
    builder = TransactionalTopologyBuilder("ordered", "stream")
    builder.set_bolt("sum", UpdateGlobalCount(Journal())).global_grouping("stream")
    with pytest.raises(TopologyError, match="'stream' is the ordered stream"):
        TransactionTester(builder.build()).run_batch()


@pytest.mark.promise("state-spout-give-batch")
def test_an_opaque_batch_differs_in_its_repeat(tmp_path: Path) -> None:
    """1-50 and a failure behind the commit; 1-40, 41-90 and 91-140 in the life behind it."""
    store, journal, metadata = store_in(tmp_path), Journal(), MemoryMetadataStore()
    numbers = [[str(number)] for number in range(1, 141)]
    spout = MemoryOpaqueTransactionalSpout({0: numbers}, ["value"], 50, LessInRepeats())
    topology = _counting(store, journal, spout)
    first = _life(topology, metadata, 1)
    journal.faults["after.finish"] = [ValueError("ends here")]
    with pytest.raises(TransactionError):
        first.run_batch()
    assert _committed(store) == {1: _range(1, 50)}
    second = _life(topology, metadata, 2)
    assert second.run_batch()
    assert _committed(store) == {1: _range(1, 40)}
    _run_all(second)
    assert _committed(store) == {1: _range(1, 40), 2: _range(41, 90), 3: _range(91, 140)}
    assert set(counts(store, "counts").values()) == {1}


def test_an_opaque_batch_that_fails_before_its_commit(tmp_path: Path) -> None:
    """Each try emits from where the last committed one left off, so nothing is left out."""
    store, journal = store_in(tmp_path), Journal()
    letters = "abcdefgh"
    spout = MemoryOpaqueTransactionalSpout(
        {0: [[letter] for letter in letters]}, ["value"], 9, LessInEachTry()
    )
    tester = TransactionTester(_counting(store, journal, spout))
    journal.faults["a.finish"] = [FailBatch("again")]
    journal.faults["sum.finish"] = [FailBatch("again")]
    sizes = itertools.accumulate([1, 3, 3, 1])  # the first batch is that of its third try
    for size in sizes:
        assert tester.run_batch()
        assert sorted(counts(store, "counts")) == list(letters[:size])
    assert not tester.run_batch()
    assert set(counts(store, "counts").values()) == {1}
    assert len(tester.acked) == len(letters)


def _life(topology: TransactionalTopology, metadata: MetadataStore, life: int) -> TransactionTester:
    settings = ProcessSettings(max_attempts=1)
    return TransactionTester(topology, settings, metadata=metadata, life=life)


def _committed(store: SQLStore) -> dict[int, list[int]]:
    """Return the numbers that are counted, by the transaction that did."""
    found: dict[int, list[int]] = {}
    for number, (_, _, txid) in rows(store, "counts").items():
        found.setdefault(txid, []).append(int(number))
    return {txid: sorted(numbers) for txid, numbers in sorted(found.items())}


def _range(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))
