"""What the reorder job is for, and what it does with a row that comes too late for it."""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class Output(Enum):
    """Where rows of a step go."""

    RELEASED = auto()
    LATE = auto()
    QUARANTINE = auto()


class Route(NamedTuple):
    """What becomes of late rows."""

    output: Output | None  # None: nowhere
    ends_job: bool = False


ROUTES: Final[Mapping[LatePolicy, Route]] = MappingProxyType(
    {
        LatePolicy.TOPIC: Route(Output.LATE),
        LatePolicy.EMIT: Route(Output.RELEASED),
        LatePolicy.DROP: Route(None),
        LatePolicy.FAIL: Route(None, ends_job=True),
    }
)
"""Asked by whatever stages, accounts for and sends late rows: nobody asks for a policy itself."""


class DataLoss(StrEnum):
    """What becomes of the job when rows are gone that it has not read."""

    FAIL = "fail"
    """It ends, and names them."""

    CONTINUE = "continue"
    """It counts them as missing, and goes on behind them."""
