"""Accepting events: each goes into the open batch of its partition, up to a limit of bytes.

Batches are taken out in cuts. A cut takes all batches, of all partitions, full or not. So the
events that were accepted before it are in this round of the journal or an earlier one, and later
events are not. If a batch could not be sent soon, a cut takes the events that came since the last
cut, and leaves the batch open: the journal holds it then, and it grows.

The mutable state:

- `PartitionQueue.append` adds to the open batch, and takes nothing while none is open. So the hot
  path is one call, and everything rare happens when it returns None.
- `Accumulator.budget` counts the bytes of all records that are accepted and not settled. It holds
  senders back.
- `Accumulator.next_event` is the number of the next event. Each accepted event adds one to it.
- `Accumulator.outstanding` holds all batches until they are settled.
- `Accumulator.cutter` opens and seals batches, and says when a cut is due.

Nothing here does I/O.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sequitur.kafka.record_batch import new_builder, seal
from sequitur.kafka.record_format import HEADER_LENGTHS, HEADER_SIZE
from sequitur.kafka.records import EVENT_ID_HEADER
from sequitur.producer._claims import CALLS, DELIVERIES, CallClaim, Called
from sequitur.producer._outcome import Delivery, GivenUp, NotPersisted
from sequitur.producer._record import checked_all
from sequitur.producer._unheard import Unawaited
from sequitur.producer.batching.batch import Batch
from sequitur.producer.batching.budget import BufferBudget, Outstanding
from sequitur.producer.batching.route import Known, OutdatedError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random
    from types import ModuleType

    from sequitur.base.process import StampClock
    from sequitur.kafka.record_batch import Builder, Header
    from sequitur.producer._outcome import OnDelivery, OnGivenUp, OnSendFailure, Ticket
    from sequitur.producer._record import Record
    from sequitur.producer._settings import ProducerSettings
    from sequitur.producer._unheard import Unheard
    from sequitur.producer.batching.columns import Columns, Piece
    from sequitur.producer.batching.route import PartitionQueue, Route

    QueuedBatches: TypeAlias = list[tuple[PartitionQueue, Batch]]

BULK_RECORDS: Final = 256
"""From so many records on, columns are worth their constant costs."""
# Raised while an invalid record is encoded, although its types are right: it is too large, or its
# partition does not exist, or a number does not fit its field.
_INVALID_RECORD: Final = (TypeError, ValueError, KeyError, AttributeError, OverflowError)
_LENGTHS: Final = HEADER_SIZE + 256
"""Bytes of a batch of one event beside key, value and headers of its sender's, at most."""
_UTF8_BYTES: Final = 4
"""Bytes of a character, at most."""


