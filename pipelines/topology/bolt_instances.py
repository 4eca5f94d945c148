"""The bolts that a Python process of Spark's keeps from one step to the next.

Spark gives a task to whichever of its processes is free, so a bolt may find another one's work
done on its state meanwhile: `sequitur.consumer.topology.Instances` looks at that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sequitur.consumer.topology import Instances

if TYPE_CHECKING:
    from sequitur.pipelines.store.files import Location
    from sequitur.pipelines.topology.batch import FileBatch

_kept: Final[dict[Location | None, tuple[str, Instances]]] = {}
"""By checkpoint, the life of a job there, and its bolts. A task's process runs one at a time."""


def instances_of(batch: FileBatch) -> Instances:
    """The bolts that are kept here of a job; those of its earlier lives clean up."""
    life, instances = _kept.get(batch.root, ("", None))
    if instances is not None and life == batch.life:
        return instances
    if instances is not None:
        instances.close()
    made = Instances()
    _kept[batch.root] = (batch.life, made)
    return made
