"""An event that makes a bolt raise at the end of its batch is found, and no other is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import (
    BaseTransactionalBolt,
    Committer,
    FailReason,
    ProcessSettings,
    TransactionalTopologyBuilder,
    TransactionError,
    TransactionTester,
)

if TYPE_CHECKING:
    from sequitur.consumer.topology import Tuple
    from sequitur.consumer.topology.transactional.builder import TransactionalTopology

_SETTINGS = ProcessSettings.model_validate({"max_attempts": 3, "retry_delay": "1 ms"})


class _Total(BaseTransactionalBolt):
    """Adds numbers at the end of a batch."""

    fields = ("transaction", "total")

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self._values: list[bytes] = []

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        self._values.append(tuple["value"])

    def finish_batch(self) -> None:
        self.collector.emit((self.transaction, sum(map(int, self._values))))


class _Passes(BaseTransactionalBolt, Committer):
    """Emits what it is given, at the end of a batch; it takes no odd total."""

    fields = ("transaction", "total")

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self._totals: list[int] = []

    def process(self, tuple: Tuple, /) -> None:  # noqa: A002
        if tuple["total"] % 2:
            raise ValueError(f"{tuple['total']} is odd")
        self._totals.append(tuple["total"])

    def finish_batch(self) -> None:
        self.collector.emit((self.transaction, sum(self._totals)))


def _topology() -> TransactionalTopology:
    builder = TransactionalTopologyBuilder("totals", "events")
    builder.set_bolt("total", _Total(), 2).fields_grouping("events", "key")
    builder.set_bolt("passes", _Passes()).global_grouping("total")
    builder.set_output("out", key=None, value="total").local_grouping("passes")
    return builder.build()


def _tester() -> TransactionTester:
    return TransactionTester(_topology(), _SETTINGS, partitions=3)


@pytest.mark.promise("state-bolt-raises-end")
@pytest.mark.parametrize("bad", [{3}, {0}, {19}, {3, 4, 17}])
def test_the_events_to_blame_are_dead_lettered(bad: set[int]) -> None:
    """After as many tries as a bolt has; the batch is committed with all others."""
    tester = _tester()
    tester.run([(f"k{number}", "x" if number in bad else "2", number) for number in range(20)])
    assert tester.records("out") == [(None, b"%d" % (2 * (20 - len(bad))))]
    assert {one.event.event_time_ms for one in tester.dead_letters} == bad
    letter = tester.dead_letters[0]
    assert letter.reason is FailReason.EXCEPTION
    assert "ValueError: invalid literal" in letter.detail
    assert letter.path == ("total",)
    assert len(tester.acked) == 20 - len(bad)
    assert len(tester.failed_tries) == 2


@pytest.mark.promise("state-bolt-raises-end")
def test_a_tuple_of_the_batch_that_fails_further_on_is_traced_back() -> None:
    """What a bolt emits at the end of a batch belongs to all of its events: one is to blame."""
    tester = _tester()
    tester.run([("k", "2"), ("k", "1"), ("k", "4")])
    assert tester.records("out") == [(None, b"6")]
    assert [one.event.value for one in tester.dead_letters] == [b"1"]


@pytest.mark.promise("state-bolt-raises-event")
def test_a_bolt_that_raises_without_events_ends_the_life() -> None:
    builder = TransactionalTopologyBuilder("totals", "events")
    builder.set_bolt("raises", _Raises()).shuffle_grouping("events")
    builder.set_committer_bolt("passes", _Passes()).global_grouping("raises")
    tester = TransactionTester(builder.build(), _SETTINGS)
    with pytest.raises(TransactionError, match=r"failed 3 times, last in raises: [\s\S]*not ready"):
        tester.run([("k", "2")])
    assert tester.dead_letters == []


class _Raises(_Total):
    def finish_batch(self) -> None:
        raise RuntimeError("not ready")