class Accumulator:
    """Collect the events of all topics in batches."""

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
        clock: StampClock,
        on_given_up: OnGivenUp | None = None,
        on_send_failure: OnSendFailure | None = None,
        unheard: Unheard | None = None,
        journal_event_bytes: int | None = None,
    ) -> None:
        self.routes: dict[str, Route] = {}
        self.next_event = next_event
        self.budget = BufferBudget(loop, buffer_size)
        self.outstanding = Outstanding(self.budget)
        self.cutter = BatchCutter(
            loop, settings.linger.total_seconds(), self.outstanding, on_due, next_event - 1
        )
        # `RoundMaker` sets it at each cut; None without a journal
        self.keeper: Callable[[], Awaitable[object]] | None = None
        self._settings = settings
        self._id_prefix = producer_name.encode("ascii") + b":"
        self._loop = loop
        self._clock = clock
        self._random = random
        self._on_given_up = on_given_up
        self.unawaited = Unawaited(loop, on_send_failure)
        self._unheard = unheard
        self._journal_event_bytes = journal_event_bytes
        self._bulk = BulkAcceptor(
            loop, self._id_prefix, self.budget, self.cutter, random, clock=clock
        )

    @property
    def uncut_events(self) -> int:
        """How many events were accepted since the last cut."""
        return self.next_event - 1 - self.cutter.last_event

    def add(self, route: Route, record: Record) -> Delivery:
        """Accept one event; the delivery of an invalid one is done at once.

        Raises:
            OutdatedError: See `Route.refuse`; it is not accepted.
        """
        delivery = Delivery(loop=self._loop)
        delivery.keeper = self.keeper
        timestamp_ms = record.timestamp_ms
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        delivery.timestamp_ms = timestamp_ms
        refused = self._add(route, record, timestamp_ms, DELIVERIES, delivery)
        if refused is not None:
            delivery.set_result(refused)
            if self._unheard is not None:
                self._unheard.watch(delivery, route.topic)
        return delivery

    def add_called(self, route: Route, record: Record, on_delivery: OnDelivery) -> None:
        """Accept one event; `on_delivery` is called soon if it is invalid.

        Raises:
            OutdatedError: See `Route.refuse`; it is not accepted.
        """
        timestamp_ms = record.timestamp_ms
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        called = Called(on_delivery, timestamp_ms)
        refused = self._add(route, record, timestamp_ms, CALLS, called)
        if refused is not None:
            CallClaim([called]).failed(refused, route.topic, None)

    def add_unawaited(self, route: Route, record: Record) -> None:
        """Accept one event for whose outcome nobody waits.

        Raises:
            OutdatedError: See `Route.refuse`; it is not accepted.
        """
        ticket = self.unawaited
        index = ticket.accepted
        timestamp_ms = record.timestamp_ms
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        refused = self._add(route, record, timestamp_ms, ticket, index)
        ticket.accepted = index + 1
        if refused is not None:
            ticket.complete([index], refused)
            if self._on_given_up is None:
                ticket.give([self._given_up(route, record, refused)])

    def _add(
        self, route: Route, record: Record, timestamp_ms: int, owner: object, entry: object
    ) -> NotPersisted | None:
        """Accept one event, which its owner knows by `entry`; None, or why it is invalid."""
        try:
            event_id = b"%b%d" % (self._id_prefix, self.next_event)
            headers = [*record.headers, (EVENT_ID_HEADER, event_id)]
            key = record.key
            if record.partition is None and key is not None:
                queue = route.queues[route.keys.partition(key)]
            else:
                queue = self._queue_of(route, record)
            if queue.is_dated is not (record.timestamp_ms is not None):
                self._seal_open(queue)
            offset = queue.claimed + len(queue.entries)
            added = queue.append(offset, timestamp_ms, key, record.value, headers)
            if added is None:
                queue, added = self._start_batch(route, queue, record, headers, timestamp_ms)
        except _INVALID_RECORD as error:
            return self._refused(route, record, error)
        entries = queue.entries if queue.owner is owner else queue.claim(owner)
        entries.append(entry)
        if record.timestamp_ms is not None:
            queue.mark_dated()
        self.next_event += 1
        self.budget.take(added.size)
        if added.size > route.batch_bytes:
            self.cutter.seal(queue)
        return None

    def add_many(
        self, route: Route, records: Sequence[Record], ticket: Ticket, *, whole: bool = False
    ) -> int:
        """Accept events until the buffer is full; invalid ones have their outcome at once.

        Raises:
            OutdatedError: See `Route.refuse`; the first of them is not accepted, and none of a
                whole. Those before another one are accepted, and it is left.
        """
        first_event = self.next_event
        if self._bulk.add(route, records, ticket, first_event=first_event, whole=whole):
            self.next_event += len(records)
            return len(records)
        records = checked_all(records)
        if whole:
            self.require_known(route, records)
        added = self._add_each(route, records, ticket, whole=whole)
        if records and not added:
            raise OutdatedError
        return added

    def require_known(self, route: Route, records: Sequence[Record]) -> None:
        """Check that none of the events would be refused by what brokers said a while ago.

        Raises:
            OutdatedError: See `Route.refuse`.
        """
        if route.known is not Known.BEFORE:
            return
        for record in records:
            if record.partition is not None:
                with contextlib.suppress(ValueError):
                    self._queue_of(route, record)
            size = len(record.value or b"") + len(record.key or b"") + _LENGTHS
            for name, value in record.headers:
                size += _UTF8_BYTES * len(name) + len(value or b"") + HEADER_LENGTHS
            if size > route.max_batch_bytes:
                builder = new_builder(route.batch_bytes)
                with contextlib.suppress(*_INVALID_RECORD):
                    headers = [*record.headers, (EVENT_ID_HEADER, self._id_prefix)]
                    builder.append(0, 0, record.key, record.value, headers)
                    self._check_size(route, builder)

    def _add_each(
        self, route: Route, records: Sequence[Record], ticket: Ticket, *, whole: bool
    ) -> int:
        known = route.keys.learn([r.key for r in records if type(r.key) is bytes])
        queues = route.queues
        prefix = self._id_prefix
        now_ms = self._clock.now_ms()
        event = self.next_event
        index = first = ticket.accepted
        left = free = self.budget.left
        batch_bytes = route.batch_bytes
        for record in records:
            # The hot loop: every event passes it. All that is rare is in the calls it makes.
            timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
            try:
                headers = [*record.headers, (EVENT_ID_HEADER, b"%b%d" % (prefix, event))]
                key = record.key
                if record.partition is None and key is not None:
                    queue = queues[known[key]]
                else:
                    queue = self._queue_of(route, record)
                if queue.is_dated is not (record.timestamp_ms is not None):
                    self._seal_open(queue)
                offset = queue.claimed + len(queue.entries)
                added = queue.append(offset, timestamp_ms, key, record.value, headers)
                if added is None:
                    self.next_event = event
                    queue, added = self._start_batch(route, queue, record, headers, timestamp_ms)
            except OutdatedError:
                break
            except _INVALID_RECORD as error:
                self._refuse(route, record, error, ticket, index)
                index += 1
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
                self.cutter.seal(queue)
            if left <= 0 and not whole:
                break
        ticket.accepted = index
        self.next_event = event
        self.budget.take(free - left)
        return index - first

    def cut(
        self, grows: Callable[[PartitionQueue, Batch], bool]
    ) -> tuple[QueuedBatches, QueuedBatches]:
        """Take out the batches of all events accepted until now; see `BatchCutter.cut`."""
        if self.budget.is_short:
            self._close_largest()
        return self.cutter.cut(self.next_event - 1, grows)

    def _close_largest(self) -> None:
        """Let this cut take the largest open batches, if all open ones take half of the budget.

        Open batches cannot leave memory. Those of many partitions, none of them full, could fill
        it and stay.
        """
        queues = [queue for route in self.routes.values() for queue in route.queues]
        total = sum(queue.open_bytes for queue in queues)
        if total * 2 < self.budget.limit:
            return
        queues.sort(key=lambda queue: queue.open_bytes)
        while total * 4 > self.budget.limit:
            largest = queues.pop()
            total -= largest.open_bytes
            self.cutter.close(largest)

    def flushed(self) -> asyncio.Future[None]:
        """Return a future that is done when all events accepted until now have their outcomes."""
        future = self.outstanding.flushed()
        if self.cutter.filled:
            self.cutter.ripen()
        return future

    def _queue_of(self, route: Route, record: Record) -> PartitionQueue:
        """Return the queue of a record without a key, or with a partition."""
        partition = record.partition
        if partition is None:
            partition = route.sticky.current
        elif not 0 <= partition < route.partitions:
            route.refuse_partition(partition)
        return route.queues[partition]

    def _seal_open(self, queue: PartitionQueue) -> None:
        """Close the open batch: all timestamps of a batch are its senders', or all are ours."""
        if queue.open is not None:
            self.cutter.resume(queue)
            self.cutter.seal(queue)

    def _start_batch(
        self,
        route: Route,
        queue: PartitionQueue,
        record: Record,
        headers: list[Header],
        timestamp_ms: int,
    ) -> tuple[PartitionQueue, Any]:
        """Add a record that the open batch did not take, and return its queue and `append`'s value.

        A record that is larger than a batch gets a batch of its own, so sizes are checked here.
        """
        if queue.is_paused:
            self.cutter.resume(queue)
            added = queue.append(queue.count, timestamp_ms, record.key, record.value, headers)
            if added is not None:
                return queue, added
        builder = new_builder(route.batch_bytes)
        added = builder.append(0, timestamp_ms, record.key, record.value, headers)
        assert added is not None
        if builder.size() > route.batch_bytes:
            self._check_size(route, builder)
            # It was compressed to be measured, and a builder cannot go on from there.
            builder = new_builder(route.batch_bytes)
            builder.append(0, timestamp_ms, record.key, record.value, headers)
        if queue.open is not None:
            self.cutter.seal(queue)
            if record.key is None and record.partition is None:
                # The new batch is the first of the next sticky partition.
                route.sticky.move_on(queue.partition, self._random.random())
                queue = route.queues[route.sticky.current]
                if queue.is_dated is not (record.timestamp_ms is not None):
                    self._seal_open(queue)
                self.cutter.resume(queue)
                shared = queue.append(queue.count, timestamp_ms, None, record.value, headers)
                if shared is not None:
                    return queue, shared
                if queue.open is not None:
                    self.cutter.seal(queue)
        self.cutter.open(queue, builder, self.next_event)
        return queue, added

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
                route.refuse(
                    f"{packed} bytes are more than topic {route.topic} takes: its "
                    f"max.message.bytes is {route.max_batch_bytes}"
                )

    def _refuse(
        self, route: Route, record: Record, error: Exception, ticket: Ticket, index: int
    ) -> None:
        ticket.accepted = index + 1
        refused = self._refused(route, record, error)
        ticket.complete([index], refused)
        ticket.watch(1, refused, route.topic, self._unheard)

    def _refused(self, route: Route, record: Record, error: Exception) -> NotPersisted:
        outcome = _refusal(error)
        if self._on_given_up is not None:
            self._on_given_up([self._given_up(route, record, outcome)])
        return outcome

    @staticmethod
    def _given_up(route: Route, record: Record, outcome: NotPersisted) -> GivenUp:
        return GivenUp(
            topic=route.topic,
            partition=record.partition,
            event_id=None,
            key=record.key,
            value=record.value,
            headers=tuple((name, value) for name, value in record.headers),
            timestamp_ms=record.timestamp_ms,
            outcome=outcome,
        )


