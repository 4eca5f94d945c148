"""Transactional spouts of each kind: the rules of Storm's article, and what users are refused."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from sequitur.consumer.topology import (
    FolderMetadataStore,
    MemoryMetadataStore,
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
    ProcessSettings,
    SpoutCollector,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    TransactionTester,
)
from sequitur.consumer.topology.state import OpaqueState, TransactionalState
from sequitur.consumer.topology.transactional import spouts
from sequitur.consumer.topology.transactional.spout_batches import SpoutBatches
from sequitur.errors import (
    EmitError,
    FailBatch,
    TopologyBuildError,
    TopologyError,
    TopologyFileError,
    TransactionError,
    TransactionMetadataError,
    TransactionOrderError,
)
from sequitur.testing import ReorderTester
from tests.support.transactional_spouts import (
    Driver,
    OpaqueSpout,
    PartitionedSpout,
    Source,
    WholeSpout,
)
from tests.support.transactions import Gather, Journal, Noting, counts, events, rows, store_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from sequitur.consumer.topology import MetadataStore, TransactionalTopology

_KINDS: Final = (WholeSpout, PartitionedSpout, OpaqueSpout)
_IN_MEMORY: Final = (MemoryTransactionalSpout, MemoryOpaqueTransactionalSpout)
_JOB: Final = {
    "input_topics": ["in"],
    "output_topic": "out",
    "event_time": "json:at",
    "delay": "0 s",
}

# Steps of a driver, and changes of the source. After each step stands what every spout gives, or
# what spouts give that repeat their batches, and what an opaque one gives.
_RULES: Final = {
    "the same id is the same batch": """
        emit 1         | 1-50
        emit 2         | 51-100
        take 30
        fail 1         | 1-2
        emit 1         | 1-50    | 1-30
        emit 2         | 51-100  | 31-60
        commit 1
        fail 2         | 2
        restart 3
        emit 2         | 51-100  | 31-60
        emit 3         | 101-130 | 61-90
    """,
    "a batch begins where the last left off": """
        emit 1         | 1-50
        commit 1
        restart 2
        emit 2         | 51-100
        commit 2
        emit 3         | 101-150
        emit 4         | nothing
    """,
    "a failed transaction fails the later ones, and 41 to 50 are not skipped": """
        emit 1         | 1-50
        emit 2         | 51-100
        fail 1         | 1-2
        fail 2         | nothing
        emit 2         | transaction 2 cannot be emitted: 1 is next
        commit 1       | transaction 1 cannot be committed: it must be emitted first
        take 40
        emit 1         | 1-50    | 1-40
        take 50
        emit 2         | 51-100  | 41-90
        commit 1
        commit 2
        emit 3         | 101-150 | 91-140
    """,
    "metadata is forgotten after the commit, but that of the last two": """
        emit 1
        emit 2
        emit 3
        emit 4
        metadata 0     | 1-4
        commit 1
        commit 2
        metadata 0     | 1-4
        commit 3
        metadata 0     | 2-4
        commit 4
        metadata 0     | 3-4
    """,
    "transactions are emitted in order, each attempt once": """
        emit 2         | transaction 2 cannot be emitted: 1 is next
        emit 0         | transaction 0 cannot be emitted: 1 is next
        emit 1         | 1-50
        emit 2         | 51-100
        emit 1         | transaction 1 cannot be emitted: 3 is next
        fail 2         | 2
        emit 2         | 51-100
        fail 2         | 2
        emit_again 2   | transaction 2 cannot be emitted: attempt 6 of it was emitted before
    """,
    "transactions are committed in order, and only once": """
        emit 1
        emit 2
        commit 2       | transaction 2 cannot be committed: 1 is the next to be
        commit 1
        commit 1
        emit 1         | transaction 1 cannot be emitted: 3 is next
        fail 1         | transaction 1 cannot fail: it is committed
        fail 3         | transaction 3 cannot fail: it was never emitted
        fail 2         | 2
        commit 2       | transaction 2 cannot be committed: it must be emitted first
    """,
    "a life that missed a commit emits that batch again": """
        emit 1         | 1-50
        emit 2         | 51-100
        commit 1
        commit 2
        emit 3         | 101-150
        take 20
        restart 1
        emit 1         | transaction 1 cannot be emitted: 3 is next
        broken 0
        emit 2         | partition 0 does not answer
        emit 1         | transaction 1 cannot be emitted: 2 is next
        emit 2         | 51-100  | 51-70
        fail 2         | 2
        emit 2         | 51-100  | 51-70
        commit 2
        emit 3         | 101-150 | 71-90
    """,
    "what is begun is emitted again, though the source has no more": """
        emit 1
        emit 2
        emit 3
        commit 1
        is_ready 0
        ready 0        | no
        fail 3         | 3
        ready 0        | yes
        restart 1
        ready 0        | yes
        emit 2         | 51-100
        emit 3         | 101-150
        ready 0        | no
        commit 2
        commit 3
        restart 1
        ready 0        | no
        is_ready 1
        ready 0        | yes
    """,
    "a spout that raises is asked again": """
        broken 0
        emit 1         | partition 0 does not answer
        ready 0        | yes
        commit 1       | transaction 1 cannot be committed: it must be emitted first
        emit 1         | 1-50
    """,
}
_RULES_OF_PARTITIONS: Final = {
    "a partition that was read keeps its batch, when another one does not answer": """
        add_partition 150
        broken 1
        emit 1         | partition 1 does not answer
        take 20
        emit 1         | 1-50 1001-1020 | 1-20 1001-1020
    """,
    "a new partition begins with its first row, in the next new batch": """
        emit 1         | 1-50
        add_partition 10
        fail 1         | 1
        emit 1         | 1-50             | 1-50 1001-1010
        emit 2         | 51-100 1001-1010 | 51-100
    """,
    "a partition that was away goes on where it was": """
        add_partition 150
        emit 1         | 1-50 1001-1050
        commit 1
        reachable 1
        emit 2         | 51-100
        commit 2
        emit 3         | 101-150
        commit 3
        emit 4         | nothing
        commit 4
        restart 1
        reachable 2
        emit 5         | 1051-1100
    """,
    "a power cut does not bring back what an attempt that failed had left": """
        add_partition 150
        emit 1         | 1-50 1001-1050
        fail 1         | 1
        reachable 1
        emit 1         | 1-50 1001-1050   | 1-50
        commit 1
        cut_power 1
        reachable 2
        emit 2         | 51-100 1051-1100 | 51-100 1001-1050
    """,
}


class _Played(Driver):
    """A driver that says what a step gives as text."""

    def said(self, step: str) -> str:
        what, number = step.split()
        try:
            found = self.step(what, int(number))
        except (TransactionOrderError, ConnectionResetError) as error:
            return str(error).removeprefix("spout 'spout': ")
        return {True: "yes", False: "no"}[found] if isinstance(found, bool) else _spans(found or ())

    def ready(self, _: int) -> bool:
        return self.batches.is_ready()

    def cut_power(self, tasks: int) -> None:
        self.store.cut_power(-1)
        self.restart(tasks)

    def metadata(self, _: int) -> Sequence[int]:
        """Return the transactions that have metadata: the same ones in each folder."""
        by_folder: dict[str, list[int]] = {}
        for name in (*self.store.names("coordinator"), *self.store.names("partition")):
            folder, one = name.rsplit("/", 1)
            by_folder.setdefault(folder, []).append(int(one))
        (found,) = {tuple(sorted(ids)) for ids in by_folder.values()}
        return found

    def drained(self) -> list[str]:
        """Emit and commit until nothing is ready."""
        found = []
        while self.batches.is_ready():
            found.append(self.said(f"emit {self.last_committed + 1}"))
            self.commit(self.last_committed + 1)
        return found


def _spans(numbers: Iterable[int]) -> str:
    """Return numbers as text, such as "1-50 1001"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return " ".join("-".join(map(str, span)) for span in found) or "nothing"


