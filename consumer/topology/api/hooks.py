"""Why an event was not processed to the end, and hooks, which are told of each event."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sequitur.consumer.dead_letters import FailReason
    from sequitur.consumer.topology.api.tuple import EventValues


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


_logger = logging.getLogger("sequitur.topology.hook")


@dataclass(frozen=True, slots=True)
class AckedEvent:
    """An event whose tree is done.

    Attributes:
        event: The event.
        attempt: Which attempt that was; the first is 1.
        latency_ms: How long it took from the batch's time on.
    """

    event: EventValues
    attempt: int
    latency_ms: int


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """An attempt of an event that failed.

    Attributes:
        event: The event.
        attempt: Which attempt that was; the first is 1.
        latency_ms: How long it took from the batch's time on.
        failure: Why.
        is_dead: Whether it was the last: the event is a dead letter.
    """

    event: EventValues
    attempt: int
    latency_ms: int
    failure: TreeFailure
    is_dead: bool


class EventHook:
    """Is notified of what becomes of tracked events, in the tasks of the first stage.

    It is called once a batch's verdicts are known, before they are written down: again, if the
    batch is repeated. What it raises is logged, and changes nothing.
    """

    def on_ack(self, done: AckedEvent, /) -> None:
        """An event's tree is done."""

    def on_fail(self, failed: FailedEvent, /) -> None:
        """An attempt of an event failed."""


def notify(hook: EventHook, what: AckedEvent | FailedEvent) -> None:
    """Call a hook; log what it raises."""
    try:
        if isinstance(what, AckedEvent):
            hook.on_ack(what)
        else:
            hook.on_fail(what)
    except Exception:
        _logger.exception("the topology's hook raised for %r", what.event[4:7])
