"""Rows of the input that are gone and were never read: by retention, or with their topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from sequitur.consumer import EventClock, SourcePartition

    Lost: TypeAlias = Mapping[SourcePartition, tuple[int, int]]


def lost_offsets(
    clock: EventClock, first: Mapping[SourcePartition, int]
) -> dict[SourcePartition, tuple[int, int]]:
    """Return the offsets that are gone and were never read."""
    lost = {}
    for where, known in clock.partitions.items():
        if where not in first:
            lost[where] = known.position, max(known.position, known.high_watermark)
        elif first[where] > known.position:
            lost[where] = known.position, first[where]
    for where, begins in first.items():
        if where not in clock.partitions and begins:
            lost[where] = 0, begins
    return lost


def lost_of_plan(
    planned: Mapping[SourcePartition, int], first: Mapping[SourcePartition, int]
) -> Lost:
    """Return the offsets that are gone of a first batch that is planned and was not read."""
    return {
        where: (position, first[where])
        for where, position in planned.items()
        if first.get(where, position) > position
    }


def rows_lost(lost: Lost) -> int:
    """Count the rows of lost offsets, at most: an offset need not have had one."""
    return sum(last - first for first, last in lost.values())


def in_words(lost: Lost) -> str:
    """Return the offsets that are lost, by partition."""
    return "; ".join(
        f"partition {where.partition} of {where.topic!r}, offsets {first} to {last - 1}"
        if last > first
        else f"partition {where.partition} of {where.topic!r}, read to its end"
        for where, (first, last) in sorted(lost.items())
    )