def _check(kind: Any, history: str) -> None:
    driver = _Played(kind(Source([150])))
    for step, *expected in (line.split("|") for line in history.strip().splitlines()):
        said = driver.said(step)
        if expected:
            assert (step, said) == (step, expected[-1 if kind.is_opaque else 0].strip())


@pytest.mark.promise("state-spout-give-batch")
@pytest.mark.parametrize("rule", _RULES)
@pytest.mark.parametrize("kind", _KINDS)
def test_rule(kind: Any, rule: str) -> None:
    _check(kind, _RULES[rule])


@pytest.mark.parametrize("rule", _RULES_OF_PARTITIONS)
@pytest.mark.parametrize("kind", [PartitionedSpout, OpaqueSpout])
def test_rule_of_partitions(kind: Any, rule: str) -> None:
    _check(kind, _RULES_OF_PARTITIONS[rule])


@pytest.mark.parametrize(
    ("kind", "partitions", "shares"),
    [
        (WholeSpout, [5], ["1 4", "2 5", "3"]),
        (PartitionedSpout, [1] * 5, ["1 3001", "1001 4001", "2001"]),
        (OpaqueSpout, [1] * 5, ["1 3001", "1001 4001", "2001"]),
    ],
)
def test_each_task_emits_its_share_until_it_is_closed(
    kind: Any, partitions: list[int], shares: list[str]
) -> None:
    source = Source(partitions)
    with SpoutBatches(kind(source), MemoryMetadataStore(), 3) as batches:
        tuples = batches.emit(TransactionAttempt(1, 1))
        assert [" ".join(row for _, row in own) for own in tuples] == shares
        batches.committed(1)
        assert source.cleaned == ([1, 1, 1] if kind is WholeSpout else [])
        assert source.closed == 0
    assert source.closed == 4


