"""The one way to read records of Kafka, for code that is not asynchronous: by exact ranges.

It reads by the connections that the calling thread has, and asks all leaders at once. What comes is
in order within a partition, in rows or in columns, as its reader wants it (`kafka.stored_batches`).
A range is read to its end, whatever is at the end: a marker of a transaction, records of one that
was aborted, or nothing since the topic was compacted.

librdkafka reads where a client has to be a member of a group, or reads ahead in the background; and
for commands that are to see what any consumer sees (`topic_reader`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sequitur.base.retry import Backoff, Retry, any_of
from sequitur.errors import (
    FatalError,
    LogRangeError,
    RetriableError,
    TopicError,
    UnansweredError,
)
from sequitur.kafka.connections import kept_connections
from sequitur.kafka.log_reading import EARLIEST
from sequitur.kafka.partition import OutputPartition, SourcePartition
from sequitur.kafka.stored_batches import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from sequitur.kafka.connections import Connections
    from sequitur.kafka.log_reading import Fetched
    from sequitur.kafka.settings import KafkaSettings
    from sequitur.kafka.stored_batches import Record, RecordColumns

    Spans = Mapping[SourcePartition, tuple[int, int]]
    """First offset of each partition, and the one behind the last."""

_PATIENCE_S: Final = 60.0
"""For a transaction of a process that died: `TRANSACTION_TIMEOUT_MS`, and a broker's round of ten
seconds that ends such ones."""
_BACKOFF: Final = Backoff(initial_ms=20, maximum_ms=200, jitter=0)
_WAIT_MS: Final = 50
_PARTITION_BYTES: Final = 1 << 20
_REQUEST_BYTES: Final = 16 << 20
_OPEN: Final = "no broker answers, or a transaction in it stays open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads records from one offset to before another."""

    kafka: KafkaSettings
    is_committed: bool = True  # whether records of aborted and of open transactions are left out
    # whether to go on where a log begins now, if what was to be read is deleted; else that fails
    passes_deleted: bool = False
    patience_s: float = _PATIENCE_S  # how long nothing may come of what is not read yet
    partition_bytes: int = _PARTITION_BYTES  # packed, of an answer, where a batch is not larger

    def rows(self, spans: Spans) -> Iterator[tuple[SourcePartition, Record]]:
        """Yield the records of ranges one by one; those of a partition in order.

        Raises:
            LogRangeError: Records that were to be read are deleted.
            TopicError: The brokers refuse it.
            UnansweredError: Nothing came for as long as patience goes.
        """
        for some in self._read(spans):
            for record in some.rows():
                yield some.where, record

    def columns(
        self, spans: Spans, most_bytes: int | None = None
    ) -> Iterator[tuple[SourcePartition, RecordColumns]]:
        """Yield the records of ranges as they come, of at most so many bytes once unpacked in all.

        Those of a partition are in order, in one or more pieces.

        Raises:
            ReadTooLargeError: There are more bytes; besides what `rows` raises.
        """
        left = MOST_BYTES if most_bytes is None else most_bytes
        for some in self._read(spans):
            columns = some.columns(left)
            if most_bytes is not None:
                left -= columns.size_bytes
            yield some.where, columns

    def stable_ends(self, places: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """Return where open transactions begin, or logs end, behind a place of each partition.

        Raises:
            TopicError: The brokers refuse it.
            UnansweredError: Not all leaders answered for as long as patience goes.
        """

        def ask() -> dict[SourcePartition, int]:
            connections = kept_connections(self.kafka)
            connections.run(connections.leaders.refresh({where.topic for where in places}))
            told = connections.run(connections.leaders.fetch(places, partition_bytes=1))
            if untold := places.keys() - told.keys():
                raise RetriableError(f"{_named(untold)}: no leader answers")
            # Of a place that is deleted meanwhile nothing is told.
            return {where: max(one.last_stable, places[where]) for where, one in told.items()}

        try:
            retry = Retry(patience_s=self.patience_s, backoff=_BACKOFF)
            return retry.run(ask, any_of(RetriableError))
        except RetriableError as error:
            raise UnansweredError(str(error)) from error
        except FatalError as error:
            raise TopicError(f"{_named(places)} cannot be read: {error}") from error

    def _read(self, spans: Spans) -> Iterator[Fetched]:
        stops = {where: stop for where, (first, stop) in spans.items() if first < stop}
        places = {where: spans[where][0] for where in stops}
        topics = {where.topic for where in stops}
        retry = Retry(patience_s=self.patience_s, backoff=_BACKOFF)
        attempts = retry.attempts(time.monotonic)
        is_known = False  # whether the brokers are known that lead now
        while stops:
            why, some = _OPEN, []
            try:
                connections = kept_connections(self.kafka)
                if not is_known:
                    connections.run(connections.leaders.refresh(topics))
                some = self._fetched(connections, places, 0 if is_known else _WAIT_MS)
            except RetriableError as error:
                why = str(error)
            except LogRangeError:
                raise
            except FatalError as error:
                raise TopicError(f"{_named(stops)} cannot be read: {error}") from error
            is_known = bool(some)
            if some:
                attempts.succeed()
            else:
                unread = f"not all of {_named(stops)} is read in {self.patience_s:g} s"
                attempts.sleep(UnansweredError(f"{unread}: {why}"))
            for one in some:
                # Behind those that wait for their turn: a leader cuts what is too much for one.
                del places[one.where]
                if one.next_offset < stops[one.where]:
                    places[one.where] = one.next_offset
                    yield one
                else:
                    yield one.before(stops.pop(one.where))

    def _fetched(
        self, connections: Connections, places: Mapping[SourcePartition, int], wait_ms: int
    ) -> list[Fetched]:
        """Return what is new of partitions."""
        leaders = connections.leaders
        told = connections.run(
            leaders.fetch(
                places,
                wait_ms=wait_ms,
                partition_bytes=self.partition_bytes,
                most_bytes=_REQUEST_BYTES,
                is_committed=self.is_committed,
            )
        )
        cut = [OutputPartition(*where) for where, one in told.items() if one.is_out_of_range]
        for where, begins in connections.run(leaders.offsets(cut, EARLIEST)).items():
            source = SourcePartition(*where)
            if begins > (wanted := places[source]):
                if not self.passes_deleted:
                    raise LogRangeError(f"{where} begins at offset {begins}, and not at {wanted}")
                told[source] = replace(told[source], next_offset=begins)
        return [one for one in told.values() if one.next_offset > one.offset]


def _named(partitions: Collection[SourcePartition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))
