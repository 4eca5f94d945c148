"""A subscription while it is consumed: one thread reads, one writes cursors, any number receive.

All state is behind one lock, and the conditions are built on it. No request to Kafka is made under
the lock. So if a broker is away, receivers stop only when they have all that was read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import structs

from sequitur.base.process import wall_clock_ms
from sequitur.consumer.subscription.duty import Duty
from sequitur.consumer.subscription.owned_cursors import OwnedCursors
from sequitur.consumer.subscription.partitions import ConsumedPartition
from sequitur.errors import PositionRangeError, SubscriptionClosedError, UnansweredError
from sequitur.kafka.arrivals import sizes_of
from sequitur.kafka.connections import close_own
from sequitur.kafka.shared_admin import IDLE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from confluent_kafka import Message

    from sequitur.consumer.subscription.cursor import CursorStats
    from sequitur.consumer.subscription.dead_letters import DeadLetters
    from sequitur.consumer.subscription.dispatch import Dispatch, DispatchCounts, HandedOut
    from sequitur.consumer.subscription.opening import OpenedSubscription, SubscriptionOpening
    from sequitur.consumer.subscription.partition_reader import Arrival, PartitionReader
    from sequitur.consumer.subscription.partitions import PartitionCursor
    from sequitur.consumer.subscription.survey import Log
    from sequitur.kafka.partition import SourcePartition


_POLL_S: Final = 0.1
_MOST_AT_ONCE: Final = 500
_SENDS_EACH_S: Final = 1.0
"""The group's offsets are sent so often while there is no room for messages."""
_LOOKS_EACH_S: Final = 0.25
"""The writing thread looks for a takeover so often. Calls learn about it from this thread."""
NEW_PARTITIONS_EACH_S: Final = 5.0

_logger: Final = logging.getLogger("sequitur.subscription")
_of_this_process: Final[weakref.WeakSet[Consumption]] = weakref.WeakSet()


