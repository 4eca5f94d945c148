"""What can be built as a transactional topology; whatever cannot is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    BatchBolt,
    Bolt,
    Committer,
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
    OrderedStreamSpout,
    ProcessSettings,
    TopologyBuilder,
    TopologyTester,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    TransactionTester,
    bolt,
)
from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    State,
    TransactionalState,
)
from sequitur.errors import FailBatch, TopologyBuildError, TopologyError
from tests.support.transactions import (
    Gather,
    Journal,
    Noting,
    NotingAtEnd,
    PassOn,
    counts,
    events,
    store_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sequitur.consumer.topology import OutputCollector, TopologyContext, Tuple

    Builder = TransactionalTopologyBuilder


_ROWS = {0: [("x", 1), ("y", 2)]}


class Acks(Bolt):
    """Acks by itself."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self.collector.ack(tuple)


class TwoArguments(BatchBolt):
    """Is prepared as in other topologies."""

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Take no transaction."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        """Nothing."""

    def finish_batch(self) -> None:
        """Nothing."""


class MarkedBasic(PassOn, Committer):
    """No batch bolt, and marked."""


class MarkedSum(NotingAtEnd, Committer):
    """Marked."""


@bolt(fields=("transaction", "value"))
def upper(given: Tuple) -> Iterator[Any]:
    yield given["transaction"], given["value"].decode().upper()


def _builder(spout: Any = None) -> Builder:
    return TransactionalTopologyBuilder("built", "spout", spout)


def _set(bolt: Any, **given: Any) -> Callable[[Builder, Path], Any]:
    return lambda builder, _: builder.set_bolt("bolt", bolt, **given)


def _commit(bolt: Any, **given: Any) -> Callable[[Builder, Path], Any]:
    return lambda builder, _: builder.set_committer_bolt("bolt", bolt, **given)


def _states(**kinds: Any) -> Callable[[Builder, Path], Any]:
    """Return what builds a committer with states, and another that has the same table."""

    def build(builder: Builder, folder: Path) -> Any:
        for name, (state, table) in kinds.items():
            made = state(store_in(folder), table) if isinstance(state, type) else state
            bolt = builder.set_committer_bolt(name, Gather(Journal()), states={"count": made})
            bolt.global_grouping("spout")
        return builder.build()

    return build


@pytest.mark.promise("state-state-bolt-setting")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        pytest.param(
            _set(Acks()), "bolt 'bolt' is neither a BatchBolt nor a BasicBolt nor a", id="Bolt"
        ),
        pytest.param(
            _set(TwoArguments()), r"prepare\(context, collector, transaction\)", id="prepare"
        ),
        pytest.param(_set(MarkedBasic()), "committer 'bolt' is not a BatchBolt", id="marked basic"),
        pytest.param(_commit(PassOn()), "committer 'bolt' is not a BatchBolt", id="basic"),
        pytest.param(_commit(upper), "committer 'bolt' is not a BatchBolt", id="function"),
        pytest.param(
            _set(Noting(Journal()), concurrency=2), "bolt 'bolt': concurrency = 2", id="concurrency"
        ),
        pytest.param(
            _set(Noting(Journal()), states={"count": None}),
            "bolt 'bolt' has states, but is no committer",
            id="states elsewhere",
        ),
        pytest.param(
            lambda builder, _: builder.set_spout("other"),
            "spout 'other': a transactional topology has one spout",
            id="second spout",
        ),
        pytest.param(
            lambda builder, _: _only(builder).build(),
            "topology 'built' has no committer",
            id="no committer",
        ),
        pytest.param(
            _states(sum=("a table", "")),
            "committer 'sum', state 'count': 'a table' is not a state",
            id="no state",
        ),
        pytest.param(
            _states(
                first=(TransactionalState, "counts"),
                second=(TransactionalState, "counts"),
            ),
            "committer 'second', state 'count': 'counts' of that store is kept by first.count",
            id="one table for two",
        ),
        pytest.param(
            _states(first=(TransactionalState, "counts"), second=(OpaqueState, "counts")),
            "kept by first.count already",
            id="one table for two kinds",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    build: Callable[[Builder, Path], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TopologyBuildError, match=message):
        build(_builder(), tmp_path)


def _only(builder: Builder) -> Builder:
    builder.set_bolt("a", PassOn()).shuffle_grouping("spout")
    return builder


@pytest.mark.parametrize(
    ("spout", "parallelism", "message"),
    [
        ("a spout", None, "'a spout' is not a transactional spout"),
        (OrderedStreamSpout, None, "is not a transactional spout"),
        (MemoryTransactionalSpout, None, "is not a transactional spout"),
        (OrderedStreamSpout(), 3, "parallelism = 3: the ordered stream has a task for each"),
        (MemoryTransactionalSpout(_ROWS, ["v", "n"], 1), 0, "parallelism = 0: expected 1 or more"),
        (MemoryTransactionalSpout(_ROWS, [], 1), None, "is not a transactional spout"),
        (MemoryTransactionalSpout(_ROWS, ["v", "v"], 1), None, "a list of different names"),
        (MemoryTransactionalSpout(_ROWS, "vn", 1), None, "a list of different names"),
        (MemoryTransactionalSpout(_ROWS, ["v", "transaction"], 1), None, "'transaction' is the"),
    ],
)
def test_what_is_no_spout_is_refused_by_name(spout: Any, parallelism: Any, message: str) -> None:
    with pytest.raises(TopologyBuildError, match=rf"spout 'rows': .*{message}"):
        TransactionalTopologyBuilder("built", "rows", spout, parallelism)


@pytest.mark.promise("state-state-bolt-setting")
@pytest.mark.parametrize("kind", [OpaqueState, NonTransactionalState, TransactionalState])
@pytest.mark.parametrize("spout", [MemoryTransactionalSpout, MemoryOpaqueTransactionalSpout])
def test_which_state_goes_with_which_spout(kind: type[State], spout: Any, tmp_path: Path) -> None:
    """All but a transactional state with an opaque spout: batches differ there."""
    builder = _builder(spout(_ROWS, ["value", "n"], 1))
    build = _states(sum=(kind, "counts"))
    if spout is MemoryOpaqueTransactionalSpout and kind is TransactionalState:
        with pytest.raises(TopologyBuildError, match=r"'sum', state 'count'.* opaque spout"):
            build(builder, tmp_path)
        return
    tester = TransactionTester(build(builder, tmp_path))
    while tester.run_batch():
        pass
    assert counts(store_in(tmp_path), "counts") == {"x": 1, "y": 1}


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_committer_is_marked_or_set(is_marked: bool) -> None:
    """Both are committers, with one task by default; what reads them is in the commit phase."""
    journal = Journal()
    builder = _builder()
    builder.set_bolt("a", Noting(journal), 3).shuffle_grouping("spout")
    if is_marked:
        declarer = builder.set_bolt("sum", MarkedSum(journal))
    else:
        declarer = builder.set_committer_bolt("sum", NotingAtEnd(journal))
    declarer.shuffle_grouping("a")
    builder.set_bolt("after", Noting(journal)).shuffle_grouping("sum")
    topology = builder.build()
    assert topology.committers == {"sum"}
    assert topology.commit_phase == {"sum", "after"}
    assert topology.components["sum"].parallelism == 1
    assert topology.is_transactional
    TransactionTester(topology).run(events("x"))
    assert journal.finishes() == [("a", 1)] * 3 + [("sum", 1), ("after", 1)]


def test_basic_bolts_and_functions_may_be_used() -> None:
    """They pass on the attempt that comes with a tuple, before committers and behind them."""
    journal = Journal()
    builder = _builder()
    builder.set_bolt("upper", upper).shuffle_grouping("spout")
    builder.set_bolt("pass", PassOn(), 2).fields_grouping("upper", "value")
    builder.set_committer_bolt("sum", NotingAtEnd(journal)).global_grouping("pass")
    builder.set_bolt("again", PassOn(), 2).shuffle_grouping("sum")
    builder.set_output("out", key=None, value="value").local_grouping("again")
    tester = TransactionTester(builder.build())
    tester.run(events("x", "y"))
    assert sorted(value or b"" for _, value in tester.records("out")) == [b"X", b"Y", b"end of sum"]


def test_outputs_of_all_fields_leave_out_the_attempt() -> None:
    """It is another one in each try, and records are to be the same."""
    builder = _builder(MemoryTransactionalSpout(_ROWS, ["value", "n"], 2))
    builder.set_committer_bolt("sum", NotingAtEnd(Journal())).global_grouping("spout")
    builder.set_output("all", "all", key=None, value=None).local_grouping("sum")
    builder.set_output("one", "one", key="value", value=None).local_grouping("sum")
    builder.set_output("raw", "raw", key="value", value=None).local_grouping("spout")
    tester = TransactionTester(builder.build())
    tester.run_batch()
    assert tester.records("all")[0] == (None, b'{"value":"x"}')
    assert tester.records("one")[0] == (b"x", b"{}")
    assert tester.records("raw") == [(b"x", b'{"n":1}'), (b"y", b'{"n":2}')]


@pytest.mark.promise("state-state-bolt-setting")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"outputs": "immediate"}, 'outputs = "immediate"'),
        ({"ackers": 0}, "ackers = 0"),
        ({"max_spout_pending": 5}, "max_spout_pending = 5"),
    ],
)
def test_settings_that_do_not_go_with_transactions(setting: Any, message: str) -> None:
    builder = _builder()
    builder.set_committer_bolt("sum", NotingAtEnd(Journal())).global_grouping("spout")
    with pytest.raises(TopologyError, match=f"'built' is transactional: {message}"):
        TransactionTester(builder.build(), ProcessSettings(**setting))


def test_each_kind_of_topology_has_its_tester() -> None:
    builder = _builder()
    builder.set_committer_bolt("sum", NotingAtEnd(Journal())).global_grouping("spout")
    with pytest.raises(TopologyError, match="'built' is run by a TransactionTester"):
        TopologyTester(builder.build())
    plain = TopologyBuilder("plain")
    plain.set_spout("spout")
    topology: Any = plain.build()
    with pytest.raises(TopologyError, match="'plain' is run by a TopologyTester"):
        TransactionTester(topology)


class EmitsFirst(BaseTransactionalBolt):
    """Emits something as the first value; once what it is given says so, the attempt.

    Args:
        first: The wrong value.
    """

    fields = ("transaction", "value")

    def __init__(self, first: Any) -> None:
        self.first = first

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        is_right = tuple["value"] != b"bad"
        self.collector.emit((self.transaction if is_right else self.first, tuple["value"]))


class EmitsOldAtEnd(NotingAtEnd):
    """Emits the attempt of the try before in its second try."""

    def at_end(self) -> None:
        number, tried = self.transaction
        told = TransactionAttempt(number, 1) if tried == 2 else self.transaction
        self.collector.emit((told, "total"))


class Committing(NotingAtEnd, Committer):
    """Commits."""


def _a_b_c_d(journal: Journal) -> TransactionTester:
    """Return the example of Storm's documentation: B and D commit, C stands behind B."""
    builder = TransactionalTopologyBuilder("example", "spout")
    builder.set_bolt("a", Noting(journal)).shuffle_grouping("spout")
    builder.set_bolt("b", Committing(journal)).global_grouping("a")
    builder.set_bolt("c", Noting(journal), 1).global_grouping("a").global_grouping("b")
    builder.set_committer_bolt("d", NotingAtEnd(journal)).global_grouping("c")
    builder.set_output("out", key=None, value="value").local_grouping("d")
    return TransactionTester(builder.build())


