"""How much of the rows of runs is in memory at once, in Spark's tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sequitur.pipelines.store.part_files import ROW_GROUP_ROWS


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
