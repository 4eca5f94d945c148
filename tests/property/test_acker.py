"""The acker's verdict is that of a tracker with sets, whatever the trees and the order.

Random DAGs are played on bolts that hold what they are given: each step emits a tuple anchored to
some that are held, acks one, or fails one. The executor's own roots and the `Acker` are told of the
same steps, the latter in any order and cut.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer.topology import (
    Bolt,
    EventValues,
    FailReason,
    Ordering,
    TopologyBuilder,
    Tuple,
)
from sequitur.consumer.topology.engine.executor import Executor
from sequitur.consumer.topology.engine.plan import Placement, Rules, random_ids
from sequitur.consumer.topology.settling.acker import Acker, AckFlag
from sequitur.consumer.topology.settling.root import Root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sequitur.consumer.topology import OutputCollector, Topology, TopologyContext, TreeFailure
    from sequitur.consumer.topology.engine.trees import TrackedTuple

_LAYERS = 4


class Verdict(StrEnum):
    """What became of a root."""

    DONE = "done"
    FAILED = "failed"
    OPEN = "open"


class Holder(Bolt):
    """Holds each tuple until it is told what to do with it."""

    fields = ("number",)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.held: list[Tuple] = []

    def process(self, tuple: Tuple) -> None:  # noqa: A002
        self.held.append(tuple)


def _layers() -> Topology:
    builder = TopologyBuilder("layers")
    builder.set_spout("spout")
    before = "spout"
    for layer in range(_LAYERS):
        name = f"layer{layer}"
        builder.set_bolt(name, Holder()).shuffle_grouping(before)
        before = name
    return builder.build()


_TOPOLOGY = _layers()
_TASKS = dict.fromkeys(_TOPOLOGY.components, 1)


class Tracker:
    """The acker as one would write it at first: sets of open tuples. Takes each step as a trace.

    Attributes:
        open: The open tuples by root.
        failed_roots: Roots with a failed tuple.
        late: Acks of tuples whose tree had failed.
        messages: What the acker's tasks are told: root, value, flags.
    """

    def __init__(self) -> None:
        self.open: dict[int, set[TrackedTuple]] = defaultdict(set)
        self.failed_roots: set[int] = set()
        self.late = 0
        self.messages: list[tuple[int, int, int]] = []
        self._emitted: dict[TrackedTuple, dict[Root, int]] = defaultdict(lambda: defaultdict(int))

    def given_out(self, root: Root, made: TrackedTuple) -> None:
        """The spout gave a tuple to a task."""
        self.open[root.id].add(made)
        self.messages.append((root.id, made.edge, AckFlag.INIT))

    def begun(self, root: Root, values: tuple[Any, ...]) -> None:
        """An event is going to be given out: it is known when a task is given it."""

    def sent(self, *told: Any) -> None:
        raise AssertionError(told)

    def received(self, sent: Any, made: Any) -> None:
        raise AssertionError(sent, made)

    def emitted(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], made: TrackedTuple
    ) -> None:
        """A bolt emitted a tuple to a task; its edges are told with the ack of an anchor."""
        del by
        for root in {root for anchor in anchors for root, _ in anchor.trees()}:
            self.open[root.id].add(made)
            anchor = next(one for one in anchors if root in dict(one.trees()))
            self._emitted[anchor][root] ^= dict(made.trees())[root]

    def written(self, by: Any, anchors: Any, output: Any, record: Any) -> None:
        raise AssertionError(by, anchors, output, record)

    def acked(self, by: TopologyContext, given: TrackedTuple) -> None:
        del by
        for root, edge in _tracked_trees(given):
            self.late += root.id in self.failed_roots
            self.open[root.id].discard(given)
            self.messages.append((root.id, edge ^ self._emitted[given][root], 0))

    def failed(self, by: TopologyContext, given: TrackedTuple, failure: TreeFailure) -> None:
        del by, failure
        for root, _ in _tracked_trees(given):
            self.failed_roots.add(root.id)
            self.messages.append((root.id, 0, AckFlag.FAILED))

    def verdict(self, root: Root) -> Verdict:
        if root.id in self.failed_roots:
            return Verdict.FAILED
        return Verdict.OPEN if self.open[root.id] else Verdict.DONE


def _tracked_trees(given: TrackedTuple) -> list[tuple[Root, int]]:
    return [(root, edge) for root, edge in given.trees() if root.is_tracked]


class Play:
    """Random steps on the layers."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.tracker = Tracker()
        self.executor = Executor(
            _TOPOLOGY,
            Placement(_TASKS, dict.fromkeys(_TASKS, (0,))),
            Rules(ordering=Ordering.NONE),
            clock=lambda: 0.0,
            next_id=random_ids(data.draw(st.integers(0, 2**32), label="seed")),
            write=lambda *_: None,
            trace=self.tracker,
        )
        self.holders: list[Any] = [
            self.executor._tasks.runners[f"layer{layer}", 0].bolt for layer in range(_LAYERS)
        ]
        self.roots: list[Root] = []

    def run(self) -> None:
        """Steps until the draw says so; then what is still held is acked, or left."""
        for _ in range(self.data.draw(st.integers(0, 40), label="steps")):
            self._step()
        if self.data.draw(st.booleans(), label="ack the rest"):
            for holder in self.holders:
                for given in self._drawn_order(holder.held):
                    holder.collector.ack(given)
                self.executor.drain()
        self.executor.finish()

    def _step(self) -> None:
        held = [(layer, one) for layer, one in enumerate(self.holders) if one.held]
        what = self.data.draw(st.sampled_from(["event", "emit", "emit", "ack", "ack", "fail"]))
        if what == "event" or not held:
            self._feed()
            return
        layer, holder = self.data.draw(st.sampled_from(held))
        if what == "emit" and layer < _LAYERS - 1:
            anchors = self.data.draw(st.lists(st.sampled_from(holder.held), max_size=4))
            holder.collector.emit((layer,), anchors=anchors)
            self.executor.drain()
            return
        given = self.data.draw(st.sampled_from(holder.held))
        holder.held = [one for one in holder.held if one is not given]
        (holder.collector.fail if what == "fail" else holder.collector.ack)(given)

    def _feed(self) -> None:
        number = len(self.roots)
        event = EventValues(b"k", None, (), number, "t", 0, number, 0)
        root = Root(
            number + 1, event, is_tracked=self.data.draw(st.sampled_from([True, True, False]))
        )
        self.roots.append(root)
        self.executor.feed(root, event)

    def _drawn_order(self, held: list[Tuple]) -> list[Tuple]:
        return self.data.draw(st.permutations(held))

    @property
    def tracked(self) -> list[Root]:
        return [root for root in self.roots if root.is_tracked]


