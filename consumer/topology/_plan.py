"""Which bolts run in one process: stages, between which tuples are exchanged.

The ordered stream has a task for each of its partitions; equal keys are in one of them. A bolt that
is content with what it gets there runs there, too: a tuple then goes from one to the other without
leaving the process. All others begin a stage of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumer.topology._groupings import GroupingKind
from consumer.topology._rules import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consumer.topology._topology import Component, Subscription, Topology

_KEY = ("key",)


@dataclass(frozen=True, slots=True)
class Stage:
    """Components whose tasks of one number run in one process.

    Attributes:
        number: Stages are run in this order.
        components: Their names, each behind those it reads; the spout is in the first stage.
        tasks: How many tasks each of them has.
    """

    number: int
    components: tuple[str, ...]
    tasks: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Where all tasks run.

    Attributes:
        stages: The stages; the first has the spout.
        tasks: How many tasks each component has.
    """

    stages: tuple[Stage, ...]
    tasks: Mapping[str, int]

    @property
    def is_local(self) -> bool:
        """Whether no tuple ever leaves its process."""
        return len(self.stages) == 1

    def placement(self, stage: Stage, task: int) -> Placement:
        """What runs in a task of a stage."""
        return Placement(self.tasks, dict.fromkeys(stage.components, (task,)), task)


def plan(topology: Topology, partitions: int) -> Plan:
    """Divide a topology into stages.

    Args:
        topology: The topology.
        partitions: Tasks of the ordered stream.
    """
    members: list[list[str]] = [[topology.spout.id]]
    tasks = [partitions]
    of = {topology.spout.id: 0}
    for component in topology.bolts:
        stage = _stage_of_inputs(component, of)
        if stage is None or not _stays(component, topology.spout.id, tasks[stage]):
            stage = len(members)
            members.append([])
            tasks.append(component.parallelism or partitions)
        members[stage].append(component.id)
        of[component.id] = stage
    stages = tuple(
        Stage(number, tuple(names), tasks[number]) for number, names in enumerate(members)
    )
    return Plan(stages, {name: tasks[stage] for name, stage in of.items()})


def _stage_of_inputs(component: Component, of: Mapping[str, int]) -> int | None:
    stages = {of[one.component] for one in component.inputs}
    return stages.pop() if len(stages) == 1 else None


def _stays(component: Component, spout: str, tasks: int) -> bool:
    """Whether a bolt can run where its input is."""
    if component.parallelism not in {None, tasks}:
        return False
    return tasks == 1 or all(_keeps(one, spout) for one in component.inputs)


def _keeps(one: Subscription, spout: str) -> bool:
    kind = one.grouping.kind
    if kind is GroupingKind.LOCAL:
        return True
    by_key = kind is GroupingKind.FIELDS and one.grouping.fields == _KEY
    return by_key and one.component == spout