def test_the_example_of_storms_documentation() -> None:
    """Only A finishes in the processing phase; B, then C behind it, then D in the commit phase."""
    journal = Journal()
    tester = _a_b_c_d(journal)
    tester.run(events("x"))
    assert [(one.component, one.what, one.value) for one in journal.calls] == [
        # The processing phase.
        ("a", "process", "x"),
        ("a", "finish", None),
        ("b", "process", "x"),
        ("c", "process", "x"),
        ("d", "process", "x"),
        # The commit phase.
        ("b", "process", "x"),
        ("b", "finish", None),
        ("c", "process", "x"),
        ("d", "process", "x"),
        ("c", "process", "x"),
        ("d", "process", "x"),
        ("c", "process", "end of b"),
        ("d", "process", "end of b"),
        ("c", "finish", None),
        ("d", "finish", None),
    ]
    assert [value for _, value in tester.records("out")] == [b"x", b"x", b"end of b", b"end of d"]
    assert len(tester.acked) == 1


@pytest.mark.promise("state-later-batches-processed")
def test_commits_come_one_after_the_other() -> None:
    """All committers of a batch have finished before any bolt is given the next."""
    journal = Journal()
    tester = _a_b_c_d(journal)
    for value in ("x", "y", "z"):
        tester.run(events(value))
    ids = [one.attempt.transaction_id for one in journal.calls]
    assert ids == sorted(ids)
    finished = [one.attempt.transaction_id for one in journal.of("d", "finish")]
    assert finished == [1, 2, 3]