# The rules in a topology, with its database.


def _counting(spout: Any, journal: Journal, folder: Path) -> TransactionalTopology:
    """Count each row, after a bolt that may fail."""
    state = (OpaqueState if spout.is_opaque else TransactionalState)(store_in(folder), "counts")
    builder = TransactionalTopologyBuilder("rows", "spout", spout, 2)
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    builder.set_bolt("sum", Gather(journal), states={"count": state}).global_grouping("a")
    builder.set_bolt("after", Noting(journal)).shuffle_grouping("sum")
    return builder.build()


def _tester(spout: Any, folder: Path, metadata: MetadataStore | None = None) -> TransactionTester:
    return TransactionTester(_counting(spout, Journal(), folder), metadata=metadata)


@pytest.mark.promise("state-spout-give-batch")
@pytest.mark.parametrize("kind", _KINDS)
def test_rows_of_a_batch_that_changes_are_in_one_committed_transaction(
    kind: Any, tmp_path: Path
) -> None:
    source, journal = Source([190]), Journal()
    topology = _counting(kind(source), journal, tmp_path)

    def life(number: int, resumes_after: int = 0) -> TransactionTester:
        return TransactionTester(
            topology,
            ProcessSettings(max_attempts=1),
            metadata=FolderMetadataStore(tmp_path / "metadata"),
            resumes_after=resumes_after,
            life=number,
        )

    def committed() -> dict[int, str]:
        found: dict[int, list[int]] = {}
        for row, (count, _, transaction_id) in rows(store_in(tmp_path), "counts").items():
            assert count == 1
            found.setdefault(transaction_id, []).append(int(row))
        return {one: _spans(sorted(found[one])) for one in sorted(found)}

    journal.faults["after.finish"] = [ValueError("after the commit")]
    with pytest.raises(TransactionError):
        life(1).run_batch()
    assert committed() == {1: "1-50"}
    source.take, second = 40, life(2)
    assert second.run_batch()
    source.take = 50
    second.run()
    assert second.run_batch()
    after_its_commit_was_missed = life(3, resumes_after=2)
    assert after_its_commit_was_missed.run_batch()
    assert after_its_commit_was_missed.run_batch()
    assert committed() == (
        {1: "1-40", 2: "41-90", 3: "91-140", 4: "141-190"}
        if kind.is_opaque
        else {1: "1-50", 2: "51-100", 3: "101-150", 4: "151-190"}
    )


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"a.finish": FailBatch, "sum.finish": FailBatch}, id="before the commit"),
        pytest.param({"after.finish": ValueError}, id="after the commit"),
        pytest.param({"a.2": ValueError}, id="a tuple"),
    ],
)
@pytest.mark.parametrize("max_attempts", [2, 5])
@pytest.mark.parametrize("kind", _KINDS)
def test_each_row_counts_once(
    kind: Any, max_attempts: int, faults: Mapping[str, type[Exception]], tmp_path: Path
) -> None:
    """A transaction that fails for good is tried again in the next run."""
    source, journal = Source([5], take=2), Journal()
    journal.faults.update(
        {point: [error("cannot")] * min(3, max_attempts) for point, error in faults.items()}
    )
    settings = ProcessSettings(max_attempts=max_attempts)
    topology = _counting(kind(source), journal, tmp_path)
    tester = TransactionTester(topology, settings)
    for _ in range(8):
        with suppress(TransactionError):
            assert tester.run_batch()
        tester.advance(10)
    source.is_ready = False
    assert not tester.run_batch()
    tester.retry_all()
    assert not any(journal.faults.values())
    is_dead = "a.2" in faults and max_attempts == 2
    expected = dict.fromkeys("1345" if is_dead else "12345", 1)
    assert counts(store_in(tmp_path), "counts") == expected
    assert (len(tester.acked), len(tester.dead_letters)) == (len(expected), is_dead)
    others = {tree.verdict for tree in tester.trees if str(tree.event.value) != "('2',)"}
    assert others == {"acked"}


