"""Which cursors of a subscription are stored as they are, and which requests for it are met."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sequitur.errors import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sequitur.consumer.subscription.consumed_partition import ConsumedPartition
    from sequitur.consumer.subscription.partition_cursor import PartitionCursor
    from sequitur.consumer.subscription.redeliveries import Redeliveries
    from sequitur.kafka.partition import SourcePartition


class CursorWrite(NamedTuple):
    """What is written at once."""

    meets: int  # number of the newest request that is met by it
    cursors: list[PartitionCursor]  # copies, since acks go on while they are written
    changes: dict[SourcePartition, int]  # how often each partition had changed when it was copied
    acks: dict[SourcePartition, int]  # how many acks each partition had taken by then


class CursorWrites:
    """Not for several threads: whoever has it guards it together with the partitions."""

    def __init__(self, partitions: Mapping[SourcePartition, ConsumedPartition]) -> None:
        self._partitions = partitions
        self._stored_changes: dict[SourcePartition, int] = dict.fromkeys(partitions, 0)
        self._stored_acks: dict[SourcePartition, int] = {}
        self._requested = self._met = 0
        self._refused = 0
        self._refusal: UnansweredError | None = None

    @property
    def is_requested(self) -> bool:
        """Whether there is a request that no write has met, and none has failed to meet."""
        return self._requested > max(self._met, self._refused)

    def request(self) -> int:
        """Request that all is stored as it is now; return the request's number."""
        self._requested += 1
        return self._requested

    def is_met(self, request: int) -> bool:
        """Tell whether all is stored that a request was about."""
        if self._met >= request:
            return True
        if self._refused >= request and self._refusal is not None:
            raise UnansweredError(*self._refusal.args) from self._refusal
        return False

    def next(self, held: Callable[[SourcePartition], Redeliveries]) -> CursorWrite:
        """Return what is not stored as it is now."""
        changed = {
            where: part
            for where, part in self._partitions.items()
            if part.changes != self._stored_changes.get(where)
        }
        return CursorWrite(
            self._requested,
            [part.copy(held(where)) for where, part in changed.items()],
            {where: part.changes for where, part in changed.items()},
            {where: part.acks for where, part in changed.items()},
        )

    def stored(self, write: CursorWrite) -> None:
        """Take note of what was written."""
        self._stored_changes |= write.changes
        self._stored_acks |= write.acks
        self._met = write.meets

    def refused(self, write: CursorWrite, refusal: UnansweredError) -> None:
        """Take note of what could not be written."""
        self._refused, self._refusal = write.meets, refusal

    def acks_left(self) -> bool:
        """Tell whether there are acks that are not stored."""
        parts = self._partitions.items()
        return any(part.acks != self._stored_acks.get(where, 0) for where, part in parts)

    @property
    def refusal(self) -> UnansweredError | None:
        """Why the newest write that failed has failed."""
        return self._refusal
