"""Checks of a topology against settings, and against what a checkpoint has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import Delivery, LatePolicy
from sequitur.pipelines._errors import TopologyFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sequitur.consumer import ReorderSettings
    from sequitur.consumer.topology import ProcessSettings, Topology
    from sequitur.pipelines.topology.processed import Processed


def check_settings(reorder: ReorderSettings, process: ProcessSettings, topology: Topology) -> None:
    """Check that settings go together with a topology.

    Raises:
        TopologyFileError: They do not; the message names the setting.
    """
    if reorder.delivery is not Delivery.EXACTLY_ONCE:
        raise TopologyFileError(
            f'reorder.delivery = "{reorder.delivery}": a topology\'s outputs are written '
            "exactly-once only"
        )
    if reorder.late_policy is LatePolicy.EMIT:
        raise TopologyFileError(
            'reorder.late_policy = "emit": late events would reach bolts out of order; '
            "send them to a topic"
        )
    written = [*topology.topics(reorder.output_topic), *reorder.written_topics[1:]]
    written.append(process.dead_letters(reorder.output_topic))
    twice = [name for name in written if written.count(name) > 1]
    if twice:
        raise TopologyFileError(f"topic {twice[0]!r} is written to for two purposes")
    read = [name for name in written if name in reorder.input_topics]
    if read:
        raise TopologyFileError(f"topic {read[0]!r} is read, and written to by the topology")


def check_outputs(root: str, found: Processed, outputs: Collection[str]) -> None:
    """Check that a step that is not out yet writes only to topics that the topology still has.

    Raises:
        TopologyFileError: It does not.
    """
    written = (topic for topic, files in found.records.items() if files)
    gone = [topic for topic in written if topic not in outputs]
    if gone:
        raise TopologyFileError(
            f"{root}: step {found.step} has records for topic {gone[0]!r}, to "
            "which no output goes any more: give the topology that output back until the step "
            "is done"
        )


def check_states(root: str, found: Processed, tasks: Mapping[str, int]) -> None:
    """Check that the topology still has the bolts that keep state, with as many tasks.

    Args:
        root: The checkpoint's folder, for the message.
        found: The step after which state was kept.
        tasks: How many tasks each component has.

    Raises:
        TopologyFileError: It has not.
    """
    for component, had in found.tasks.items():
        if component not in tasks:
            raise TopologyFileError(
                f"{root} keeps state of a bolt {component!r}, which the "
                "topology has not: give the job a checkpoint of its own, or the bolt back"
            )
        if tasks[component] != had:
            raise TopologyFileError(
                f"{root} keeps state of {had} tasks of bolt {component!r}, "
                f"which has {tasks[component]} now: tuples would go to other tasks than what "
                "was kept of them; its parallelism has to stay"
            )