def _refusal(error: Exception) -> NotPersisted:
    reason = str(error) if isinstance(error, ValueError) else f"no Kafka record: {error!r}"
    return NotPersisted(reason)


class BatchCutter:
    """Open and seal batches, say when a cut is due, and make it.

    `on_due` wakes `RoundMaker.run`, which calls `Accumulator.cut`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        linger_s: float,
        outstanding: Outstanding,
        on_due: Callable[[], None],
        last_event: int = -1,
    ) -> None:
        self.number = 0
        self.last_event = last_event
        # partitions whose batches the next cut takes, full or not
        self.filled: dict[PartitionQueue, None] = {}
        self.is_full = False
        self.is_ripe = False
        self._loop = loop
        self._linger_s = linger_s
        self._outstanding = outstanding
        self._on_due = on_due
        self._linger: asyncio.TimerHandle | None = None

    def open(self, queue: PartitionQueue, builder: Builder, first_event: int) -> None:
        batch = Batch(queue.topic, queue.partition, self._loop.time(), first_event)
        queue.start(batch, builder)
        self._outstanding.add(batch)
        self._fill(queue)

    def resume(self, queue: PartitionQueue) -> None:
        """Add to the open batch again that the last cut left open, if there is one."""
        if queue.is_paused:
            queue.resume()
            self._fill(queue)

    def seal(self, queue: PartitionQueue) -> None:
        """Take no more records into the open batch: it is full."""
        queue.seal()
        self.is_full = True
        self._on_due()

    def ripen(self) -> None:
        """Make a cut due now."""
        self.is_ripe = True
        self._on_due()

    def refill(self, queue: PartitionQueue) -> None:
        """Make a cut due now that takes a batch that an earlier cut left open."""
        self.filled[queue] = None
        self.is_ripe = True

    def close(self, queue: PartitionQueue) -> None:
        """Let the cut that is made now take the open batch, though it might grow."""
        queue.seal()
        self.filled[queue] = None

    def forget(self, queue: PartitionQueue) -> None:
        """Forget a partition that is gone; its batches were taken out."""
        self.filled.pop(queue, None)

    def cut(
        self, last_event: int, grows: Callable[[PartitionQueue, Batch], bool]
    ) -> tuple[QueuedBatches, QueuedBatches]:
        """Take out all batches, those of each partition in their order."""
        batches: QueuedBatches = []
        growing: QueuedBatches = []
        for queue in self.filled:
            if queue.open is not None and grows(queue, queue.open):
                batches += [(queue, batch) for batch in queue.cut_sealed()]
                growing.append((queue, queue.open))
                queue.pause()
            else:
                batches += [(queue, batch) for batch in queue.cut()]
        for _, batch in (*batches, *growing):
            batch.last_event = last_event
        self.last_event = last_event
        self.filled.clear()
        self.is_full = self.is_ripe = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self.number += 1
        return batches, growing

    def _fill(self, queue: PartitionQueue) -> None:
        self.filled[queue] = None
        if self._linger is None:
            self._linger = self._loop.call_later(self._linger_s, self.ripen)


class BulkAcceptor:
    """Accept events a column at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        id_prefix: bytes,
        budget: BufferBudget,
        cutter: BatchCutter,
        random: Random,
        *,
        clock: StampClock,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._id_prefix = id_prefix
        self._budget = budget
        self._cutter = cutter
        self._random = random
        self._columns: Any = None  # the module, once it is loaded
        self._has_arrow = find_spec("pyarrow") is not None
        self._loading: asyncio.Future[ModuleType] | None = None

    def add(
        self,
        route: Route,
        records: Sequence[Record],
        ticket: Ticket,
        *,
        first_event: int,
        whole: bool,
    ) -> bool:
        """Accept all records, or none: return False if they are not alike enough."""
        columns = self._columns_of(route, records, first_event)
        if columns is None:
            return False
        size = int(columns.sizes.sum())
        if not whole and size > self._budget.left:
            return False
        now_ms = self._clock.now_ms()
        indices = (columns.order + ticket.accepted).tolist()
        pieces: list[Piece] = []
        start = 0
        for partition, end in zip(columns.partitions, columns.ends, strict=True):
            while start < end:
                queue = route.queues[route.sticky.current if partition is None else partition]
                piece = self._reserve(
                    queue, columns, (start, end), now_ms,
                    batch_bytes=route.batch_bytes,
                    first_event=first_event + int(columns.order[start]),
                )  # fmt: skip
                pieces.append(piece)
                entries = queue.entries if queue.owner is ticket else queue.claim(ticket)
                entries += indices[start : piece.end]
                start = piece.end
                if start < end:
                    self._cutter.seal(queue)
                    if partition is None:
                        route.sticky.move_on(queue.partition, self._random.random())
        self._columns.fill(columns, pieces, first_event)
        ticket.accepted += len(records)
        self._budget.take(size)
        return True

    def _columns_of(
        self, route: Route, records: Sequence[Record], first_event: int
    ) -> Columns | None:
        """Return records as columns; None if they are few, not alike, or Arrow is not loaded.

        Arrow takes a fifth of a second to load and 35 MiB: few daemons ever need it, and the event
        loop cannot stand still for so long. So the first bulk has it loaded in a thread, and is
        accepted one record at a time.
        """
        if len(records) < BULK_RECORDS or not self._has_arrow:
            return None
        if self._columns is None:
            if self._loading is None:
                self._loading = self._loop.run_in_executor(
                    None, import_module, "sequitur.producer.batching.columns"
                )
                self._loading.add_done_callback(self._on_loaded)
            return None
        columns: Columns | None = self._columns.columns_of(
            records, route.keys, self._id_prefix, first_event
        )
        if columns is None or int(columns.sizes.max()) > route.batch_bytes - HEADER_SIZE:
            return None
        return columns

    def _on_loaded(self, loading: asyncio.Future[ModuleType]) -> None:
        if not loading.cancelled():
            self._columns = loading.result()

    def _reserve(
        self,
        queue: PartitionQueue,
        columns: Columns,
        among: tuple[int, int],
        now_ms: int,
        *,
        batch_bytes: int,
        first_event: int,
    ) -> Piece:
        """Take events into the open batch if it takes any, else into another."""
        piece: Piece | None
        if queue.open is not None:
            builder = queue.open.builder
            if isinstance(builder, self._columns.BulkBuilder) and not queue.is_dated:
                self._cutter.resume(queue)
                piece = builder.reserve(columns, *among, now_ms)
                if piece is not None:
                    return piece
            self._cutter.seal(queue)
        fresh = self._columns.BulkBuilder(batch_bytes, now_ms)
        self._cutter.open(queue, fresh, first_event)
        piece = fresh.reserve(columns, *among, now_ms)
        assert piece is not None, "columns hold no event that is larger than a batch"
        return piece
