"""Tuple trees to look at: each step with the root's XOR value behind it, as text and as a picture.

:meth:`TupleTree.as_text` gives a line a step, :meth:`TupleTree.to_dot` the language of Graphviz,
and :meth:`TupleTree.to_png` a picture, with or without Graphviz at hand.
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from sequitur.base.extras import load
from sequitur.base.text import named
from sequitur.consumer.topology.api.tuple import EventValues
from sequitur.consumer.topology.settling.root import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.builder import TreeFailure
    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.plan import Sent
    from sequitur.consumer.topology.engine.trees import TrackedTuple
    from sequitur.consumer.topology.settling.root import Root


_LONGEST_VALUES: Final = 60
_PICTURE: Final = "a picture of a tree"
_COLOURS: Final = {"acked": "#3a9a6b", "failed": "#b0413e", "open": "#888888", "event": "#3b6fb6"}
_INCH_A_LAYER: Final = 2.6
_INCH_A_ROW: Final = 0.9
_LARGEST_INCHES: Final = 60.0


class StepKind(StrEnum):
    """The kind of a step in a tuple tree."""

    GIVEN = "gives"
    EMITTED = "emits"
    WRITTEN = "writes"
    ACKED = "acks"
    FAILED = "fails"


@dataclass(frozen=True, slots=True)
class TreeStep:
    """A step of a tree.

    Attributes:
        kind: What happened.
        by: Who did it: a component, a bolt with the number of its task.
        number: Number of the tuple in its batch, from 1. None for a record of an output.
        to: Who got it. Empty for an ack.
        anchors: Numbers of the tuples it is anchored to.
        edge: Its edge in this tree. None if it has none, as an unanchored tuple.
        value: The tree's XOR value after the step.
        shown: Values, or why the tuple failed.
    """

    kind: StepKind
    by: str
    number: int | None
    to: str
    anchors: tuple[int, ...]
    edge: int | None
    value: int
    shown: str


@dataclass(slots=True)
class TupleTree:
    """The tree of an event, in one of its attempts.

    Attributes:
        event: The event.
        root_id: Its root's id.
        attempt: 1 the first time.
        is_tracked: Whether it is tracked.
        steps: The steps, in order.
        verdict: The outcome: acked, failed with the reason, held, or untracked.
    """

    event: EventValues
    root_id: int
    attempt: int
    is_tracked: bool = True
    steps: list[TreeStep] = field(default_factory=list)
    verdict: str = "open"

    @property
    def values(self) -> list[int]:
        """The XOR value after each step."""
        return [step.value for step in self.steps]

    @property
    def title(self) -> str:
        """The event, the attempt and the outcome."""
        place = f"{self.event.topic}/{self.event.partition}@{self.event.offset}"
        return f"{place} key={self.event.key!r}, attempt {self.attempt}: {self.verdict}"

    def as_text(self, *, binary: bool = False) -> str:
        """Return a line per step: who did what, the edge, and the XOR value after it.

        Args:
            binary: Show edges and values in binary, as is good for short ones; else in hex.
        """
        show = self._number_format(binary=binary)
        done = [_sentence(step) for step in self.steps]
        width = max((len(one) for one in done), default=0)
        blank = " " * len(f"edge {show(0)}")
        lines = [self.title]
        for at, (step, one) in enumerate(zip(self.steps, done, strict=True), 1):
            edge = blank if step.edge is None else f"edge {show(step.edge)}"
            lines.append(f"{at:>4}  {one:<{width}}  {edge}  value {show(step.value)}")
        return "\n".join(lines)

    def to_dot(self, *, binary: bool = False) -> str:
        """Return the tree in the language of Graphviz: tuples as nodes, anchors as arrows."""
        show = self._number_format(binary=binary)
        lines = [
            "digraph tree {",
            f"  label={_quoted(self.title)}; labelloc=t; rankdir=LR;",
            '  node [shape=box, style=rounded, fontname="sans-serif", fontsize=10];',
            '  edge [fontname="monospace", fontsize=9];',
        ]
        nodes, links = self._graph()
        for node in nodes:
            shape = ", shape=note" if node.is_output else ""
            lines.append(
                f"  {node.name} [label={_quoted(node.label)}, color={_quoted(node.colour)}{shape}];"
            )
        for link in links:
            label = "" if link.edge is None else f" [label={_quoted(show(link.edge))}]"
            dashed = "" if link.is_anchor else " [style=dashed]"
            lines.append(f"  {link.start} -> {link.end}{label}{dashed};")
        return "\n".join([*lines, "}", ""])

    def to_png(self, path: Path, *, binary: bool = False) -> None:
        """Draw the tree: by Graphviz's `dot` where it is installed, otherwise by matplotlib.

        Args:
            path: The picture.
            binary: As for `as_text`.
        """
        program = shutil.which("dot")
        if program is not None:
            dot = self.to_dot(binary=binary).encode()
            subprocess.run([program, "-Tpng", "-o", str(path)], input=dot, check=True)
            return
        nodes, links = self._graph()
        _draw(path, self.title, nodes, links, self._number_format(binary=binary))

    def _number_format(self, *, binary: bool) -> Any:
        if not binary:
            return lambda number: f"{number:016x}"
        numbers = [step.value for step in self.steps]
        numbers += [step.edge for step in self.steps if step.edge is not None]
        width = max([4, *(number.bit_length() for number in numbers)])
        return lambda number: f"{number:0{width}b}"

    def _graph(self) -> tuple[list[_Node], list[_Link]]:
        ended = {
            step.number: step.kind.name.lower()
            for step in self.steps
            if step.kind in {StepKind.ACKED, StepKind.FAILED}
        }
        key, value = self.event.key, self.event.value
        nodes = [_Node("event", cut(f"event\n{key!r}\n{value!r}"), _COLOURS["event"], 0)]
        links: list[_Link] = []
        layers = {"event": 0}
        for step in self.steps:
            if step.kind in {StepKind.ACKED, StepKind.FAILED}:
                continue
            name = f"tuple{step.number}" if step.number is not None else f"record{len(nodes)}"
            starts = [f"tuple{one}" for one in step.anchors if f"tuple{one}" in layers]
            is_anchor = bool(starts) or step.kind is StepKind.GIVEN
            starts = starts or ["event"]
            layers[name] = 1 + max(layers[one] for one in starts)
            state = "acked" if step.number is None else ended.get(step.number, "open")
            number = "" if step.number is None else f"#{step.number} "
            label = f"{number}{step.to}\n{step.shown}"
            is_output = step.kind is StepKind.WRITTEN
            nodes.append(_Node(name, label, _COLOURS[state], layers[name], is_output))
            links += [_Link(start, name, step.edge, is_anchor) for start in dict.fromkeys(starts)]
        return nodes, links


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    label: str
    colour: str
    layer: int
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class _Link:
    start: str
    end: str
    edge: int | None
    is_anchor: bool


def _sentence(step: TreeStep) -> str:
    if step.kind is StepKind.ACKED:
        return f"{step.by} acks #{step.number}"
    if step.kind is StepKind.FAILED:
        return f"{step.by} fails #{step.number}: {step.shown}"
    what = "a record" if step.number is None else f"#{step.number}"
    anchored = ""
    if step.anchors:
        anchored = ", anchored to " + ", ".join(f"#{one}" for one in step.anchors)
    elif step.kind is not StepKind.GIVEN:
        anchored = ", unanchored"
    return f"{step.by} {step.kind} {what} to {step.to}{anchored}: {step.shown}"


def cut(text: str) -> str:
    """Return a text for display. A long one is cut."""
    return text if len(text) <= _LONGEST_VALUES else text[: _LONGEST_VALUES - 3] + "..."


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _draw(
    path: Path, title: str, nodes: Sequence[_Node], links: Sequence[_Link], show: Any
) -> None:
    """Draw layers from left to right, each node in the next free row of its layer."""
    # Loaded here, as a plotting library takes a second to load and is rarely wanted.
    agg = load("matplotlib.backends.backend_agg", _PICTURE)

    rows: dict[int, int] = {}
    places: dict[str, tuple[float, float]] = {}
    for node in nodes:
        row = rows[node.layer] = rows.get(node.layer, -1) + 1
        places[node.name] = (float(node.layer), -float(row))
    layers, most = max(rows) + 1, max(rows.values()) + 1
    size = (
        min(_INCH_A_LAYER * layers + 1, _LARGEST_INCHES),
        min(_INCH_A_ROW * most + 1, _LARGEST_INCHES),
    )
    figure = load("matplotlib.figure", _PICTURE).Figure(figsize=size)
    agg.FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 0.92))
    axes.set_xlim(-0.5, layers - 0.5)
    axes.set_ylim(-most + 0.3, 0.7)
    axes.axis("off")
    figure.suptitle(title, fontsize=9)
    for link in links:
        (x, y), (end_x, end_y) = places[link.start], places[link.end]
        line = {"arrowstyle": "->", "color": "#666666", "shrinkA": 30, "shrinkB": 30}
        line["linestyle"] = "-" if link.is_anchor else "--"
        axes.annotate("", xy=(end_x, end_y), xytext=(x, y), arrowprops=line)
        if link.edge is not None:
            label = show(link.edge)
            axes.text(
                (x + end_x) / 2, (y + end_y) / 2, label, fontsize=6, family="monospace",
                ha="center", va="center", bbox={"fc": "white", "ec": "none", "pad": 1},
            )  # fmt: skip
    for node in nodes:
        box = {"boxstyle": "square" if node.is_output else "round", "fc": "white"}
        box["ec"] = node.colour
        x, y = places[node.name]
        label = node.label.replace("$", r"\$")  # no formula
        axes.text(x, y, label, fontsize=7, ha="center", va="center", bbox=box)
    figure.savefig(path)


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
        """Note that the tuple with a number comes to its task next."""
        self._arriving[id(sent)] = sent, number

    def begun(self, root: Root, values: tuple[Any, ...]) -> None:
        tree = TupleTree(EventValues(*values), root.id, root.attempt, root.is_tracked)
        self.trees.append(tree)
        self._trees[root.id] = tree

    def given_out(self, root: Root, made: TrackedTuple) -> None:
        number, to = self._number(made), _owner(made)
        self._give(root, made.edge, number, made.source, to, made.values)

    def emitted(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], made: TrackedTuple
    ) -> None:
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
        _, number = self._arriving.pop(id(sent))
        self._numbers[made] = number
        for root, _ in made.trees():
            if not root.id:
                self._seen_in[root] = self._shown_in.get(number, ())

    def written(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], output: str, record: Any
    ) -> None:
        shown = cut(f"key={record[0]!r}, value={record[1]!r}")
        numbers = self._numbers_of(anchors)
        places = (place for anchor in anchors for place in self._places(anchor))
        for tree, value in {id(tree): (tree, value) for tree, _, value in places}.values():
            tree.steps.append(
                TreeStep(StepKind.WRITTEN, _task(by), None, output, numbers, None, value, shown)
            )

    def acked(self, by: TopologyContext, given: TrackedTuple) -> None:
        self._ended(StepKind.ACKED, by, given, "")

    def failed(self, by: TopologyContext, given: TrackedTuple, failure: TreeFailure) -> None:
        last = failure.detail.rstrip().rpartition("\n")[2]
        self._ended(StepKind.FAILED, by, given, cut(f"{failure.reason}: {last}".rstrip(": ")))

    def _give(  # noqa: PLR0917 - private, and each is of a type of its own
        self, root: Root, edge: int, number: int, spout: str, to: str, values: Any
    ) -> None:
        if is_own(root.event):
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
        """Return a tree's value, after its root in one task has changed to a new value."""
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
    """Return the values of a sent tuple, or why they cannot be unpickled."""
    try:
        return pickle.loads(values)  # noqa: S301 - our own tasks' tuples
    except Exception as error:  # noqa: BLE001 - its task tells; here it is only shown
        return named(error)


def _values(values: dict[str, Any]) -> str:
    return cut(", ".join(f"{name}={value!r}" for name, value in values.items()))


def _task(context: TopologyContext) -> str:
    return f"{context.component}#{context.task}"


def _owner(made: TrackedTuple) -> str:
    return _task(made.owner.context)
