"""Why an event was not processed to the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sequitur.consumer.dead_letters import FailReason


@dataclass(frozen=True, slots=True)
class TreeFailure:
    """Why a tuple tree failed.

    Attributes:
        reason: The reason.
        detail: A traceback, or what is known.
        path: The components that the failed tuple had come through, the spout first.
    """

    reason: FailReason
    detail: str = ""
    path: tuple[str, ...] = ()
