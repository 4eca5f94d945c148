"""What a task of a step did, and where it left what others read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.topology.api.failure import TreeFailure
    from sequitur.consumer.topology.settling.root import Order
    from sequitur.consumer.topology.step.batch import Handle
    from sequitur.consumer.topology.transactional.phase import BatchOutcome


@dataclass(slots=True)
class TaskResult:
    """What a task did."""

    taken: int = 0  # new events it took in
    has_more: bool = False  # whether there are new events behind its window
    acked: int = 0  # events that are done, and tuples that tasks have made by themselves
    failed: dict[str, int] = field(default_factory=dict)  # attempts that failed, by reason
    dead: int = 0  # events given up
    waiting: int = 0  # events that wait
    made: int = 0  # tuples that tasks have made by themselves
    # by key of a task, the order of the last of these
    last_made: Mapping[bytes, Order] = field(default_factory=dict)
    made_tried: int = 0  # such tuples that waited, and were tried again
    made_left: int = 0  # those of both that are not done
    made_dead: int = 0  # such tuples that are given up
    made_waiting: int = 0  # such tuples that wait
    next_due_ms: int | None = None  # when the next of these is due; None without any
    least_waiting_ms: int | None = None  # least event time of events that wait; None without any
    late_acks: int = 0
    untracked_failures: int = 0
    emitted: int = 0  # records that bolts emitted
    outputs: int = 0  # records that were written of these
    # what `finish_batch` of bolts raised
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    # the records, by the name of their place
    files: Mapping[str, Handle] = field(default_factory=dict)
    dead_file: Handle = None
    waiting_file: Handle = None  # the events that wait
    unfinished_file: Handle = None  # ids of roots that are not done
    # what bolts keep, by component and task
    states: Mapping[tuple[str, int], Handle] = field(default_factory=dict)
    roots_file: Handle = None  # the events it gave out, where ackers decide
    # the tuples that its tasks have made by themselves, where ackers decide
    made_file: Handle = None
    made_roots_file: Handle = None  # their roots, and those that are undone
    undone: frozenset[int] = frozenset()  # ids of roots of such tuples that count for nothing
    # by key of a task, the order of the last such tuple of it that waited
    behind: Mapping[bytes, Order] = field(default_factory=dict)
    acks_file: Handle = None  # what it knows of roots, where ackers decide
    # why roots failed, where ackers decide
    failures: dict[int, TreeFailure] = field(default_factory=dict)
    # roots of outputs of several, where ackers decide
    shared: list[tuple[int, ...]] = field(default_factory=list)
    # by key, the first event that waits, of a transaction's task
    blocked: Mapping[bytes, Order] = field(default_factory=dict)
    tuples_file: Handle = None
    # where in it those for a component's task stand
    tuples: Mapping[tuple[str, int], Any] = field(default_factory=dict)
    # whether events have no further attempt by what a `finish_batch` raised for several: some of
    # them may be innocent
    has_to_blame: bool = False
    # whether what it left counts for nothing, but that events failed in it
    is_rehearsal: bool = False
    # how the try at a transaction went here; None in other topologies
    batch: BatchOutcome | None = None
