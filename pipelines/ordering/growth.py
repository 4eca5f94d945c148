"""Whether the output topic has the partitions that the log knows of, or more, or fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequitur.consumer import PartitionCounts
from sequitur.errors import CheckpointError

if TYPE_CHECKING:
    from sequitur.consumer import Step
    from sequitur.pipelines.sink.sink import OutputTopic


def known_counts(
    root: str, newest: Step | None, began: int, released: OutputTopic
) -> PartitionCounts:
    """Return by how many partitions rows go to the output topic, as far as the log knows."""
    if newest is None:
        return PartitionCounts((released.partitions,))
    known = newest.partition_counts or PartitionCounts((began,))
    if released.partitions < known.newest:
        raise CheckpointError(
            f"{root}: topic {released.name!r} had {known.newest} partitions and has "
            f"{released.partitions} now, so keys would go elsewhere and lose their order: give "
            "the job another output topic, and a checkpoint of its own"
        )
    return known
