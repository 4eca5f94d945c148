"""Why an event was not processed to the end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailReason(StrEnum):
    """Why an event was not processed to the end."""

    FAILED = "failed"
    """A bolt failed it."""
    EXCEPTION = "exception"
    """A bolt raised."""
    TIMEOUT = "timeout"
    """A call took longer than `call_timeout`."""
    NEVER_ACKED = "never-acked"
    """Its batch ended, and a tuple of it was neither acked nor failed."""
    CRASH = "crash"
    """The process that ran it died."""


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
