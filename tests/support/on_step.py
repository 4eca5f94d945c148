"""Steps that a job gave to a function, and what it released, to be compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.support.events import T0, Event, by_partition, event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sequitur.spark import OrderedStep


def numbered_events(count: int, *, start: int = 0) -> list[Event]:
    times = [T0 + 10 * (n ^ 1) for n in range(start, start + count)]
    return [event(time_ms, key=f"k{time_ms % 7}", n=time_ms) for time_ms in times]


class _Ran(Protocol):
    def released(self) -> Iterable[Any]: ...


@dataclass
class Taken:
    """What a function was given, by call; it raises at the calls that it is told to."""

    raises_at: Sequence[int] = ()
    steps: list[tuple[str, int, int]] = field(default_factory=list)
    rows: list[dict[int, list[dict[str, Any]]]] = field(default_factory=list)

    def __call__(self, step: OrderedStep) -> None:
        self.steps.append((step.id, step.step, step.frontier_ms))
        self.rows.append(
            {
                partition: rows
                for partition in range(step.partitions)
                if (rows := [row for some in step.tables(partition) for row in some.to_pylist()])
            }
        )
        with pytest.raises(IndexError, match=f"partition {step.partitions}"):
            step.tables(step.partitions)
        if len(self.steps) in self.raises_at:
            raise ConnectionError("the database is away")

    def all(self, calls: slice = slice(None)) -> dict[int, list[tuple[bytes, bytes]]]:
        """Key and value of all rows of some calls, by partition, in their order."""
        found: dict[int, list[tuple[bytes, bytes]]] = {}
        for given in self.rows[calls]:
            for partition, rows in given.items():
                found.setdefault(partition, []).extend((row["key"], row["value"]) for row in rows)
        return found


def released_rows(job: _Ran) -> dict[int, list[tuple[Any, Any]]]:
    return {
        partition: [(record.key, record.value) for record in records]
        for partition, records in by_partition(job.released()).items()
    }
