"""What the tasks of one executor share."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequitur.consumer.topology.api.stable_hash import stable_hash
from sequitur.consumer.topology.engine.user_code import UserCode

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from sequitur.consumer.topology.engine.runner import Runner
    from sequitur.consumer.topology.engine.trace import Trace
    from sequitur.consumer.topology.engine.tracked import TrackedTuple
    from sequitur.consumer.topology.engine.trees import TreeTracker
    from sequitur.consumer.topology.settling.root import Order, Root
    from sequitur.consumer.topology.transactional.phase import BatchOutcome, Transaction


@dataclass(frozen=True, slots=True)
class Environment:
    """What the tasks of one executor share."""

    clock: Callable[[], float]
    next_id: Callable[[], int]  # gives 64 random bits a call
    trees: TreeTracker  # acks and fails tuples
    queue: deque[TrackedTuple]  # tuples that are to be given to their tasks
    # gives them to their tasks while a task is in the middle of a call
    follow: Callable[[Runner], None]
    trace: Trace | None = None  # gets each step of each tree
    runs_inline: bool = False  # whether calls that might run side by side are run one by one
    # so long a call may take, in seconds of the clock, where nobody ends calls that overrun: they
    # fail once they are over. None where they are ended
    limit_s: float | None = None
    user_code: UserCode = field(default_factory=UserCode)  # whose code runs
    # bolts whose `finish_batch` raised, and what
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    # roots of which a bolt was given a tuple whose `finish_batch` is still to come
    awaited: set[Root] = field(default_factory=set)
    # numbers what belongs to a batch and to no event: 63 bits, each once in a step
    numbers: Iterator[int] = field(default_factory=itertools.count)
    # ids of the roots of what such a `finish_batch` had emitted without an anchor
    dropped: list[int] = field(default_factory=list)
    # numbers the tuples that tasks make by themselves; None if these are not tracked
    offsets: Iterator[int] | None = None
    # roots of such tuples, until the executor takes them in
    made: list[Root] = field(default_factory=list)
    # by key of a task, the order of the last such tuple: none stands before it
    last_made: dict[bytes, Order] = field(default_factory=dict)
    # those of a `finish_batch` that raised: they count for nothing
    undone: list[Root] = field(default_factory=list)
    transaction: Transaction | None = None  # the try at a transaction; None in other topologies
    outcome: BatchOutcome | None = None  # how it went here; None in other topologies
    hashed: Callable[[Any], int] = stable_hash  # the hash by which values choose tasks
