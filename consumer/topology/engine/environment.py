"""What the tasks of one executor share."""

from __future__ import annotations

import itertools
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from sequitur.consumer.topology.api.stable_hash import hash_of_version
from sequitur.consumer.topology.api.ticks import Moment
from sequitur.consumer.topology.transactional.attempt import BatchOutcome, Phase, Transaction
from sequitur.errors import BoltTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sequitur.consumer.topology.api.bolt import TopologyContext
    from sequitur.consumer.topology.api.collector import TaskId
    from sequitur.consumer.topology.api.hooks import TreeFailure
    from sequitur.consumer.topology.api.topology import Topology
    from sequitur.consumer.topology.api.tuple import Stream
    from sequitur.consumer.topology.engine.plan import Placement, Rules
    from sequitur.consumer.topology.engine.runner import Runner
    from sequitur.consumer.topology.engine.targets import Sent
    from sequitur.consumer.topology.engine.trees import TrackedTuple, TreeTracker
    from sequitur.consumer.topology.settling.root import Order, Root


# Tracks whether user code or engine code runs: only user code is ever interrupted.
#
# A call that overruns is ended by an exception which a timer's signal raises in it. Python runs a
# signal's handler between any two instructions of the first thread, so what the handler raises may
# come out of any line. Out of a line of ours it would leave work half done: records taken from a
# list and not yet written, an edge that is in no tree. So it is known at each moment whether the
# user's code runs. What a bolt calls of ours in between (`emit`, `ack`, `fail`) is our code; a
# call that is found to overrun there is ended on the way back to the bolt.

LONGEST_DETAIL: Final = 16 << 10


class UserCode:
    """The call of user code that runs: of several that are in the middle, the last.

    A call overruns by its own time. While others run, it is left: that is found by looks, each of
    which counts the time since the one before for the call that it finds.
    """

    __slots__ = ("_left", "_looked_s", "_own_s", "_seen", "call", "overdue", "running")

    def __init__(self) -> None:
        self.call: Any = None
        self.running: Any = None
        self.overdue: Any = None
        self._seen: Any = None
        self._own_s = 0.0  # of the call that was seen last, since it was first seen
        self._looked_s = 0.0
        self._left: list[tuple[Any, float]] = []

    def look(self, now_s: float, timeout_s: float) -> None:
        """End the call if it overruns: at once in the user's code, else on the way back to it."""
        call, passed_s = self.call, now_s - self._looked_s
        self._looked_s = now_s
        if call is not self._seen:
            self._seen, self._own_s = call, 0.0
            return
        self._own_s += passed_s
        if call is not None and self._own_s >= timeout_s:
            if self.running is None:
                self.overdue = call
                return
            # A bolt that goes on all the same is interrupted again.
            self._own_s = 0.0
            raise BoltTimeoutError

    def leave(self) -> None:
        """Leave the call for others, which end before it goes on."""
        self._left.append((self.call, self._own_s if self._seen is self.call else 0.0))

    def come_back(self) -> None:
        """Come back to the call that was left last; our code runs still."""
        self.call, self._own_s = self._left.pop()
        self._seen, self.running = self.call, None

    def bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Bound a function of the user's by the time-out, also outside of a call of user code.

        Within such a call it is a part of it.
        """

        def call(*given: Any) -> Any:
            if self.running is not None:
                return function(*given)
            before = self.call
            self.call = self.running = object()
            try:
                return function(*given)
            finally:
                self.running, self.call = None, before

        return call

    def go_on(self, call: Any) -> None:
        """Return to user code after a call of ours: end its call if that overran meanwhile."""
        overdue, self.overdue = self.overdue, None
        self.running = call
        if call is not None and overdue is call:
            self._seen = None
            raise BoltTimeoutError


def finish_words(component: str, detail: str) -> str:
    """Say in an event's failure what a bolt's `finish_batch` raised."""
    return f"finish_batch of {component!r}: {detail}"[:LONGEST_DETAIL]


def detail_of(error: BaseException) -> str:
    """Return an exception as text, the frames of the executor left out."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "consumer/topology/" not in frame.filename]
    shown = traceback.format_list(own) + traceback.format_exception_only(error)
    return "".join(shown)[-LONGEST_DETAIL:]


