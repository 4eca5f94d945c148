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
    """What a task did.

    Attributes:
        taken: New events it took in.
        has_more: Whether there are new events behind its window.
        acked: Events that are done, and tuples that tasks have made by themselves.
        failed: Attempts that failed, by reason.
        dead: Events given up.
        waiting: Events that wait.
        made: Tuples that tasks have made by themselves.
        last_made: By key of a task, the order of the last of these.
        made_tried: Such tuples that waited, and were tried again.
        made_left: Those of both that are not done.
        made_dead: Such tuples that are given up.
        made_waiting: Such tuples that wait.
        next_due_ms: When the next of these is due; None without any.
        least_waiting_ms: Least event time of events that wait; None without any.
        late_acks: Acks that came too late.
        untracked_failures: Failures of untracked trees.
        emitted: Records that bolts emitted.
        outputs: Records that were written of these.
        finish_failures: What `finish_batch` of bolts raised.
        files: The records, by the name of their place.
        dead_file: The dead letters.
        waiting_file: The events that wait.
        unfinished_file: Ids of roots that are not done.
        states: What bolts keep, by component and task.
        roots_file: The events it gave out, where ackers decide.
        made_file: The tuples that its tasks have made by themselves, where ackers decide.
        made_roots_file: Their roots, and those that are undone.
        undone: Ids of roots of such tuples that count for nothing.
        behind: By key of a task, the order of the last such tuple of it that waited.
        acks_file: What it knows of roots, where ackers decide.
        failures: Why roots failed, where ackers decide.
        shared: Roots of outputs of several, where ackers decide.
        blocked: By key, the first event that waits, of a transaction's task.
        tuples_file: The tuples it sent.
        tuples: Where in it those for a component's task stand.
        has_to_blame: Whether events have no further attempt by what a `finish_batch` raised for
            several: some of them may be innocent.
        is_rehearsal: Whether what it left counts for nothing, but that events failed in it.
        batch: How the try at a transaction went here; None in other topologies.
    """

    taken: int = 0
    has_more: bool = False
    acked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    waiting: int = 0
    made: int = 0
    last_made: Mapping[bytes, Order] = field(default_factory=dict)
    made_tried: int = 0
    made_left: int = 0
    made_dead: int = 0
    made_waiting: int = 0
    next_due_ms: int | None = None
    least_waiting_ms: int | None = None
    late_acks: int = 0
    untracked_failures: int = 0
    emitted: int = 0
    outputs: int = 0
    finish_failures: list[tuple[str, str]] = field(default_factory=list)
    files: Mapping[str, Handle] = field(default_factory=dict)
    dead_file: Handle = None
    waiting_file: Handle = None
    unfinished_file: Handle = None
    states: Mapping[tuple[str, int], Handle] = field(default_factory=dict)
    roots_file: Handle = None
    made_file: Handle = None
    made_roots_file: Handle = None
    undone: frozenset[int] = frozenset()
    behind: Mapping[bytes, Order] = field(default_factory=dict)
    acks_file: Handle = None
    failures: dict[int, TreeFailure] = field(default_factory=dict)
    shared: list[tuple[int, ...]] = field(default_factory=list)
    blocked: Mapping[bytes, Order] = field(default_factory=dict)
    tuples_file: Handle = None
    tuples: Mapping[tuple[str, int], Any] = field(default_factory=dict)
    has_to_blame: bool = False
    is_rehearsal: bool = False
    batch: BatchOutcome | None = None
