"""Accepting events: each goes into the open batch of its partition, up to a limit of bytes.

Batches are taken out in cuts. A cut takes all there are, of all partitions, full or not: so what
was accepted before it is in this round of the journal or an earlier one, and what is accepted after
it is not. Where a batch could not be sent soon, a cut takes the events that came since the last cut
and leaves the batch open: the journal holds it then, and it grows.

The mutable state, named once:

- `PartitionQueue.append` adds to the open batch, and takes nothing while none is open. So the hot
  path is one call, and everything rare happens when it returns None.
- `Accumulator.budget` counts the bytes of all records that are accepted and not settled. It is what
  holds senders back.
- `Accumulator.next_event` is the number of the next event. It grows with each accepted event, and
  with none that is refused.
- `Accumulator.full` and `ripe` say why to cut: a batch is full, or the oldest event has waited for
  the linger. `filled` are the queues with events for the next cut; the first of them starts the
  linger's timer.

Nothing here does I/O.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sequitur.producer._event_id import EVENT_ID_HEADER
from sequitur.producer._given_up import GivenUp
from sequitur.producer._outcomes import Delivery, NotPersisted
from sequitur.producer._record import check_all
from sequitur.producer.batching.batch import Batch
from sequitur.producer.batching.buffer_budget import BufferBudget
from sequitur.producer.batching.partition_queue import DELIVERIES
from sequitur.producer.kafka.record_batch import new_builder, seal
from sequitur.producer.kafka.record_format import HEADER_SIZE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random
    from types import ModuleType

    from sequitur.producer._given_up import OnGivenUp
    from sequitur.producer._record import Record
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer._ticket import Ticket
    from sequitur.producer.batching.columns import Columns, Piece
    from sequitur.producer.batching.partition_queue import PartitionQueue
    from sequitur.producer.batching.route import Route
    from sequitur.producer.kafka.record_batch import Builder, Header

BULK_RECORDS: Final = 256
"""From so many on, to lay them out a column at a time is worth its constant costs."""

# What a record makes of us that is of the right types and still none: too large, for a partition
# that is not there, with a number that no field holds.
_BAD_RECORD: Final = (TypeError, ValueError, KeyError, AttributeError, OverflowError)


class Accumulator:
    """The queues of all topics.

    Args:
        settings: How batches are made.
        producer_name: The name that goes into the event ids.
        next_event: The number of the next event.
        loop: Runs the linger timers.
        random: Spreads events without a key.
        buffer_size: Bytes on their way, beyond which senders wait.
        on_due: Called when there is a reason to cut.
        on_given_up: Called with an event that is refused; None if nobody wants it.
        journal_event_bytes: The largest event that the journal takes; None without one.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        producer_name: str,
        next_event: int,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        buffer_size: int,
        on_due: Callable[[], None],
        on_given_up: OnGivenUp | None = None,
        journal_event_bytes: int | None = None,
    ) -> None:
        self.routes: dict[str, Route] = {}
        self.next_event = next_event
        self.budget = BufferBudget(loop, buffer_size)
        self.filled: dict[PartitionQueue, None] = {}
        self.full = False
        self.ripe = False
        self.cuts = 0
        # Waits until what is accepted now is in the journal; of another cut, another.
        self.keeper: Callable[[], Awaitable[object]] | None = None
        self.live: dict[Batch, None] = {}
        self._settings = settings
        self._linger_s = settings.linger.total_seconds()
        self._id_prefix = producer_name.encode("ascii") + b":"
        self._loop = loop
        self._random = random
        self._on_due = on_due
        self._on_given_up = on_given_up
        self._journal_event_bytes = journal_event_bytes
        self._linger: asyncio.TimerHandle | None = None
        self._bulk: Any = None  # the module, once it is loaded
        self._loading: asyncio.Future[ModuleType] | None = None
        self._flushes: list[tuple[set[Batch], asyncio.Future[None]]] = []

    def add(self, route: Route, record: Record) -> Delivery:
        """Accept one event; the delivery of one that cannot be is done at once."""
        delivery = Delivery(loop=self._loop)
        delivery.keeper = self.keeper
        timestamp_ms = record.timestamp_ms
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        try:
            event_id = b"%b%d" % (self._id_prefix, self.next_event)
            headers = [*record.headers, (EVENT_ID_HEADER, event_id)]
            key = record.key
            if record.partition is None and key is not None:
                queue = route.queues[route.keys.partition(key)]
            else:
                queue = self._queue_of(route, record)
            offset = queue.claimed + len(queue.entries)
            added = queue.append(offset, timestamp_ms, key, record.value, headers)
            if added is None:
                queue, added = self._start_batch(route, queue, record, headers, timestamp_ms)
        except _BAD_RECORD as error:
            delivery.set_result(self._refused(route, record, error))
            self.budget.admit_next()
            return delivery
        entries = queue.entries if queue.owner is DELIVERIES else queue.claim_deliveries()
        entries.append(delivery)
        if record.timestamp_ms is not None:
            queue.mark_dated()
        self.next_event += 1
        self.budget.take(added.size)
        if added.size > route.batch_bytes:
            self._seal(queue)
        return delivery

    def add_many(
        self, route: Route, records: Sequence[Record], ticket: Ticket, *, whole: bool = False
    ) -> int:
        """Accept events until the buffer is full; those that cannot be are settled at once.

        Args:
            route: Where they go.
            records: The events.
            ticket: Whose they are.
            whole: Accept all of them, though the buffer be full before the last.

        Returns:
            How many of `records` are dealt with; at least one.

        Raises:
            WrongRecordError: One of them is of a wrong type; none was accepted.
        """
        if self._add_columns(route, records, ticket, whole=whole):
            return len(records)
        check_all(records)
        return self._add_each(route, records, ticket, whole=whole)

    def _add_each(
        self, route: Route, records: Sequence[Record], ticket: Ticket, *, whole: bool
    ) -> int:
        known = route.keys.learn([r.key for r in records if type(r.key) is bytes])
        queues = route.queues
        prefix = self._id_prefix
        now_ms = int(time.time() * 1000)
        event = self.next_event
        index = first = ticket.accepted
        left = free = self.budget.limit - self.budget.used
        batch_bytes = route.batch_bytes
        for record in records:
            # The hot loop: what every event passes. All that is rare is in the calls it makes.
            timestamp_ms = record.timestamp_ms
            if timestamp_ms is None:
                timestamp_ms = now_ms
            try:
                headers = [*record.headers, (EVENT_ID_HEADER, b"%b%d" % (prefix, event))]
                key = record.key
                if record.partition is None and key is not None:
                    queue = queues[known[key]]
                else:
                    queue = self._queue_of(route, record)
                offset = queue.claimed + len(queue.entries)
                added = queue.append(offset, timestamp_ms, key, record.value, headers)
                if added is None:
                    self.next_event = event
                    queue, added = self._start_batch(route, queue, record, headers, timestamp_ms)
            except _BAD_RECORD as error:
                index += 1
                ticket.accepted = index
                ticket.complete([index - 1], self._refused(route, record, error))
                continue
            entries = queue.entries if queue.owner is ticket else queue.claim(ticket)
            entries.append(index)
            if timestamp_ms is not now_ms:
                queue.mark_dated()
            event += 1
            index += 1
            size = added.size
            left -= size
            if size > batch_bytes:
                self._seal(queue)
            if left <= 0 and not whole:
                break
        ticket.accepted = index
        self.next_event = event
        self.budget.take(free - left)
        return index - first

    def _add_columns(
        self, route: Route, records: Sequence[Record], ticket: Ticket, *, whole: bool
    ) -> bool:
        """Accept events a column at a time: all of them, or none if they are not alike enough."""
        columns = self._columns_of(route, records)
        if columns is None:
            return False
        size = int(columns.sizes.sum())
        if not whole and size > self.budget.limit - self.budget.used:
            return False
        now_ms = int(time.time() * 1000)
        indices = (columns.order + ticket.accepted).tolist()
        pieces: list[Piece] = []
        start = 0
        for partition, end in zip(columns.partitions, columns.ends, strict=True):
            while start < end:
                queue = route.queues[route.sticky.current if partition is None else partition]
                piece = self._reserve(route, queue, columns, (start, end), now_ms)
                pieces.append(piece)
                entries = queue.entries if queue.owner is ticket else queue.claim(ticket)
                entries += indices[start : piece.end]
                start = piece.end
                if start < end:
                    self._seal(queue)
                    if partition is None:
                        route.sticky.move_on(queue.partition, self._random.random())
        self._bulk.fill(columns, pieces, self.next_event)
        self.next_event += len(records)
        ticket.accepted += len(records)
        self.budget.take(size)
        return True

    def _columns_of(self, route: Route, records: Sequence[Record]) -> Columns | None:
        """Records as columns; None if they are few, not alike, or it is too early for columns.

        What lays out columns brings Arrow with it, a fifth of a second and 35 MiB: few daemons
        ever need it, and the loop cannot stand still for so long. The first bulk has it loaded
        beside the loop, and goes the way of single records until it is there.
        """
        if len(records) < BULK_RECORDS:
            return None
        if self._bulk is None:
            if self._loading is None:
                self._loading = self._loop.run_in_executor(
                    None, import_module, "sequitur.producer.batching.columns"
                )
                self._loading.add_done_callback(self._on_loaded)
            return None
        columns: Columns | None = self._bulk.columns_of(
            records, route.keys, self._id_prefix, self.next_event
        )
        if columns is None or int(columns.sizes.max()) > route.batch_bytes - HEADER_SIZE:
            return None
        return columns

    def _on_loaded(self, loading: asyncio.Future[ModuleType]) -> None:
        if not loading.cancelled():
            self._bulk = loading.result()

    def _reserve(
        self,
        route: Route,
        queue: PartitionQueue,
        columns: Columns,
        among: tuple[int, int],
        now_ms: int,
    ) -> Piece:
        """Take events into the queue's open batch if it takes any, else into another."""
        piece: Piece | None
        if queue.open is not None:
            builder = queue.open.builder
            if isinstance(builder, self._bulk.BulkBuilder):
                self._resume(queue)
                piece = builder.reserve(columns, *among, now_ms)
                if piece is not None:
                    return piece
            self._seal(queue)
        fresh = self._bulk.BulkBuilder(route.batch_bytes, now_ms)
        self._open(queue, fresh, self.next_event + int(columns.order[among[0]]))
        piece = fresh.reserve(columns, *among, now_ms)
        assert piece is not None, "an event larger than a batch is no column's"
        return piece

    def cut(
        self, grows: Callable[[PartitionQueue, Batch], bool]
    ) -> tuple[list[tuple[PartitionQueue, Batch]], list[tuple[PartitionQueue, Batch]]]:
        """Take all batches, each queue's in their order.

        Args:
            grows: Whether to leave a queue's open batch open.

        Returns:
            The batches that will not change any more, and those that were left open.
        """
        batches: list[tuple[PartitionQueue, Batch]] = []
        growing: list[tuple[PartitionQueue, Batch]] = []
        for queue in self.filled:
            if queue.open is not None and grows(queue, queue.open):
                batches += [(queue, batch) for batch in queue.cut_sealed()]
                growing.append((queue, queue.open))
                queue.pause()
            else:
                batches += [(queue, batch) for batch in queue.cut()]
        for _, batch in (*batches, *growing):
            batch.last_event = self.next_event - 1
        self.filled.clear()
        self.full = self.ripe = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self.cuts += 1
        return batches, growing

    def forget(self, queue: PartitionQueue) -> None:
        """Forget a partition that is gone; its batches were taken out."""
        self.filled.pop(queue, None)

    def refill(self, queue: PartitionQueue) -> None:
        """Take a batch that was left open in the next cut, which is due now."""
        self.filled[queue] = None
        self.ripe = True

    @property
    def flushing(self) -> bool:
        """Whether somebody waits for everything to have its outcome."""
        return bool(self._flushes)

    def take_over(self, batch: Batch) -> None:
        """Hold a batch that was accepted in a former life; there is room for it, whatever it is."""
        self.live[batch] = None
        self.budget.take(batch.size)

    def flushed(self) -> asyncio.Future[None]:
        """Done when each event accepted until now has its outcome."""
        future: asyncio.Future[None] = self._loop.create_future()
        waited_for = {batch for batch in self.live if not batch.completed}
        if waited_for:
            self._flushes.append((waited_for, future))
        else:
            future.set_result(None)
        if self.filled:
            self.ripen()
        return future

    def complete(self, batch: Batch) -> None:
        """Take note that the events of a batch have their outcomes."""
        batch.completed = True
        for waited_for, future in self._flushes:
            waited_for.discard(batch)
            if not waited_for and not future.done():
                future.set_result(None)
        if self._flushes:
            self._flushes = [flush for flush in self._flushes if not flush[1].done()]

    def release(self, batch: Batch) -> None:
        """A batch is no longer held; its bytes are free."""
        del self.live[batch]
        self.budget.give_back(batch.size)

    def replace(self, batch: Batch, parts: tuple[Batch, Batch]) -> None:
        """A batch goes on as its two halves."""
        del self.live[batch]
        for part in parts:
            self.live[part] = None
        for waited_for, _ in self._flushes:
            if batch in waited_for:
                waited_for.discard(batch)
                waited_for.update(parts)

    def _queue_of(self, route: Route, record: Record) -> PartitionQueue:
        """The queue of a record without a key, or with a partition."""
        partition = record.partition
        if partition is None:
            partition = route.sticky.current
        elif not 0 <= partition < route.partitions:
            raise ValueError(
                f"partition {partition}: topic {route.topic} has 0 to {route.partitions - 1}"
            )
        return route.queues[partition]

    def _start_batch(
        self,
        route: Route,
        queue: PartitionQueue,
        record: Record,
        headers: list[Header],
        timestamp_ms: int,
    ) -> tuple[PartitionQueue, Any]:
        """Open a batch with a record that did not fit, and give its queue and what `append` gave.

        A record larger than a batch opens one of its own, so only here can one be too large.

        Raises:
            ValueError: The record is too large.
        """
        grown = self._grow(queue, record, headers, timestamp_ms)
        if grown is not None:
            return queue, grown
        builder = new_builder(route.batch_bytes)
        added = builder.append(0, timestamp_ms, record.key, record.value, headers)
        assert added is not None
        if builder.size() > route.batch_bytes:
            self._check_size(route, builder)
            # It was compressed to be measured, and a builder cannot go on from there.
            builder = new_builder(route.batch_bytes)
            builder.append(0, timestamp_ms, record.key, record.value, headers)
        if queue.open is not None:
            self._seal(queue)
            if record.key is None and record.partition is None:
                # The new batch is the first of the next sticky partition.
                route.sticky.move_on(queue.partition, self._random.random())
                queue = route.queues[route.sticky.current]
                self._resume(queue)
                shared = queue.append(queue.count, timestamp_ms, None, record.value, headers)
                if shared is not None:
                    return queue, shared
                if queue.open is not None:
                    self._seal(queue)
        self._open(queue, builder, self.next_event)
        return queue, added

    def _grow(
        self, queue: PartitionQueue, record: Record, headers: list[Header], timestamp_ms: int
    ) -> Any | None:
        """Add a record to a batch that the journal has so far; None if it takes none."""
        if not queue.is_paused:
            return None
        self._resume(queue)
        return queue.append(queue.count, timestamp_ms, record.key, record.value, headers)

    def _resume(self, queue: PartitionQueue) -> None:
        if queue.is_paused:
            queue.resume()
            self._fill(queue)

    def _open(self, queue: PartitionQueue, builder: Builder, first_event: int) -> None:
        batch = Batch(queue.topic, queue.partition, self._loop.time(), first_event)
        queue.start(batch, builder)
        self.live[batch] = None
        self._fill(queue)

    def _fill(self, queue: PartitionQueue) -> None:
        """The queue has something for the next cut."""
        self.filled[queue] = None
        if self._linger is None:
            self._linger = self._loop.call_later(self._linger_s, self.ripen)

    def _check_size(self, route: Route, builder: Builder) -> None:
        size = builder.size()
        limit = self._settings.max_request_size
        if size > limit:
            raise ValueError(f"{size} bytes are more than max_request_size, {limit}")
        if self._journal_event_bytes is not None and size > self._journal_event_bytes:
            raise ValueError(
                f"{size} bytes are more than the journal takes of one event: an eighth of "
                f"journal_limit, {self._journal_event_bytes}"
            )
        if size > route.max_batch_bytes:
            packed = len(seal(builder, self._settings.compression))
            if packed > route.max_batch_bytes:
                raise ValueError(
                    f"{packed} bytes are more than topic {route.topic} takes: its "
                    f"max.message.bytes is {route.max_batch_bytes}"
                )

    def ripen(self) -> None:
        """Let what there is wait no longer for more events."""
        self.ripe = True
        self._on_due()

    def _refused(self, route: Route, record: Record, error: Exception) -> NotPersisted:
        outcome = _refusal(error)
        if self._on_given_up is not None:
            given_up = GivenUp(
                topic=route.topic,
                partition=record.partition,
                event_id=None,
                key=record.key,
                value=record.value,
                headers=tuple((name, value) for name, value in record.headers),
                timestamp_ms=record.timestamp_ms,
                outcome=outcome,
            )
            self._on_given_up([given_up])
        return outcome

    def _seal(self, queue: PartitionQueue) -> None:
        queue.seal()
        self.full = True
        self._on_due()


def _refusal(error: Exception) -> NotPersisted:
    reason = str(error) if isinstance(error, ValueError) else f"no Kafka record: {error!r}"
    return NotPersisted(reason)