def test_spout_sees_where_it_runs(tmp_path: Path) -> None:
    source, config = Source([1]), {"host": "a"}
    builder = TransactionalTopologyBuilder("numbers", "rows", WholeSpout(source), 2, config=config)
    states = {"count": TransactionalState(store_in(tmp_path), "counts")}
    builder.set_bolt("sum", Gather(Journal()), states=states).global_grouping("rows")
    TransactionTester(builder.build())
    assert [(one.topology, one.component, one.task, one.tasks) for one in source.contexts] == [
        ("numbers", "rows", 0, 2),  # the coordinator
        ("numbers", "rows", 0, 2),
        ("numbers", "rows", 1, 2),
    ]
    assert [one.config for one in source.contexts] == [config] * 3


# Spouts of rows in memory.


@pytest.mark.parametrize(
    ("partitions", "batches"),
    [({0: "123", 2: "4"}, ["1-2 4", "3"]), ({}, []), ({0: "", 1: ""}, [])],
)
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("kind", _IN_MEMORY)
def test_rows_in_memory_are_emitted_until_none_is_left(
    kind: Any, tasks: int, partitions: Mapping[int, str], batches: list[str]
) -> None:
    """The next life makes one empty batch: it does not know yet that all rows are emitted."""
    before = set(spouts._POSITIONS)
    spout = kind(partitions, ["value"], 2)
    driver = _Played(spout, tasks)
    assert driver.drained() == batches
    driver.batches.close()
    assert set(spouts._POSITIONS) == before
    driver.restart(1)
    assert driver.drained() == ["nothing"][: len(batches)]
    assert _Played(spout, tasks).drained() == batches


def _away_at_first(transaction: TransactionAttempt, partition: int) -> int:
    return -1 if transaction.attempt_id == 1 and partition == 0 else 5


def test_limit_holds_rows_in_memory_back_for_later_batches() -> None:
    spout = MemoryOpaqueTransactionalSpout({0: "123", 2: "4"}, ["value"], 2, _away_at_first)
    assert _Played(spout).drained() == ["4", "1-2", "3"]


# What users are refused, and values that come back.


class _Odd(Source):
    """Gives one row, as it is."""

    def __init__(self, row: Any) -> None:
        super().__init__([1])
        self.row = row

    def read(self, *_: int) -> Sequence[Any]:
        return [self.row]


def _odd(row: Any, *fields: str) -> WholeSpout:
    spout = WholeSpout(_Odd(row))
    spout.fields = fields
    return spout


@pytest.mark.parametrize(
    ("row", "fields", "values"),
    [({"b": 2, "a": 1}, "ab", (1, 2)), ([1, 2], "ab", (1, 2)), (7, "a", (7,))],
)
def test_row_may_be_given_by_field_or_alone(row: Any, fields: str, values: Any) -> None:
    attempt = TransactionAttempt(1, 1)
    batches = SpoutBatches(_odd(row, *fields), MemoryMetadataStore(), 1)
    assert batches.emit(attempt) == [[(attempt, *values)]]


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
def test_row_of_other_fields_is_refused(row: object, what: str, tmp_path: Path) -> None:
    said = f"spout 'spout' emitted for transaction 1: {what}. Its fields are: a, b"
    with pytest.raises(EmitError, match=f"^{re.escape(said)}$"):
        _tester(_odd(row, "a", "b"), tmp_path).run_batch()


