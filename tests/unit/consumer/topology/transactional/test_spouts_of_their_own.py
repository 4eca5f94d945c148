"""Topologies over transactional spouts of their own, from the first row to the last."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    Committer,
    FailBatch,
    MemoryMetadataStore,
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
    ProcessSettings,
    TopologyError,
    TransactionalTopologyBuilder,
    TransactionError,
    TransactionTester,
)
from sequitur.consumer.topology.state import OpaqueState, SQLStore, TransactionalState
from tests.support.transactions import (
    Gather,
    Journal,
    Noting,
    counts,
    events,
    rows,
    store_in,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sequitur.consumer.topology import (
        MetadataStore,
        TransactionalTopology,
        TransactionAttempt,
        Tuple,
    )

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
