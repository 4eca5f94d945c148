"""What a bolt emits where its batch is over has no readers: it is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sequitur.consumer.topology import BasicBolt, Bolt, TopologyBuilder, TopologyTester
from sequitur.errors import BoltError

if TYPE_CHECKING:
    from sequitur.consumer.topology import (
        BaseBolt,
        BasicOutputCollector,
        OutputCollector,
        Topology,
        TopologyContext,
        Tuple,
    )


class Emitting(Bolt):
    """Passes on what it is given, and emits once more in one of its methods.

    Args:
        method: The method.
    """

    fields = ("value",)

    def __init__(self, method: str) -> None:
        self.method = method
        self.fails = 0

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.collector.emit((tuple["value"],), tuple)
        self.collector.ack(tuple)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self._called("prepare")

    def finish_batch(self) -> None:
        self._called("finish_batch")

    def snapshot(self) -> Any:
        self._called("snapshot")

    def cleanup(self) -> None:
        self._called("cleanup")

    def _called(self, method: str) -> None:
        if method == self.method:
            self.collector.emit((f"in {method}",))


class Basic(BasicBolt):
    """Does so by the collector of its last tuple."""

    fields = ("value",)

    def process(self, tuple: Tuple, collector: BasicOutputCollector) -> None:  # noqa: A002
        collector.emit((tuple["value"],))
        self.kept = collector

    def snapshot(self) -> Any:
        self.kept.emit(("in snapshot",))


class Refusing(Emitting):
    """Raises at a tick, so that another copy of it is given the tick."""

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        if tuple.is_tick and _refusals and _refusals.pop():
            raise ConnectionError("503")
        self.collector.emit(("tick" if tuple.is_tick else tuple["value"],), tuple)
        self.collector.ack(tuple)


_refusals: list[bool] = []


def _topology(bolt: BaseBolt, tasks: int | None = None, **how: Any) -> Topology:
    builder = TopologyBuilder("emits")
    builder.set_spout("events")
    builder.set_bolt("bolt", bolt, tasks, **how).shuffle_grouping("events")
    builder.set_bolt("reader", Emitting("none")).local_grouping("bolt")
    builder.set_output("out", key=None, value="value").local_grouping("reader")
    return builder.build()


def _values(tester: TopologyTester) -> list[str]:
    return [(value or b"").decode() for _, value in tester.records("out")]


@pytest.mark.promise("process-emitted-without-readers")
@pytest.mark.parametrize("tasks", [None, 2])
@pytest.mark.parametrize("bolt", [Emitting("snapshot"), Basic()], ids=["any", "basic"])
def test_what_is_emitted_in_a_snapshot_ends_the_job_by_name(
    bolt: BaseBolt, tasks: int | None
) -> None:
    tester = TopologyTester(_topology(bolt, tasks))
    with pytest.raises(BoltError, match=r"'bolt', task \d: it emitted in its snapshot\(\)"):
        tester.run([("k", "a")])


@pytest.mark.promise("process-emitted-without-readers")
def test_what_is_emitted_in_a_cleanup_is_told_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    """Its batch is done: nothing of it is undone."""
    tester = TopologyTester(_topology(Emitting("cleanup")))
    tester.run([("k", "a")])
    tester.close()
    assert _values(tester) == ["a"]
    assert "bolt 'bolt', task 0: it emitted in its cleanup()" in capfd.readouterr().err


def test_a_copy_that_takes_over_within_a_batch_emits(capfd: pytest.CaptureFixture[str]) -> None:
    """The one before it cleans up meanwhile."""
    tester = TopologyTester(_topology(Refusing("cleanup"), tick_interval="1 s"))
    tester.run([("k", "a")])
    _refusals.append(True)
    tester.advance(2)
    tester.run([("k", "b")])
    assert not _refusals
    assert _values(tester)[1:] == ["tick", "b"]
    assert "it emitted in its cleanup()" in capfd.readouterr().err


@pytest.mark.parametrize("method", ["prepare", "finish_batch"])
def test_what_is_emitted_while_the_batch_lasts_comes_to_its_readers(method: str) -> None:
    tester = TopologyTester(_topology(Emitting(method)))
    tester.run([("k", "a")])
    assert sorted(_values(tester)) == ["a", f"in {method}"]
