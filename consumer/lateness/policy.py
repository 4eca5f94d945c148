"""What the reorder job is for, and what it does with a row that comes too late for it."""

from __future__ import annotations

from enum import StrEnum


class ReorderMode(StrEnum):
    """What the output topic is to be."""

    ORDERED = "ordered"
    """All rows, held until they can go out in event-time order."""

    LATEST = "latest"
    """For events that carry the full state of their key: nothing is held, and a row goes out when
    it is newer than what is out of its key. What is not is stale."""


class LatePolicy(StrEnum):
    """What becomes of a late row, in latest mode of a stale one. It is counted as late anyway."""

    TOPIC = "topic"
    """It goes to the late topic, in latest mode the stale topic, with headers that say why."""

    EMIT = "emit"
    """It goes to the output topic with the same headers, before what its step releases: readers
    there must be ready for rows that are out of order."""

    DROP = "drop"
    """It is counted, and gone."""

    FAIL = "fail"
    """The job ends before anything of the step is out. Restarted under another policy it goes on
    with the same rows."""


class DataLoss(StrEnum):
    """What becomes of the job when rows are gone that it has not read."""

    FAIL = "fail"
    """It ends, and names them."""

    CONTINUE = "continue"
    """It counts them as missing, and goes on behind them."""
