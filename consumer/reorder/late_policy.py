"""What the job is for, and what it does with rows that come too late or are gone."""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReorderMode(StrEnum):
    """Which rows the output topic gets, and when."""

    ORDERED = "ordered"
    """All rows, held until they can go out in event-time order."""

    LATEST = "latest"
    """For events that carry the full state of their key. Nothing is held: a row goes out if it is
    newer than the last released row of its key. Otherwise it is stale."""


class LatePolicy(StrEnum):
    """What the job does with late rows, in latest mode with stale ones. All count as late."""

    TOPIC = "topic"
    """Write them to the late topic, in latest mode the stale topic, with headers that say why."""

    EMIT = "emit"
    """Write them to the output topic with the same headers, before the rows that the step
    releases. Readers get rows out of order."""

    DROP = "drop"
    """Only count them."""

    FAIL = "fail"
    """End the job before a row of the step is out. A start under another policy resumes with the
    same rows."""


class Output(Enum):
    RELEASED = auto()
    LATE = auto()
    QUARANTINE = auto()


class Route(NamedTuple):
    output: Output | None  # None: the rows go nowhere
    ends_job: bool = False


ROUTES: Final[Mapping[LatePolicy, Route]] = MappingProxyType(
    {
        LatePolicy.TOPIC: Route(Output.LATE),
        LatePolicy.EMIT: Route(Output.RELEASED),
        LatePolicy.DROP: Route(None),
        LatePolicy.FAIL: Route(None, ends_job=True),
    }
)
"""Code that stages, accounts for and sends late rows asks here, and never for a policy."""


class DataLoss(StrEnum):
    """What the job does when rows are gone before it has read them."""

    FAIL = "fail"
    """End, and name them."""

    CONTINUE = "continue"
    """Count them as missing, and resume after them."""