def test_an_empty_run_is_a_transaction_too() -> None:
    """Every bolt that has batches finishes one, in each task."""
    journal = Journal()
    tester = _a_b_c_d(journal)
    tester.run()
    assert journal.finishes() == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert tester.transaction_id == 1


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("x", id="text"),
        pytest.param(None, id="none"),
        pytest.param((1, 1), id="plain tuple"),
        pytest.param(TransactionAttempt(1, 2), id="another try"),
        pytest.param(TransactionAttempt(7, 1), id="another transaction"),
    ],
)
def test_what_begins_with_something_else_fails_its_event(first: Any, tmp_path: Path) -> None:
    """It is an EmitError that names the attempt; all other events are committed."""
    store, journal = store_in(tmp_path), Journal()
    builder = TransactionalTopologyBuilder("first", "spout")
    builder.set_bolt("emits", EmitsFirst(first)).shuffle_grouping("spout")
    builder.set_bolt(
        "sum", Gather(journal), states={"count": TransactionalState(store, "counts")}
    ).global_grouping("emits")
    tester = TransactionTester(builder.build())
    tester.run(events("good", "bad"))
    assert [event.value for event in tester.failed] == [b"bad"]
    tester.retry_all()
    (dead,) = tester.dead_letters
    assert dead.event.value == b"bad"
    assert "EmitError" in dead.detail
    assert "TransactionAttempt" in dead.detail
    assert counts(store, "counts") == {"good": 1}