class Consumption(OwnedCursors[ConsumedPartition]):
    """An open subscription: its cursors, its dispatch, and a thread each that reads and writes.

    Its threads begin with `begin` and end with `close`, or when they cannot go on.
    """

    def __init__(
        self,
        opening: SubscriptionOpening,
        opened: OpenedSubscription,
        reader: PartitionReader,
        dispatch: Dispatch[Message],
        letters: DeadLetters | None = None,
        *,
        refill: int,
        write_interval_s: float,
    ) -> None:
        super().__init__(opened.owner.subscription, opened.state, opened.partitions, opened.owner)
        self._opening = opening
        self._reader = reader
        self._letters = letters
        self._refill = refill
        self._write_interval_s = write_interval_s

        self._has_messages = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._is_due = threading.Condition(self._lock)
        # All fields from here on change only under the lock.
        self._dispatch = dispatch
        self._unread = set(opened.partitions)
        self._failure: Exception | None = None
        self._origin: TracebackType | None = None
        self._ends = False
        self._is_closed = False
        self._was_out = False
        self.dead_letters = 0

        self._threads = [
            threading.Thread(target=work, name=f"subscription-{what}", daemon=True)
            for what, work in (("reader", self._run_reader), ("writer", self._run_writer))
        ]
        self._duties = [
            # A topic that was made anew ends all. Brokers that are away are asked again.
            Duty(
                self._look_for_partitions,
                every_s=NEW_PARTITIONS_EACH_S,
                passes=(UnansweredError,),
                tell=lambda _error: None,
            ).later()
        ]
        _of_this_process.add(self)

    def begin(self, *duties: Duty) -> None:
        self._duties += duties
        for thread in self._threads:
            thread.start()

    def receive(self, most: int, timeout_s: float | None) -> list[HandedOut[Message]]:
        """Return the next messages, as many as there are; an empty list if none comes in time."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while True:
                self._check()
                now_s = time.monotonic()
                # After a pause another process may have taken over: the next renewal shows it.
                is_over = self._owner.lease.is_over
                handed = [] if is_over else self._dispatch.take(now_s * 1000, most)
                if self._dispatch.room >= self._refill:
                    self._has_room.notify()
                if handed and not self._was_out:
                    # The message counts as handed out even if it ends this process, so that is
                    # stored.
                    self._was_out = True
                    self._request()
                if handed or (until_s is not None and now_s >= until_s):
                    return handed
                change_ms = self._dispatch.next_change_ms()
                changes_s = None if change_ms is None or is_over else change_ms / 1000
                renewed_s = now_s + _LOOKS_EACH_S if is_over else None
                first_s = min(
                    (one for one in (until_s, changes_s, renewed_s) if one is not None),
                    default=None,
                )
                self._has_messages.wait(None if first_s is None else _wait_s(first_s - now_s))

    def ack(self, offsets: Mapping[SourcePartition, Sequence[int]]) -> int:
        """Ack messages in memory, all or none; return how many were not acked before.

        `_run_writer` stores the acks.
        """
        self._learn_ends({where: max(some) for where, some in offsets.items()})
        with self._lock:
            self._check()
            for where, some in offsets.items():
                self._partitions[where].check_acks(some)
            added = 0
            for where, some in offsets.items():
                added += self._partitions[where].ack(some)
                self._dispatch.ack(where, some)
            self._let_go_on()
            return added

    def ack_cumulative(self, where: SourcePartition, offset: int) -> int:
        """Ack a message and all before it; return how many were unacked."""
        self._learn_ends({where: offset})
        with self._lock:
            self._check()
            added = self._partitions[where].ack_cumulative(offset)
            self._dispatch.ack_cumulative(where, offset)
            self._let_go_on()
            return added

    def negative_ack(
        self, where: SourcePartition, offset: int, redelivery_count: int | None
    ) -> bool:
        """Have a message handed out again; False if it is not out, or was handed out since."""
        with self._lock:
            self._check()
            self._require(where)
            now_ms = time.monotonic() * 1000
            failed = self._dispatch.negative_ack(
                where, offset, now_ms, redelivery_count=redelivery_count
            )
            self._let_go_on()
            return failed

    def flush(self, timeout_s: float | None) -> None:
        """Write all acks so far, and return when they are stored."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._check()
            request = self._request()
            while not self._is_met(request):
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise UnansweredError(f"acks are not stored after {timeout_s:g} s")
                self._is_written.wait(None if left_s is None else _wait_s(left_s))
                self._check_failure()

    def stats(self) -> tuple[dict[SourcePartition, CursorStats], int, DispatchCounts, bool]:
        """Return the cursors' counts, how much is out, the counters, and whether it is blocked."""
        with self._lock:
            self._check()
            partitions = list(self._partitions)
        ends = self._opening.topics.high_watermarks(partitions)
        with self._lock:
            for where, end in ends.items():
                self._partitions[where].know_end(end)
            cursors = {
                where: part.cursor.stats(part.end) for where, part in self._partitions.items()
            }
            dispatch = self._dispatch
            return cursors, dispatch.unacked, replace(dispatch.counts), dispatch.is_blocked

    def store(self) -> None:
        """Have the writing thread write cursors now."""
        with self._lock:
            self._request()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._end()
        for thread in self._threads:
            thread.join()
        if self._acks_left():
            self._check_failure()
            if self._refusal is not None:
                raise self._refusal

    def end_in_fork(self) -> None:
        """End in a forked process: it does not have the threads, so acks would be lost."""
        self._lock = threading.Lock()  # the old one may be held by a missing thread
        self._ends = self._is_closed = True
        # Keep an earlier failure: its traceback may be the last reference to clients of librdkafka.
        # Their release would end the process here.
        if self._failure is None:
            self._failure = SubscriptionClosedError(
                f"subscription {self.name!r} was opened by the process that this "
                "one was forked from: use it there, or open one here"
            )

    def _learn_ends(self, offsets: Mapping[SourcePartition, int]) -> None:
        """Ask where partitions end if acks lie beyond the known ends."""
        with self._lock:
            self._check()
            for where in offsets:
                self._require(where)
            beyond = [one for one, offset in offsets.items() if offset >= self._partitions[one].end]
        if not beyond:
            return
        ends = self._opening.topics.high_watermarks(beyond)
        with self._lock:
            for where, end in ends.items():
                self._partitions[where].know_end(end)

    def _request(self) -> int:
        """Have the writing thread write cursors now; return the request's number."""
        self._is_due.notify()
        return super()._request()

    def _require(self, where: SourcePartition) -> None:
        if where not in self._partitions:
            raise PositionRangeError(
                f"partition {where.partition} of {where.topic!r} is not known to the subscription"
            )

    def _check(self) -> None:
        """Raise if this process must not go on. Under the lock."""
        self._check_failure()
        if self._ends:
            raise SubscriptionClosedError(f"subscription {self.name!r} was closed: open it again")

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(self._origin)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if self._failure is None:
                # Each call raises the failure without the traceback of earlier calls.
                self._failure, self._origin = error, error.__traceback__
            self._end()

    def _end(self) -> None:
        self._ends = True
        for condition in (self._has_messages, self._has_room, self._is_due, self._is_written):
            condition.notify_all()

    def _let_go_on(self) -> None:
        """Wake receivers and the reader after an ack.

        `_run_writer` stores the ack with its next write: the cursor's marks differ.
        """
        self._has_messages.notify_all()
        if self._dispatch.room >= self._refill:
            self._has_room.notify()

    def _run_reader(self) -> None:
        """Read for as long as there is room, and look for what is new: the first thread's work.

        What waits for brokers is done here: the other thread renews the lease.
        """
        try:
            while True:
                with self._lock:
                    has_room = self._has_room.wait_for(
                        lambda: self._ends or self._dispatch.room >= self._refill, _SENDS_EACH_S
                    )
                    if self._ends:
                        return
                for duty in self._duties:
                    duty.run()
                self._opening.surveyor.admin.let_go(IDLE_S)
                if not has_room:
                    self._reader.send_offsets()
                    continue
                with self._lock:
                    room = min(self._dispatch.room, _MOST_AT_ONCE)
                    new = {
                        where: self._partitions[where].cursor.committed_offset
                        for where in self._unread
                    }
                    self._unread.clear()
                if new:
                    self._reader.add(new)
                arrivals = self._reader.read(room, _POLL_S)
                with self._lock:
                    moves = self._take_in(arrivals)
                for where, offset in moves.items():
                    self._reader.move(where, offset)
        except Exception as error:  # noqa: BLE001 - a thread that ends tells everybody why
            self._fail(error)
        finally:
            self._threads[1].join()  # the offsets of the last acks follow, too
            self._reader.close()
            close_own()

    def _tell_lost(self, where: SourcePartition, start: int, lost: int) -> None:
        _logger.warning(
            "%s: %s-%d begins at %d: at most %d messages were deleted before they were acked",
            self.name, *where, start, lost,
        )  # fmt: skip

    def _take_in(self, arrivals: Iterable[Arrival]) -> dict[SourcePartition, int]:
        """Take what was read. Return where to read on in partitions that are acked far ahead."""
        read: dict[SourcePartition, int] = {}
        for arrival in arrivals:
            where, first, offset, messages, is_deleted = arrival
            part = self._partitions[where]
            read[where] = arrival.offsets.stop
            lost = part.cursor.counts.lost
            size = sizes_of(messages)
            for new in part.read(first, arrival.offsets, size, is_deleted=is_deleted):
                these = messages[new.start - offset : new.stop - offset]
                self._dispatch.add(
                    where,
                    new,
                    [one.key() for one in these],
                    these,
                    redeliveries=part.redeliveries,
                )
            if lost := part.cursor.counts.lost - lost:
                self._tell_lost(where, offset, lost)
        moves = {}
        for where, reached in read.items():
            self._partitions[where].count_sizes()
            if (further := self._partitions[where].pass_acked(reached)) is not None:
                moves[where] = further
        if read:
            self._has_messages.notify_all()
        return moves

    def _run_writer(self) -> None:
        """Do the second thread's work: write cursors again and again, and renew the lease."""
        writes_s = time.monotonic() + self._write_interval_s
        try:
            while True:
                now_s = time.monotonic()
                with self._lock:
                    pause_s = min(writes_s - now_s, _LOOKS_EACH_S, self._owner.lease.due_in_s)
                    self._is_due.wait_for(lambda: self._ends or self._is_requested, max(pause_s, 0))
                    ends = self._ends
                    writes = ends or self._is_requested or time.monotonic() >= writes_s
                self._owner.check()
                if self._letters is not None and not ends:
                    self._write_letters(self._letters)
                if writes:
                    self._write_once()
                    writes_s = time.monotonic() + self._write_interval_s
                if ends:
                    return
                # This read shows whether a command has reset or deleted the subscription.
                with suppress(UnansweredError):  # it is tried again
                    self._owner.renew()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        finally:
            if self._letters is not None:
                self._letters.close()
            self._owner.close()

    def _write_letters(self, letters: DeadLetters) -> None:
        """Write messages that failed too often to the dead-letter topic, then ack them."""
        with self._lock:
            dead = self._dispatch.dead()
        written = letters.write(dead)
        with self._lock:
            for where, offset in written:
                self._partitions[where].ack([offset])
                self._dispatch.ack(where, [offset])
            self.dead_letters += len(written)
            if written:
                self._let_go_on()

    def _write_once(self) -> None:
        with self._lock:
            for where in self._dispatch.touched:
                self._touch(where)
            self._dispatch.touched.clear()
        with suppress(UnansweredError):  # each waiting flush raises it
            self._write(structs.replace(self.state, written_ms=wall_clock_ms()), if_changed=True)

    def _copy(self, where: SourcePartition, one: ConsumedPartition) -> PartitionCursor:
        return one.copy(self._dispatch.redeliveries(where))

    def _pass_over(
        self, where: SourcePartition, one: ConsumedPartition, stop: int, log: Log
    ) -> None:
        """Ack messages before an offset. Those that wait are not handed out any more."""
        one.know_end(log.end)
        if lost := one.pass_over(stop, start=log.start):
            self._tell_lost(where, log.start, lost)
        self._dispatch.ack_cumulative(where, stop - 1)
        self._let_go_on()

    def _look_for_partitions(self) -> None:
        """Add new partitions. Raise if a topic was made anew."""
        added = self._opening.added(self._partitions, self.state.topics)
        with self._lock:
            self._partitions |= added
            self._unread |= added.keys()


def _wait_s(left_s: float) -> float:
    """Return how long to wait at a time: Python refuses longer waits, such as infinity."""
    return min(max(left_s, 0), threading.TIMEOUT_MAX)


def _end_in_fork() -> None:
    for one in _of_this_process:
        one.end_in_fork()


os.register_at_fork(after_in_child=_end_in_fork)
