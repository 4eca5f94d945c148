"""The columns of rows as tasks are given them, what they are sorted by, how many are in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sequitur.pipelines.store.part_files import ROW_GROUP_ROWS

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


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Bounds on what a task has in memory."""

    # so much is sorted at once when a batch is staged; a task holds two or three times that
    chunk_bytes: int = 64 << 20
    slice_bytes: int = 32 << 20  # so much of what is due is read at once
    # most rows of a row group: small ones let a reader skip what it does not want
    row_group_rows: int = ROW_GROUP_ROWS
    # so much may stand in a row group with several output partitions: whoever wants one of them
    # reads the others, too
    packed_bytes: int = 1 << 20

    @property
    def packed_rows(self) -> int:
        """Most rows of a row group with several output partitions.

        Each one costs about a millisecond to write and to read, as much as some hundred rows.
        """
        return max(1, self.row_group_rows // 4)


ROW_LIMITS: Final = RowLimits()
"""Those of a job."""
