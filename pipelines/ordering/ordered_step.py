"""`OrderedStep`: what a user's function `on_step` gets of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from sequitur.pipelines.rows.columns import SOURCE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from sequitur.pipelines.rows.selection import Selection


ORDERED_COLUMNS: Final = ("event_time_ms", *SOURCE_COLUMNS)


@dataclass(frozen=True, slots=True)
class OrderedStep:
    """The rows that a step released, in their order.

    ::

        def write(step):
            for partition in range(step.partitions):
                for rows in step.tables(partition):
                    print(step.id, rows["event_time_ms"], rows["key"], rows["value"])

    The job calls the function again with the same id and the same rows in the same order until it
    has noted that the function returned. Numbers grow from step to step. Steps without rows are
    left out.

    Attributes:
        id: Unique name of the step, `<app>/<checkpoint>/<step>`, to store with the rows. No other
            step has it, in this job or in one with another checkpoint.
        step: Number of the step.
        frontier_ms: Event time, epoch ms, up to which all rows on time have been released with this
            step.
        partitions: How many partitions the output topic has.
    """

    id: str
    step: int
    frontier_ms: int
    partitions: int
    _due: Selection = field(repr=False)

    def tables(self, partition: int) -> Iterator[pa.Table]:
        """Yield the rows of a partition of the output topic, some at a time.

        They are read as they are asked for, which has to be within the call, at most 65,536 rows a
        table. From the first table to the last they are in the order of (event_time_ms, topic,
        partition, offset). All rows with one key are in one partition, but where the topic has
        gained partitions: then those up to an event time are in one, and later ones in one.

        Args:
            partition: From 0.

        Returns:
            Tables of these columns: event_time_ms (int64), and of the record that was read: topic
            (string), partition (int32), offset (int64), timestamp_ms (int64), key (binary, may be
            null), value (binary, may be null), headers (list of structs of key and value, may be
            null).

        Raises:
            IndexError: There is no such partition.
        """
        if not 0 <= partition < self.partitions:
            raise IndexError(f"partition {partition}: there are {self.partitions}, from 0")
        return (some for some in self._due.tables(partition, ORDERED_COLUMNS) if len(some))


StepFunction: TypeAlias = Callable[[OrderedStep], object]
"""Gets each step that has released rows, in the driver, one after the other."""
