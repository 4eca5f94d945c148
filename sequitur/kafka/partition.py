"""Where rows go."""

from __future__ import annotations

from typing import Final, NamedTuple

CURSOR_PREFIX: Final = "sequitur-cursor/"
"""What the metadata of each offset that is a cursor's begins with."""


class OutputPartition(NamedTuple):
    """A partition of an output topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.topic!r}"


class SourcePartition(NamedTuple):
    """A partition of a source topic."""

    topic: str
    partition: int
