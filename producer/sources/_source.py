"""What a source of events is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from producer._record import Record


class SourceEvent(msgspec.Struct, frozen=True, gc=False):
    """One event, and where in its source it ends.

    Attributes:
        record: The event.
        position: Opaque to all but the source: from there it can be opened anew without giving
            this event again. Empty for a source that cannot be read twice.
    """

    record: Record
    position: bytes = b""


class Source(Protocol):
    """Gives events until it has no more, or is told to stop."""

    def events(self) -> AsyncIterator[SourceEvent]:
        """The events, in order. Read by one task."""

    def stop(self) -> None:
        """Give no more events than there are already; `events` ends soon."""
