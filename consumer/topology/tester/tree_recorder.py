"""Records trees while they grow, over all tasks that their tuples go through."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.tuple import EventValues
from sequitur.consumer.topology.settling.made_tuple import is_made
from sequitur.consumer.topology.tester.tree_view import StepKind, TreeStep, TupleTree, cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.api.failure import TreeFailure
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.emission import Sent
    from sequitur.consumer.topology.engine.tracked import TrackedTuple
    from sequitur.consumer.topology.settling.root import Root


class TreeRecorder:
    """Records the trees of a batch; a `Trace`.

    A tree's value is the XOR of what all tasks know of it, as an acker adds it up. A tuple that is
    sent is another object where it arrives: the exchange calls `leaves` and `arrives`.
    """

    def __init__(self) -> None:
        self.trees: list[TupleTree] = []
        self._trees: dict[int, TupleTree] = {}
        self._values: dict[int, int] = {}
        self._known: dict[Root, int] = {}
        self._numbers: dict[TrackedTuple, int] = {}
        self._count = 0
        self._seen_in: dict[Root, tuple[TupleTree, ...]] = {}
        self._shown_in: dict[int, tuple[TupleTree, ...]] = {}
        self._leaving: dict[int, tuple[Sent, int]] = {}
        self._arriving: dict[int, tuple[Sent, int]] = {}

    def leaves(self, sent: Sent) -> int:
        """Return the number of a tuple that is taken from its task."""
        return self._leaving.pop(id(sent))[1]

    def arrives(self, sent: Sent, number: int) -> None:
        """The tuple with a number is going to be given to its task."""
        self._arriving[id(sent)] = sent, number

    def begun(self, root: Root, values: tuple[Any, ...]) -> None:
        """See `Trace`."""
        tree = TupleTree(EventValues(*values), root.id, root.attempt, root.is_tracked)
        self.trees.append(tree)
        self._trees[root.id] = tree

    def given_out(self, root: Root, made: TrackedTuple) -> None:
        """See `Trace`."""
        number, to = self._number(made), _owner(made)
        self._give(root, made.edge, number, made.source, to, made.values)

    def emitted(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], made: TrackedTuple
    ) -> None:
        """See `Trace`."""
        number = self._number(made)
        if not anchors:
            self._seen_in[made.root] = self._trees_of(made.parent)
        shown = _values(made.as_dict())
        self._emit(by, anchors, number, _owner(made), list(self._places(made)), shown)

    def sent(  # noqa: PLR0917 - see `Trace`
        self,
        by: TopologyContext | None,
        anchors: Sequence[TrackedTuple],
        parent: TrackedTuple | None,
        stream: Stream,
        sent: Sent,
        to: TaskId,
    ) -> None:
        """See `Trace`."""
        self._count += 1
        number, reader = self._count, f"{to.component}#{to.task}"
        self._leaving[id(sent)] = sent, number
        values = _unpickled(sent.values)
        if by is None:
            ((root, edge),) = sent.trees
            self._give(root, edge, number, stream.component, reader, values)
            return
        if not anchors:
            self._seen_in[sent.trees[0][0]] = self._trees_of(parent)
        places = [place for root, edge in sent.trees for place in self._in_trees(root, edge)]
        self._shown_in[number] = tuple(tree for tree, _, _ in places)
        is_whole = isinstance(values, tuple)
        shown = _values(dict(zip(stream.fields, values, strict=True))) if is_whole else cut(values)
        self._emit(by, anchors, number, reader, places, shown)

    def received(self, sent: Sent, made: TrackedTuple) -> None:
        """See `Trace`."""
        _, number = self._arriving.pop(id(sent))
        self._numbers[made] = number
        for root, _ in made.trees():
            if not root.id:
                self._seen_in[root] = self._shown_in.get(number, ())

    def written(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], output: str, record: Any
    ) -> None:
        """See `Trace`."""
        shown = cut(f"key={record[0]!r}, value={record[1]!r}")
        numbers = self._numbers_of(anchors)
        places = (place for anchor in anchors for place in self._places(anchor))
        for tree, value in {id(tree): (tree, value) for tree, _, value in places}.values():
            tree.steps.append(
                TreeStep(StepKind.WRITTEN, _task(by), None, output, numbers, None, value, shown)
            )

    def acked(self, by: TopologyContext, given: TrackedTuple) -> None:
        """See `Trace`."""
        self._ended(StepKind.ACKED, by, given, "")

    def failed(self, by: TopologyContext, given: TrackedTuple, failure: TreeFailure) -> None:
        """See `Trace`."""
        last = failure.detail.rstrip().rpartition("\n")[2]
        self._ended(StepKind.FAILED, by, given, cut(f"{failure.reason}: {last}".rstrip(": ")))

    def _give(  # noqa: PLR0917 - private, and each is of a type of its own
        self, root: Root, edge: int, number: int, spout: str, to: str, values: Any
    ) -> None:
        if is_made(root.event):
            shown = cut(", ".join(map(repr, values)))
        else:
            shown = cut(f"key={values[0]!r}, value={values[1]!r}")
        value = self._value(root)
        step = TreeStep(StepKind.GIVEN, spout, number, to, (), edge, value, shown)
        self._trees[root.id].steps.append(step)

    def _emit(  # noqa: PLR0917 - likewise
        self,
        by: TopologyContext,
        anchors: Sequence[TrackedTuple],
        number: int,
        to: str,
        places: Sequence[tuple[TupleTree, int | None, int]],
        shown: str,
    ) -> None:
        numbers = self._numbers_of(anchors)
        for tree, edge, value in places:
            tree.steps.append(
                TreeStep(StepKind.EMITTED, _task(by), number, to, numbers, edge, value, shown)
            )

    def _ended(self, kind: StepKind, by: TopologyContext, given: TrackedTuple, shown: str) -> None:
        number = self._number(given)
        for tree, edge, value in self._places(given):
            tree.steps.append(TreeStep(kind, _task(by), number, "", (), edge, value, shown))

    def _places(self, given: TrackedTuple) -> Iterator[tuple[TupleTree, int | None, int]]:
        """Yield each tree that a tuple is shown in, with its edge and the tree's value."""
        for root, edge in given.trees():
            yield from self._in_trees(root, edge)

    def _in_trees(self, root: Root, edge: int) -> Iterator[tuple[TupleTree, int | None, int]]:
        tree = self._trees.get(root.id) if root.id else None
        if tree is not None:
            yield tree, edge, self._value(root)
            return
        # Without an anchor it is in no tree: it is shown where it was emitted, and counts 0.
        for other in self._seen_in.get(root, ()):
            yield other, None, other.values[-1] if other.steps else 0

    def _value(self, root: Root) -> int:
        """Return the value of a tree whose root is known to have this value in one task."""
        change = self._known.get(root, 0) ^ root.value
        self._known[root] = root.value
        value = self._values[root.id] = self._values.get(root.id, 0) ^ change
        return value

    def _trees_of(self, given: TrackedTuple | None) -> tuple[TupleTree, ...]:
        return () if given is None else tuple(tree for tree, _, _ in self._places(given))

    def _numbers_of(self, anchors: Sequence[TrackedTuple]) -> tuple[int, ...]:
        return tuple(self._number(anchor) for anchor in anchors)

    def _number(self, given: TrackedTuple) -> int:
        number = self._numbers.get(given)
        if number is None:
            self._count += 1
            number = self._numbers[given] = self._count
        return number


def _unpickled(values: bytes) -> Any:
    """Return the values of a tuple that was sent, or why they cannot be unpickled."""
    try:
        return pickle.loads(values)  # noqa: S301 - our own tasks' tuples
    except Exception as error:  # noqa: BLE001 - its task tells; here it is only shown
        return f"{type(error).__name__}: {error}"


def _values(values: dict[str, Any]) -> str:
    return cut(", ".join(f"{name}={value!r}" for name, value in values.items()))


def _task(context: TopologyContext) -> str:
    return f"{context.component}#{context.task}"


def _owner(made: TrackedTuple) -> str:
    return _task(made.owner.context)
