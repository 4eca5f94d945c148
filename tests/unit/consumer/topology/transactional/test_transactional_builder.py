"""What can be built as a transactional topology; whatever cannot is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BatchBolt,
    Bolt,
    Committer,
    MemoryOpaqueTransactionalSpout,
    MemoryTransactionalSpout,
    OrderedStreamSpout,
    ProcessSettings,
    TopologyBuilder,
    TopologyBuildError,
    TopologyError,
    TopologyTester,
    TransactionalTopologyBuilder,
    TransactionTester,
    bolt,
)
from sequitur.consumer.topology.state import (
    NonTransactionalState,
    OpaqueState,
    State,
    TransactionalState,
)
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
        pytest.param(_set(MarkedBasic()), "committer 'bolt' is no BatchBolt", id="marked basic"),
        pytest.param(_commit(PassOn()), "committer 'bolt' is no BatchBolt", id="basic"),
        pytest.param(_commit(upper), "committer 'bolt' is no BatchBolt", id="function"),
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
            "committer 'sum', state 'count': 'a table' is no state",
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
        ("a spout", None, "'a spout' is no transactional spout"),
        (OrderedStreamSpout, None, "is no transactional spout"),
        (MemoryTransactionalSpout, None, "is no transactional spout"),
        (OrderedStreamSpout(), 3, "parallelism = 3: the ordered stream has a task for each"),
        (MemoryTransactionalSpout(_ROWS, ["v", "n"], 1), 0, "parallelism = 0: expected 1 or more"),
        (MemoryTransactionalSpout(_ROWS, [], 1), None, "is no transactional spout"),
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