def test_an_old_attempt_at_the_end_fails_the_batch() -> None:
    """In the second try a bolt emits that of the first: it is refused, and there is a third."""
    journal = Journal()
    journal.faults["a.finish"] = [FailBatch("once more")]
    builder = TransactionalTopologyBuilder("old", "spout")
    builder.set_bolt("a", EmitsOldAtEnd(journal)).shuffle_grouping("spout")
    builder.set_bolt("d", Committing(journal)).global_grouping("a")
    tester = TransactionTester(builder.build())
    tester.run(events("x"))
    assert [one.attempt.attempt_id for one in tester.failed_tries] == [1, 2]
    assert "EmitError" in tester.failed_tries[1].detail
    given = {one.attempt.attempt_id for one in journal.of("d", "process")}
    assert given == {1, 3}
    assert journal.finishes_of("d") == [3]


def test_a_repeated_commit_gives_the_new_attempt() -> None:
    """What was prepared in the first try has the attempt of the second: bolts may pass it on."""
    journal = Journal()
    journal.faults["end.finish"] = [None, FailBatch("behind the commit")]
    builder = TransactionalTopologyBuilder("new", "spout")
    builder.set_bolt("a", NotingAtEnd(journal)).shuffle_grouping("spout")
    builder.set_committer_bolt("first", NotingAtEnd(journal)).global_grouping("a")
    builder.set_bolt("pass", PassOn(), 1).global_grouping("a").global_grouping("first")
    builder.set_committer_bolt("end", NotingAtEnd(journal)).global_grouping("pass")
    tester = TransactionTester(builder.build())
    tester.run(events("x"))
    journal.clear()
    tester.run(events("y"))
    assert journal.finishes_of("a") == [1]
    given = [one.attempt for one in journal.of("end", "process")]
    assert given[-4:] == [TransactionAttempt(2, 2)] * 4
    assert set(given) == {TransactionAttempt(2, 1), TransactionAttempt(2, 2)}


@pytest.mark.promise("state-later-batches-processed")
def test_transactions_are_counted_without_gaps() -> None:
    """Through failed events, their retries, failed tries, ticks and empty runs."""
    journal = Journal()
    builder = TransactionalTopologyBuilder("ids", "spout", tick_interval=1)
    builder.set_bolt("a", Ticked(journal)).shuffle_grouping("spout")
    builder.set_committer_bolt("end", Ticked(journal)).global_grouping("a")
    tester = TransactionTester(builder.build())
    journal.faults["a.x"] = [ValueError("an event fails")]
    tester.run(events("x", "y"))
    tester.retry_all()
    journal.faults["end.finish"] = [FailBatch("a try fails"), FailBatch("and another")]
    tester.run(events("z"))
    tester.run()
    tester.advance(1)
    tester.run()
    assert tester.transaction_id == 5
    ids = [one.attempt.transaction_id for one in journal.of("end", "finish")]
    assert ids == [1, 2, 3, 3, 3, 4, 5]
    attempts = [one.attempt for one in journal.of("end", "finish")]
    assert len(set(attempts)) == len(attempts)
    assert attempts == sorted(attempts)
    assert "tick" in [one.value for one in journal.of("end", "process")]


class Ticked(NotingAtEnd):
    """Notes ticks, too."""

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if tuple.is_tick:
            self._note("process", "tick", self.transaction)
        else:
            super().process(tuple)