def test_row_after_the_end_of_its_batch_is_refused() -> None:
    collector = SpoutCollector("spout", ("a",), TransactionAttempt(1, 1))
    collector.emit(3)
    assert len(collector.finish()) == 1
    with pytest.raises(EmitError, match="'spout' emitted for transaction 1 when that batch was ov"):
        collector.emit(4)


class _Foreign:
    fields = ("a",)
    is_opaque = False


@pytest.mark.parametrize(
    ("spout", "message"),
    [
        (lambda: MemoryTransactionalSpout({0: [], -1: []}, ["n"], 1), r"from 0 on: \[0, -1\]"),
        (lambda: MemoryOpaqueTransactionalSpout({}, ["n"], 0), "take = 0: a batch has at least 1"),
        (
            lambda: MemoryOpaqueTransactionalSpout({}, ["n"], 1, lambda *_: 1),
            "spout 'spout' cannot be pickled",
        ),
        (_Foreign, "spout 'spout': .*_Foreign.* is not a transactional spout"),
        (
            lambda: MemoryTransactionalSpout({}, [1], 1),  # type: ignore[list-item]
            "spout 'spout': .* a list of different names",
        ),
    ],
)
def test_what_is_no_spout_is_refused(
    spout: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TopologyBuildError, match=message):
        _tester(spout(), tmp_path)


def test_events_are_given_to_the_ordered_stream_alone(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="'spout' emits by itself: call run_batch"):
        _tester(WholeSpout(Source([1])), tmp_path).run(events("x"))
    builder = TransactionalTopologyBuilder("ordered", "stream")
    builder.set_bolt("sum", Gather(Journal())).global_grouping("stream")
    with pytest.raises(TopologyError, match="'stream' is the ordered stream: give `run` its"):
        TransactionTester(builder.build()).run_batch()


