"""The cursors of a subscription that this process owns: they are kept here, and written."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from sequitur.consumer.subscription.partitions import ConsumedPartition, PartitionCursor
from sequitur.errors import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sequitur.consumer.subscription.cursor_store import CursorOwner
    from sequitur.consumer.subscription.subscription_state import SubscriptionState
    from sequitur.consumer.subscription.survey import Log
    from sequitur.kafka.partition import SourcePartition

Owned = TypeVar("Owned", ConsumedPartition, PartitionCursor)


class _Marks(NamedTuple):
    """Numbers of a cursor. If the cursor changes, at least one of them changes."""

    touched: int
    committed: int
    read_position: int
    acks: int
    absent: int
    lost: int


class _Write(NamedTuple):
    meets: int  # number of the newest request that it meets
    copies: list[PartitionCursor]
    marks: dict[SourcePartition, _Marks]
    removed: frozenset[SourcePartition]


class OwnedCursors(Generic[Owned]):
    """The cursors of one subscription, for as long as this process owns it.

    An open subscription, a job, and checks that have taken a subscription over keep their cursors
    here.

    - All state is behind `_lock`. Nobody asks Kafka for anything while holding it.
    - One thread at a time writes, and holds `_writing`. Acks go on meanwhile, so it writes copies.
    - A cursor is written if its marks differ from those that were written last. So a write also
      writes what a failed write has left.
    - A request for a write has a number. A write meets all requests that were made before it began.
    """

    def __init__(
        self,
        name: str,
        state: SubscriptionState,
        partitions: Mapping[SourcePartition, Owned],
        owner: CursorOwner | None,
    ) -> None:
        """Keep cursors that are already stored. A job has no `owner` before it claims them."""
        self.name = name
        self._claimed_owner = owner
        self._lock = threading.Lock()
        self._is_written = threading.Condition(self._lock)
        self._writing = threading.RLock()
        self._requested = self._met = self._refused = 0
        self._refusal: UnansweredError | None = None
        self._begin_with(state, partitions)

    def _begin_with(
        self, state: SubscriptionState, partitions: Mapping[SourcePartition, Owned]
    ) -> None:
        self.state = state  # what the cursors share, as last written
        self._partitions: dict[SourcePartition, Owned] = dict(partitions)
        self._touched: Counter[SourcePartition] = Counter()
        self._removed: frozenset[SourcePartition] = frozenset()
        self._stored = {where: self._marks(where) for where in partitions}

    def copies(self) -> dict[SourcePartition, PartitionCursor]:
        """Return copies of the cursors for other threads."""
        with self._lock:
            self._check()
            return {where: one.copy() for where, one in self._partitions.items()}

    def expire(self, where: SourcePartition, stop: int, log: Log) -> None:
        """Ack all messages before an offset. Those that the log no longer has are lost."""
        with self._lock:
            self._check()
            one = self._partitions.get(where)
            if one is not None and stop > one.cursor.committed_offset:
                self._pass_over(where, one, stop, log)

    def store(self) -> None:
        """Write the cursors that have changed. An open subscription only asks its thread to."""
        with self._writing:  # else `state` may be older than another write's
            self._write(self.state)

    @property
    def _owner(self) -> CursorOwner:
        assert self._claimed_owner is not None
        return self._claimed_owner

    def _check(self) -> None:
        """Raise the reason why these cursors must not be used any more. Under the lock."""

    def _pass_over(self, where: SourcePartition, one: Owned, stop: int, log: Log) -> None:  # noqa: ARG002 - others need it
        """Ack a partition's messages before an offset. Under the lock."""
        keeps_read = bool(self.state.checkpoint)  # a job has what it read in its checkpoint
        one.cursor.pass_over(stop, start=log.start, end=log.end, keeps_read=keeps_read)

    def _copy(self, _where: SourcePartition, one: Owned) -> PartitionCursor:
        """Return the cursor as it will be written. Under the lock."""
        return one.copy()

    def _touch(self, where: SourcePartition) -> None:
        """Have a cursor written even if it has not changed. Under the lock."""
        self._touched[where] += 1

    def _remove(self, where: SourcePartition) -> None:
        """Let go of a cursor, and delete it if it is stored. Under the lock."""
        del self._partitions[where]
        self._removed |= {where}
        self._touch(where)  # a later cursor of this partition differs from this one

    def _request(self) -> int:
        """Ask for a write of the present state; return the request's number. Under the lock."""
        self._requested += 1
        return self._requested

    @property
    def _is_requested(self) -> bool:
        """Whether there is a request that no write has met or failed."""
        return self._requested > max(self._met, self._refused)

    def _is_met(self, request: int) -> bool:
        """Tell whether a request is met; raise if its write has failed. Under the lock."""
        if self._met >= request:
            return True
        if self._refused >= request and self._refusal is not None:
            raise UnansweredError(*self._refusal.args) from self._refusal
        return False

    def _acks_left(self) -> bool:
        stored = self._stored
        return any(
            self._marks(where).acks != (stored[where].acks if where in stored else 0)
            for where in self._partitions
        )

    def _write(self, state: SubscriptionState, *, if_changed: bool = False) -> None:
        """Write the cursors that have changed, and the state; the state alone if there are none.

        With `if_changed` the state is not written alone.
        """
        with self._writing:
            with self._lock:
                write = self._next()
            try:
                if is_due := bool(write.copies or not if_changed):
                    self._owner.write(state, write.copies, removed=write.removed)
            except UnansweredError as error:
                with self._lock:
                    self._refused, self._refusal = write.meets, error
                    self._is_written.notify_all()
                raise
            with self._lock:
                if is_due:
                    self.state = state
                    self._stored |= write.marks
                    self._removed -= write.removed
                self._met = write.meets
                self._is_written.notify_all()

    def _next(self) -> _Write:
        """Return what has changed since it was stored. Under the lock."""
        marks = {where: self._marks(where) for where in self._partitions}
        changed = {where: one for where, one in marks.items() if one != self._stored.get(where)}
        copies = [self._copy(where, self._partitions[where]) for where in sorted(changed)]
        return _Write(self._requested, copies, changed, self._removed)

    def _marks(self, where: SourcePartition) -> _Marks:
        cursor = self._partitions[where].cursor
        counts = cursor.counts
        return _Marks(
            self._touched[where],
            cursor.committed_offset,
            cursor.read_position,
            counts.consumed + counts.repeated,
            counts.absent,
            counts.lost,
        )