class Trace(Protocol):
    """Gets each step of each tree; the roots' values are those after the step.

    Each task has a root of its own for a tree, with what it knows of it.
    """

    def begun(self, root: Root, values: tuple[Any, ...]) -> None:
        """An event is about to be fed."""

    def given_out(self, root: Root, made: TrackedTuple) -> None:
        """The spout emitted a tuple to a task."""

    def emitted(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], made: TrackedTuple
    ) -> None:
        """A bolt emitted a tuple to a task."""

    def sent(  # noqa: PLR0917 - each is of a type of its own
        self,
        by: TopologyContext | None,
        anchors: Sequence[TrackedTuple],
        parent: TrackedTuple | None,
        stream: Stream,
        sent: Sent,
        to: TaskId,
    ) -> None:
        """A bolt emitted a tuple to a task that runs elsewhere; where `by` is None, the spout did.

        Its parent is the tuple that it was emitted for, also without an anchor.
        """

    def received(self, sent: Sent, made: TrackedTuple) -> None:
        """A tuple that was sent has come to its task."""

    def written(
        self, by: TopologyContext, anchors: Sequence[TrackedTuple], output: str, record: Any
    ) -> None:
        """A bolt emitted a tuple to an output."""

    def acked(self, by: TopologyContext, given: TrackedTuple) -> None:
        """A bolt acked a tuple."""

    def failed(self, by: TopologyContext, given: TrackedTuple, failure: TreeFailure) -> None:
        """A bolt failed a tuple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What an executor's batch begins with."""

    moment: Moment = field(default_factory=Moment)
    # what bolts kept in the batch before, pickled, by component and task
    states: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    transaction: Transaction | None = None  # the try at a transaction; None in other topologies
    random: float = 0.5  # drawn from [0, 1): by it the retries of the batch are spread
    # numbers what belongs to a batch and to no event: 63 bits, each once in a step
    numbers: Iterator[int] = field(default_factory=itertools.count)
    # numbers the tuples that tasks make by themselves; None if these are not tracked
    offsets: Iterator[int] | None = None
    # by key of a task, the order of the last such tuple: none stands before it
    last_made: Mapping[bytes, Order] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Environment:
    """What the tasks of one executor share."""

    topology: Topology
    placement: Placement
    rules: Rules
    start: Start
    clock: Callable[[], float]
    next_id: Callable[[], int]  # gives 64 random bits a call
    trees: TreeTracker  # acks and fails tuples
    # gives them to their tasks while a task is in the middle of a call
    follow: Callable[[Runner], None]
    trace: Trace | None = None  # gets each step of each tree
    runs_inline: bool = False  # whether calls that might run side by side are run one by one
    # tuples that are to be given to their tasks
    queue: deque[TrackedTuple] = field(default_factory=deque)
    # roots of each output of several events that ackers decide on
    shared: list[tuple[Root, ...]] = field(default_factory=list)
    user_code: UserCode = field(default_factory=UserCode)  # whose code runs
    # bolts whose `finish_batch` raised, and what
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    # roots of which a bolt was given a tuple whose `finish_batch` is still to come
    awaited: set[Root] = field(default_factory=set)
    # ids of the roots of what such a `finish_batch` had emitted without an anchor
    dropped: list[int] = field(default_factory=list)
    # roots of tuples that tasks make by themselves, until the executor takes them in
    made: list[Root] = field(default_factory=list)
    # by key of a task, the order of the last such tuple: none stands before it
    last_made: dict[bytes, Order] = field(default_factory=dict)
    # those of a `finish_batch` that raised: they count for nothing
    undone: list[Root] = field(default_factory=list)
    outcome: BatchOutcome = field(default_factory=BatchOutcome)  # how a try at a transaction went

    @property
    def transaction(self) -> Transaction | None:
        """The try at a transaction; None in other topologies."""
        return self.start.transaction

    @property
    def is_commit(self) -> bool:
        """Whether a transaction is in its commit phase."""
        return self.transaction is not None and self.transaction.phase is Phase.COMMIT

    @property
    def limit_s(self) -> float | None:
        """So long a call may take, in seconds of the clock, where nobody ends calls that overrun.

        They fail once they are over. What was prepared is committed, however long it takes.
        """
        return None if self.is_commit or not self.runs_inline else self.rules.call_timeout_s

    @property
    def hashed(self) -> Callable[[Any], int]:
        """The hash by which values choose tasks."""
        return hash_of_version(self.rules.hash_version)
