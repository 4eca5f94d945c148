"""Divides a topology into stages: bolts that run in one process.

The ordered stream has a task for each of its partitions; equal keys are in one of them. A bolt
whose groupings keep tuples local runs there, too: tuples then go from one to the other without
leaving the process. All other bolts begin a stage of their own.

In a transactional topology so do bolts that keep something of their batch, and those that read
them: each of them can be run again by itself, from what it was sent.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sequitur.consumer.topology.api.bolt import keeps_of_batch
from sequitur.consumer.topology.api.stable_hash import HASH_VERSION
from sequitur.consumer.topology.settling.outcomes import RetryPolicy
from sequitur.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sequitur.consumer.topology.api.topology import Component, Topology
    from sequitur.kafka.record_format import RecordLimit


_IDS_AT_ONCE: Final = 1 << 12


class Ordering(StrEnum):
    """Which events a failed event holds back."""

    KEY = "key"
    """Later events of its key."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an executor."""

    call_timeout_s: float = 30.0  # a call that takes longer fails
    ordering: Ordering = Ordering.KEY  # which events a failed event holds back
    # when a failed event is tried again; one that is given up holds back no other
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    # open trees, at most: then the batch is finished first. None: no bound
    max_spout_pending: int | None = None
    hash_version: int = HASH_VERSION  # of the hash by which values choose tasks
    # largest record of the topics of outputs, by output; of others, a broker's default
    limits: Mapping[str, RecordLimit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """The tasks that run in this process."""

    tasks: Mapping[str, int]  # how many tasks each component has
    # the numbers of those that run here, of each component with any
    here: Mapping[str, Sequence[int]]
    number: int = 0  # number of this process among those with the same components


def random_ids(seed: Any) -> Callable[[], int]:
    """Return a function that draws 64-bit random numbers; never 0, which would be no edge."""
    random = np.random.default_rng(seed)

    def drawn() -> list[int]:
        ids: list[int] = random.integers(1, 1 << 64, _IDS_AT_ONCE, dtype=np.uint64).tolist()
        return ids

    return itertools.chain.from_iterable(iter(drawn, None)).__next__


STAGE_BITS: Final = 10
TASK_BITS: Final = 12
"""Records are numbered by stage and task: there are as many as fit into so many bits."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Components whose tasks of one number run in one process."""

    number: int
    # their names, each behind those it reads; the spout is in the first stage
    components: tuple[str, ...]
    tasks: int
    # whether it takes part in the commit phase of a transaction, with all of them
    is_commit: bool = False
    # whether it is of one bolt, which keeps something of a transaction's batch
    keeps_batch: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Where all tasks run."""

    stages: tuple[Stage, ...]  # the stages; the first has the spout
    tasks: Mapping[str, int]  # how many tasks each component has

    @property
    def is_local(self) -> bool:
        """Whether no tuple ever leaves its process."""
        return len(self.stages) == 1

    def placement(self, stage: Stage, task: int) -> Placement:
        """Return what runs in a task of a stage."""
        return Placement(self.tasks, dict.fromkeys(stage.components, (task,)), task)


def plan(topology: Topology, partitions: int, parallelism: Mapping[str, int] | None = None) -> Plan:
    """Divide a topology into stages."""
    asked = {one.id: one.parallelism for one in topology.bolts}
    asked |= {name: asked.get(name) or tasks for name, tasks in (parallelism or {}).items()}
    members: list[list[str]] = [[topology.spout.id]]
    tasks = [partitions]
    of = {topology.spout.id: 0}
    commit_phase, keeping = topology.commit_phase, _keeping(topology)
    for component in topology.bolts:
        stage = _stage_of_inputs(component, of)
        first = None if stage is None else members[stage][0]
        begins_commit = component.id in commit_phase and first not in commit_phase
        stays = stage is not None and _stays(
            component, topology.spout.id, tasks[stage], asked[component.id]
        )
        if stage is None or not stays or begins_commit or {component.id, first} & keeping:
            beside = stage if stays and not begins_commit else None
            tasks.append(asked[component.id] or partitions if beside is None else tasks[beside])
            stage = len(members)
            members.append([])
        members[stage].append(component.id)
        of[component.id] = stage
    _check_numbers(topology, members, tasks)
    stages = tuple(
        Stage(number, tuple(names), tasks[number], names[0] in commit_phase, names[0] in keeping)
        for number, names in enumerate(members)
    )
    return Plan(stages, {name: tasks[stage] for name, stage in of.items()})


def _keeping(topology: Topology) -> set[str]:
    """Return the bolts that keep something of a transaction's batch before it is committed."""
    if not topology.is_transactional:
        return set()
    return {
        one.id
        for one in topology.bolts
        if one.id not in topology.commit_phase and one.bolt is not None and keeps_of_batch(one.bolt)
    }


def _check_numbers(
    topology: Topology, members: Sequence[Sequence[str]], tasks: Sequence[int]
) -> None:
    stages, most = 1 << STAGE_BITS, 1 << TASK_BITS
    if len(members) > stages:
        raise TopologyError(
            f"topology {topology.name!r} has {len(members)} stages, which is more than {stages}: "
            "let bolts run where their input is (local_grouping), or make fewer of them"
        )
    for names, number in zip(members, tasks, strict=True):
        if number > most:
            raise TopologyError(
                f"{names[0]!r} would have {number} tasks, which is more than {most}: give it "
                "fewer, or the ordered stream fewer partitions"
            )


def plan_apart(
    topology: Topology, partitions: int, parallelism: Mapping[str, int] | None = None
) -> Plan:
    """As `plan`, with the stages that a job with more partitions has than any bolt has tasks.

    In such a job most bolts are in stages of their own: what goes wrong on the way between stages
    goes wrong here, too, however few tasks there are.
    """
    asked = {name: tasks for name, tasks in (parallelism or {}).items() if tasks != partitions}
    declared = [one.parallelism or 1 for one in topology.bolts]
    most = 1 + max([partitions, *declared, *asked.values()])
    found = plan(topology, most, asked)
    stages = tuple(
        replace(one, tasks=partitions) if one.tasks == most else one for one in found.stages
    )
    return Plan(stages, {name: stage.tasks for stage in stages for name in stage.components})


def _stage_of_inputs(component: Component, of: Mapping[str, int]) -> int | None:
    stages = {of[one.component] for one in component.inputs}
    return stages.pop() if len(stages) == 1 else None


def _stays(component: Component, spout: str, tasks: int, asked: int | None) -> bool:
    """Return whether a bolt can run where its input is."""
    if asked not in {None, tasks}:
        return False
    return tasks == 1 or all(
        one.grouping.keeps_local(of_spout=one.component == spout) for one in component.inputs
    )
