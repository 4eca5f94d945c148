"""The columns of rows as tasks are given them, and what rows are sorted by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from sequitur.kafka.partition import KeyPartitioner

    Longs = np.ndarray[Any, np.dtype[np.int64]]

SOURCE_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp_ms", "key", "value", "headers",
)  # fmt: skip
SOURCE_ORDER: Final = ("topic", "partition", "offset")
RELEASE_ORDER: Final = ("event_time_ms", *SOURCE_ORDER)
"""A total order, so that a repeated step gives the same rows in the same order."""


def outputs_of(partitioner: KeyPartitioner, keys: Sequence[bytes | None], numbers: Longs) -> Longs:
    """Return the partition that each row goes to, as `spark_source.output_partition` does."""
    outputs: Longs = numbers.astype("int64") % partitioner.partitions
    if keyed := [place for place, key in enumerate(keys) if key is not None]:
        outputs[keyed] = partitioner.each([key for key in keys if key is not None])
    return outputs