@pytest.mark.promise("state-state-bolt-setting")
@pytest.mark.parametrize("kind", _KINDS)
def test_job_refuses_a_spout_of_your_own(kind: Any, tmp_path: Path) -> None:
    said = (
        f"topology 'rows': a job cannot run its spout {kind.__name__}: only TransactionTester runs "
        "spouts of your own today. Send what it emits to a Kafka topic, and give the builder an "
        "OrderedStreamSpout()"
    )
    topology = _counting(kind(Source([1])), Journal(), tmp_path)
    with ReorderTester(_JOB, topology) as job:
        with pytest.raises(TopologyFileError, match=f"^{re.escape(said)}$"):
            job.run()
        assert not any(job.folder.iterdir())


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda text: text[:-9], "cannot be read: Expecting"),
        (lambda _: b"", "cannot be read: Expecting value"),
        (lambda _: b"\xff\xfe\xff", "cannot be read: 'utf-16-le' codec"),
        (lambda _: b"[]", "cannot be read: .* of format None, this"),
        (lambda _: b"{}", "cannot be read: .* of format None, this"),
        (lambda text: text.replace(b"crc", b"CRC"), "cannot be read: .*missing required .*`crc32`"),
        (lambda text: text.replace(b"[0, 50]", b"[0, 51]"), "its checksum is another one"),
        (lambda text: text.replace(b'n": 1', b'n": 2'), "transaction of format 2, this"),
    ],
)
def test_damaged_metadata_is_named(
    damage: Callable[[bytes], bytes], what: str, tmp_path: Path
) -> None:
    spout = PartitionedSpout(Source([99]))
    _tester(spout, tmp_path, FolderMetadataStore(tmp_path)).run_batch()
    path = tmp_path / "partition" / "0" / "1.json"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TransactionMetadataError, match=what) as refused:
        _tester(spout, tmp_path, FolderMetadataStore(tmp_path))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("committed", "five", "metadata 'committed': 'five' is not a transaction id"),
        ("partition/x/1", 1, "'x' is no number of a partition"),
        ("partition/0/y", 1, "'y' is not a transaction id: give each topology a metadata store"),
        *(
            (f"coordinator/{one}", 1, f"'{one}' is not a transaction id")
            for one in ("one", "01", "0", "1/2", "²")
        ),
    ],
)
def test_metadata_of_something_else_is_named(
    name: str, value: object, message: str, tmp_path: Path
) -> None:
    metadata = MemoryMetadataStore()
    metadata.write(name, value)
    with pytest.raises(TransactionMetadataError, match=message):
        _tester(PartitionedSpout(Source([1])), tmp_path, metadata)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ([], "transaction 4 cannot begin: none has metadata yet. Begin transaction 1 first"),
        ([1], "transaction 4 cannot begin: the latest with metadata is 1. Begin transaction 2 fi"),
        ([7], "transaction 4 has no metadata, and transaction 7 after it has"),
    ],
)
def test_metadata_that_is_missing_is_named(there: list[int], message: str, tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    metadata.write("committed", 3)
    for one in there:
        metadata.write(f"coordinator/{one}", [0, 1, one])
    topology = _counting(WholeSpout(Source([9])), Journal(), tmp_path)
    tester = TransactionTester(topology, metadata=metadata, resumes_after=3)
    with pytest.raises(TransactionOrderError, match=f"^coordinator: {message}"):
        tester.run_batch()


def test_metadata_of_a_later_life_is_named(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    metadata.write("committed", 3)
    with pytest.raises(TransactionOrderError, match="transaction 1 cannot be emitted: 4 is next"):
        _tester(WholeSpout(Source([9])), tmp_path, metadata).run_batch()


@pytest.fixture(params=[MemoryMetadataStore, FolderMetadataStore])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MetadataStore:
    if request.param is MemoryMetadataStore:
        return MemoryMetadataStore()
    return FolderMetadataStore(tmp_path / "new" / "folder")


def test_metadata_comes_back_by_its_name(store: MetadataStore) -> None:
    values: Any = [None, True, 1 << 80, -0.5, 1e300, "é", "\ud800", [[]], {"": {"é": [1, None]}}]
    for number, value in enumerate(values):
        store.write("a/b", "before")
        store.write("a/b", value)
        store.write(f"b/c/{number}", number)
        assert store.read("a/b") == value
    store.write("a", (1, {2: 3}))  # as JSON gives it, before a restart, too
    assert (store.read("a"), store.names("a"), store.names("c")) == ([1, {"2": 3}], ["a/b"], [])
    assert sorted(store.names("b")) == [f"b/c/{number}" for number in range(len(values))]
    store.remove("a/b")
    store.remove("a/b")
    assert store.names("a") == []
    with pytest.raises(KeyError):
        store.read("a/b")


@pytest.mark.promise("process-names-equal-in-json")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(
            (one, "JSON has no form for it")
            for one in (object(), {1, 2}, float("nan"), float("inf"), {(1, 2): 3})
        ),
        *(
            (one, "two names of it are")
            for one in ({1: "a", "1": "b"}, [{"a": {None: 1, "null": 2}}], {True: 1, "true": 2})
        ),
    ],
)
def test_metadata_that_json_would_change_is_refused(
    value: object, message: str, store: MetadataStore
) -> None:
    store.write("a/1", {1: "before"})
    with pytest.raises(TransactionMetadataError, match=f"metadata 'a/1': {message}"):
        store.write("a/1", value)
    assert store.read("a/1") == {"1": "before"}


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", ".hidden/y", "a b/%2E/ü", "x.json"])
def test_metadata_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    store = FolderMetadataStore(tmp_path / "inside")
    store.write(f"top/{name}", 1)
    assert list(store.names("top")) == [f"top/{name}"]
    assert store.read(f"top/{name}") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/"])
def test_name_without_a_part_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a part of this name is empty"):
        FolderMetadataStore(tmp_path).write(name, 1)


def test_power_cut_leaves_the_old_metadata_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is synced before it has its name, and its folder after that."""
    store, path, sync = FolderMetadataStore(tmp_path), tmp_path / "a" / "1.json", os.fsync
    store.write("a/1", "before")
    seen: list[tuple[bool, bool]] = []

    def watched(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append((is_folder, b"after" in path.read_bytes()))
        sync(descriptor)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.write("a/1", "after")
    monkeypatch.setattr(os, "fsync", watched)
    store = FolderMetadataStore(tmp_path)
    assert (store.read("a/1"), store.names("a")) == ("before", ["a/1"])
    store.write("a/1", "after")
    assert seen == [(False, False), (True, True)]
    assert [one.name for one in path.parent.iterdir()] == ["1.json"]
    assert store.read("a/1") == "after"
