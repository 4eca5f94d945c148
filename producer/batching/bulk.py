"""Accepting many events a column at a time, where they are alike."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from sequitur.kafka.record_format import HEADER_SIZE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from random import Random
    from types import ModuleType

    from sequitur.base.process import StampClock
    from sequitur.producer._outcome import Ticket
    from sequitur.producer._record import Record
    from sequitur.producer.batching.buffer_budget import BufferBudget
    from sequitur.producer.batching.columns import Columns, Piece
    from sequitur.producer.batching.cuts import Cuts
    from sequitur.producer.batching.partition_queue import PartitionQueue
    from sequitur.producer.batching.route import Route

BULK_RECORDS: Final = 256
"""From so many records on, columns are worth their constant costs."""


class BulkAcceptor:
    """Accept events a column at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        id_prefix: bytes,
        budget: BufferBudget,
        cuts: Cuts,
        random: Random,
        *,
        clock: StampClock,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._id_prefix = id_prefix
        self._budget = budget
        self._cuts = cuts
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
                    self._cuts.seal(queue)
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
                self._cuts.resume(queue)
                piece = builder.reserve(columns, *among, now_ms)
                if piece is not None:
                    return piece
            self._cuts.seal(queue)
        fresh = self._columns.BulkBuilder(batch_bytes, now_ms)
        self._cuts.open(queue, fresh, first_event)
        piece = fresh.reserve(columns, *among, now_ms)
        assert piece is not None, "columns hold no event that is larger than a batch"
        return piece
