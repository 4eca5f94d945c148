"""Outcomes as tests expect them."""

from __future__ import annotations

from sequitur.producer import Persisted


class InLog:
    """Equal to the outcome of an event that is at this place of any topic, whatever its time.

    Args:
        partition: The partition.
        offset: The offset; None where the broker has forgotten it.
    """

    def __init__(self, partition: int, offset: int | None) -> None:
        self._place = (partition, offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Persisted) and self._place == (other.partition, other.offset)

    def __hash__(self) -> int:
        return hash(self._place)

    def __repr__(self) -> str:
        return f"InLog{self._place}"