def _executors_verdict(root: Root) -> Verdict:
    if root.failure is None:
        return Verdict.DONE
    is_open = root.failure.reason is FailReason.NEVER_ACKED
    return Verdict.OPEN if is_open else Verdict.FAILED


@pytest.mark.promise("process-acks-come-order")
@given(data=st.data())
def test_all_agree_with_a_tracker_of_sets(data: st.DataObject) -> None:
    """The executor's roots and the acker: done, failed or open, of each root."""
    play = Play(data)
    play.run()
    expected = {root.id: play.tracker.verdict(root) for root in play.tracked}
    assert {root.id: _executors_verdict(root) for root in play.tracked} == expected
    assert play.executor.result().late_acks == play.tracker.late
    done = {root for root, verdict in expected.items() if verdict is Verdict.DONE}
    failed = {root for root, verdict in expected.items() if verdict is Verdict.FAILED}
    tracked = {root.id for root in play.tracked}
    messages = [one for one in play.tracker.messages if one[0] in tracked]
    messages = data.draw(st.permutations(messages), label="order of arrival")
    _check_acker(data, messages, done, failed, len(expected))


def _check_acker(
    data: st.DataObject,
    messages: Sequence[tuple[int, int, int]],
    done: set[int],
    failed: set[int],
    roots: int,
) -> None:
    acker = Acker()
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=4), label="cuts")
    places = [0, *sorted(cuts), len(messages)]
    for begin, end in pairwise(places):
        part = messages[begin:end]
        acker.add(
            np.array([one[0] for one in part], np.uint64),
            np.array([one[1] for one in part], np.uint64),
            np.array([one[2] for one in part], np.uint8),
        )
        if data.draw(st.booleans(), label="merge"):
            assert len(acker) == len({one[0] for one in messages[:end]})
    trees = acker.outcomes()
    assert trees.acked == len(done)
    assert len(trees.unfinished) == roots - len(done)
    flagged = {
        int(root)
        for root, flags in zip(trees.unfinished, trees.flags, strict=True)
        if flags & AckFlag.FAILED
    }
    assert flagged == failed
