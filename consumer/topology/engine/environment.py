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
    """What the tasks of one executor share.

    Attributes:
        clock: Seconds.
        next_id: Gives 64 random bits a call.
        trees: Acks and fails tuples.
        queue: Tuples that are to be given to their tasks.
        follow: Gives them to their tasks while a task is in the middle of a call.
        trace: Gets each step of each tree.
        runs_inline: Whether calls that might run side by side are run one by one.
        limit_s: So long a call may take, in seconds of the clock, where nobody ends calls that
            overrun: they fail once they are over. None where they are ended.
        user_code: Whose code runs.
        finish_failures: Bolts whose `finish_batch` raised, and what.
        awaited: Roots of which a bolt was given a tuple whose `finish_batch` is still to come.
        numbers: Numbers what belongs to a batch and to no event: 63 bits, each once in a step.
        dropped: Ids of the roots of what such a `finish_batch` had emitted without an anchor.
        offsets: Numbers the tuples that tasks make by themselves; None if these are not tracked.
        made: Roots of such tuples, until the executor takes them in.
        last_made: By key of a task, the order of the last such tuple: none stands before it.
        undone: Those of a `finish_batch` that raised: they count for nothing.
        transaction: The try at a transaction; None in other topologies.
        outcome: How it went here; None in other topologies.
        hashed: The hash by which values choose tasks.
    """

    clock: Callable[[], float]
    next_id: Callable[[], int]
    trees: TreeTracker
    queue: deque[TrackedTuple]
    follow: Callable[[Runner], None]
    trace: Trace | None = None
    runs_inline: bool = False
    limit_s: float | None = None
    user_code: UserCode = field(default_factory=UserCode)
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    awaited: set[Root] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    dropped: list[int] = field(default_factory=list)
    offsets: Iterator[int] | None = None
    made: list[Root] = field(default_factory=list)
    last_made: dict[bytes, Order] = field(default_factory=dict)
    undone: list[Root] = field(default_factory=list)
    transaction: Transaction | None = None
    outcome: BatchOutcome | None = None
    hashed: Callable[[Any], int] = stable_hash
