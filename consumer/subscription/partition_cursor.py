"""What a subscription has of a partition."""

from __future__ import annotations

from typing import NamedTuple, Self

from sequitur.consumer.subscription.cursor import Cursor, CursorIdentity
from sequitur.consumer.subscription.redeliveries import NO_REDELIVERIES, Redeliveries
from sequitur.consumer.subscription.sizes import CountedSizes


class PartitionCursor(NamedTuple):
    """The cursor of a partition, and how many bytes were read there."""

    cursor: Cursor
    sizes: CountedSizes = CountedSizes()  # what was counted while reading
    # how often messages were delivered that are not acked
    redeliveries: Redeliveries = NO_REDELIVERIES

    @classmethod
    def begin(cls, identity: CursorIdentity, start: int) -> Self:
        """Return one that has acked and counted nothing from an offset on."""
        return cls(Cursor(identity, start=start), CountedSizes(start))

    def copy(self) -> Self:
        """Return another one that is the same now: a cursor changes, sizes do not."""
        return self._replace(cursor=self.cursor.copy())
